#include "fastconv/families/few_channels/ready_quads_launch.cuh"

template fastconv::Launcher fastconv::ready_quads_launcher<__nv_bfloat16>(int);
