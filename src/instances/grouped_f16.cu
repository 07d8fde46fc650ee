#include "fastconv/families/grouped/launch.cuh"

template fastconv::Launcher fastconv::grouped_launcher<__half>(int);
