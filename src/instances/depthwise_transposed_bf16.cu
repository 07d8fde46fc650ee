#include "fastconv/families/depthwise/launch.cuh"

template fastconv::Launcher fastconv::depthwise_launcher<fastconv::DepthwiseKind::kTransposed, __nv_bfloat16>(int);
