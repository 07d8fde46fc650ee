// Host side of depthwise kernels whose rows of pixels TMA brings and stores.
#pragma once

#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/tensor_map.h"
#include "fastconv/tile/copies.h"

namespace fastconv {

template <typename Kernel, typename Params>
void launch_boxed(const char* name, Kernel kernel, const LaunchShape& shape, Stream& stream, const Params& params,
                  const PixelMaps& maps, DType dtype) {
  launch(name, kernel, shape, stream, params, encode_tensor_map(maps.source, dtype, params.source),
         encode_tensor_map(maps.target, dtype, params.target));
}

}  // namespace fastconv
