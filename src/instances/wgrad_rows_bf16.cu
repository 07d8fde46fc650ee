#include "fastconv/kernels/wgrad_launch.cuh"

template fastconv::Launcher
fastconv::wgrad_launcher<fastconv::WgradStaging::kTmaRows, fastconv::HaloOperands::kHalf, __nv_bfloat16>(int);
