#include "fastconv/families/depthwise/pairs_launch.cuh"

template fastconv::Launcher fastconv::depthwise_pairs_launcher<__half>(int);
