#include "fastconv/kernels/mma_launch.cuh"

template fastconv::Launcher fastconv::mma_launcher<float>(int);
