#include "fastconv/families/wgrad/launch.cuh"

template fastconv::Launcher
fastconv::wgrad_launcher<fastconv::WgradStaging::kWarps, fastconv::OperandForm::kHalf, __nv_bfloat16>(int);
