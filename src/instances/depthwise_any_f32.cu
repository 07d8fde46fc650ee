#include "fastconv/families/depthwise/any_launch.cuh"

template fastconv::Launcher fastconv::depthwise_any_launcher<float>(int);
