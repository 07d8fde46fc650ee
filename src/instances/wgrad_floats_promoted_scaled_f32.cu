#include "fastconv/kernels/wgrad_launch.cuh"

template fastconv::Launcher
fastconv::wgrad_launcher<fastconv::WgradStaging::kFloats, fastconv::HaloOperands::kPromotedScaled, float>(int);
