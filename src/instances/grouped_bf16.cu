#include "fastconv/kernels/grouped_launch.cuh"

template fastconv::Launcher fastconv::grouped_launcher<__nv_bfloat16>(int);
