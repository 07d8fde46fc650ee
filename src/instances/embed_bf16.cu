#include "fastconv/families/few_channels/embed_launch.cuh"

template fastconv::Launcher fastconv::embed_launcher<__nv_bfloat16>(int);
