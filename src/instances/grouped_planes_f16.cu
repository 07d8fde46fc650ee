#include "fastconv/families/grouped/planes_launch.cuh"

template fastconv::Launcher fastconv::grouped_planes_launcher<__half>(int);
