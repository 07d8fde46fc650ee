#include "fastconv/families/depthwise/diagonal_launch.cuh"

template fastconv::Launcher fastconv::depthwise_diagonal_launcher<float>(int);
