#include "fastconv/kernels/wgrad_launch.cuh"

template fastconv::Launcher
fastconv::wgrad_launcher<fastconv::WgradStaging::kWarps, fastconv::HaloOperands::kHalf, __half>(int);
