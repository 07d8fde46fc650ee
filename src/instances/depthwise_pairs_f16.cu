#include "fastconv/kernels/depthwise_pairs_launch.cuh"

template fastconv::Launcher fastconv::depthwise_pairs_launcher<__half>(int);
