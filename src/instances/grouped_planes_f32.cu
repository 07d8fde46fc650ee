#include "fastconv/kernels/grouped_planes_launch.cuh"

template fastconv::Launcher fastconv::grouped_planes_launcher<float>(int);
