#include "fastconv/families/depthwise/cross_launch.cuh"

template fastconv::Launcher fastconv::depthwise_cross_launcher<__nv_bfloat16>(int);
