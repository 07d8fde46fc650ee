#include "fastconv/families/implicit_gemm/direct_launch.cuh"

template fastconv::Launcher fastconv::direct_launcher<fastconv::Pass::kFprop, float>(int);
