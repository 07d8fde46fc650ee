#include "fastconv/kernels/direct_launch.cuh"

template fastconv::Launcher fastconv::direct_launcher<fastconv::Pass::kFprop, double>(int);
