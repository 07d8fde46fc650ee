#include "fastconv/families/implicit_gemm/mma_launch.cuh"

template fastconv::Launcher fastconv::mma_launcher<float>(int);
