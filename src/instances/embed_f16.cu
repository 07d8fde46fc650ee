#include "fastconv/kernels/embed_launch.cuh"

template fastconv::Launcher fastconv::embed_launcher<__half>(int);
