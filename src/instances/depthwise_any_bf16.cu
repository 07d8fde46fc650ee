#include "fastconv/kernels/depthwise_any_launch.cuh"

template fastconv::Launcher fastconv::depthwise_any_launcher<__nv_bfloat16>(int);
