#include "fastconv/kernels/quads_wgrad_launch.cuh"

template fastconv::Launcher fastconv::quads_wgrad_launcher<__half>(int);
