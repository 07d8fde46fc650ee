#include "fastconv/families/few_channels/quads_launch.cuh"

template fastconv::Launcher fastconv::quads_launcher<__half>(int);
