#include "fastconv/families/wgrad/launch.cuh"

template fastconv::Launcher
fastconv::wgrad_launcher<fastconv::WgradStaging::kFloats, fastconv::OperandForm::kPromotedParts, float>(int);
