#include "fastconv/families/wgrad/launch.cuh"

template fastconv::Launcher
fastconv::wgrad_launcher<fastconv::WgradStaging::kTma, fastconv::OperandForm::kHalf, __half>(int);
