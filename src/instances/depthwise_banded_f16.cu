#include "fastconv/families/depthwise/banded_launch.cuh"

template fastconv::Launcher fastconv::depthwise_banded_launcher<__half>(int);
