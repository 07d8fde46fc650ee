#include "fastconv/kernels/grouped_launch.cuh"

template fastconv::Launcher fastconv::grouped_launcher<float>(int);
