#include "fastconv/kernels/quads_launch.cuh"

template fastconv::Launcher fastconv::quads_launcher<float>(int);
