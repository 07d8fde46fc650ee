#include "fastconv/kernels/ready_quads_launch.cuh"

template fastconv::Launcher fastconv::ready_quads_launcher<__half>(int);
