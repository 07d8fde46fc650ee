#include "fastconv/families/depthwise/launch.cuh"

template fastconv::Launcher fastconv::depthwise_launcher<fastconv::DepthwiseKind::kSliding, float>(int);
