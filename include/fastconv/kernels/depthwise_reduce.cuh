// Second pass of a depthwise weight gradient whose pixels were shared out to several slices of blocks: adds their sums.
#pragma once

#include "fastconv/core/problem.h"
#include "fastconv/tile/element.cuh"

namespace fastconv {

inline constexpr int kDepthwiseReduceThreads = 128;

struct DepthwiseReduction {
  const float* sums;  // [slice][filter][tap]
  void* dw;
  Strides strides;
  int32_t taps_h, taps_w, slices;
  int64_t slice_sums;  // of a slice
};

// In order. One thread a tap.
template <typename T>
__global__ void __launch_bounds__(kDepthwiseReduceThreads)
    depthwise_reduce(const __grid_constant__ DepthwiseReduction params) {
  const int64_t i = int64_t{blockIdx.x} * kDepthwiseReduceThreads + threadIdx.x;
  if (i >= params.slice_sums) return;
  float sum = 0;
#pragma unroll 8
  for (int32_t slice = 0; slice < params.slices; ++slice) sum += params.sums[slice * params.slice_sums + i];
  const int32_t taps = params.taps_h * params.taps_w;
  const auto filter = static_cast<int32_t>(i / taps), tap = static_cast<int32_t>(i - int64_t{filter} * taps);
  const Strides& strides = params.strides;
  static_cast<T*>(params.dw)[filter * strides.n + tap / params.taps_w * strides.h + tap % params.taps_w * strides.w] =
      narrow<T>(sum);
}

}  // namespace fastconv
