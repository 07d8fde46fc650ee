#include "fastconv/families/grouped/launch.cuh"

template fastconv::Launcher fastconv::grouped_launcher<__nv_bfloat16>(int);
