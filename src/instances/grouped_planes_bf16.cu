#include "fastconv/families/grouped/planes_launch.cuh"

template fastconv::Launcher fastconv::grouped_planes_launcher<__nv_bfloat16>(int);
