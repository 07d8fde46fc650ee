#include "fastconv/families/few_channels/quads_wgrad_launch.cuh"

template fastconv::Launcher fastconv::quads_wgrad_launcher<__nv_bfloat16>(int);
