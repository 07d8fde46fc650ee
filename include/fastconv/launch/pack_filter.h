// The halo engine's filter, packed for it where the copy engine cannot read it as it is.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "fastconv/tile/halo_params.h"

namespace fastconv {

struct PackParams {
  const void* filter;
  void* packed;
  int64_t row, col, r, s;  // strides, elements: a row is an output channel of the engine, a column an input channel
  int64_t group;           // elements between the filters of two convolution groups
  int32_t rows, cols;      // per convolution group
  int32_t filter_h, filter_w;
  int32_t block_k;
  int32_t channel_phases_log2;  // see staged_channel
};

void launch_pack_filter(const char* name, const HaloParams& params, const PackParams& pack, int channels, int64_t tiles,
                        cudaStream_t stream);

}  // namespace fastconv
