// Second pass of a weight gradient of groups of one channel, or the like, whose pixels were shared out to several
// slices of blocks: adds their sums.
#pragma once

#include "fastconv/core/problem.h"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/add_partials.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {

inline constexpr int kDepthwiseReduceThreads = 128;
inline constexpr int kDepthwiseReduceStrands = 8;  // at most: threads that share a tap's slices

struct DepthwiseReduction {
  const float* sums;  // [slice][filter][tap], or [slice][tap][filter][channel of its group]
  void* dw;
  Strides strides;
  int32_t channels, taps_h, taps_w, slices;  // channels: of a group
  int32_t strands;                           // a power of two
  bool taps_outer;                           // the second order
  int64_t slice_sums;                        // of a slice
};

// In an order that does not change.
template <typename T>
__global__ void __launch_bounds__(kDepthwiseReduceThreads)
    depthwise_reduce(const __grid_constant__ DepthwiseReduction params) {
  __shared__ float shared[kDepthwiseReduceThreads];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t beside = kDepthwiseReduceThreads / params.strands;
  const int64_t i = int64_t{blockIdx.x} * beside + thread % beside;
  const bool exists = i < params.slice_sums;
  // Where the sum goes is worked out while the kernel before this one ends.
  const int32_t taps = params.taps_h * params.taps_w;
  const int64_t inner = params.taps_outer ? params.slice_sums / taps : taps;
  auto of_outer = static_cast<int32_t>(i / inner), of_inner = static_cast<int32_t>(i - of_outer * inner);
  const int32_t pair = params.taps_outer ? of_inner : of_outer, tap = params.taps_outer ? of_outer : of_inner;
  const int32_t filter = pair / params.channels, channel = pair % params.channels;
  const Strides& strides = params.strides;
  const int64_t to =
      filter * strides.n + channel * strides.c + tap / params.taps_w * strides.h + tap % params.taps_w * strides.w;
  ptx::follow_previous_kernel();
  float sum = 0;
  if (exists) {
    sum = add_in_order(thread / beside, params.strands, params.slices,
                       [&](int32_t slice) { return params.sums[slice * params.slice_sums + i]; });
  }
  shared[thread] = sum;
  __syncthreads();
  if (!exists || thread >= beside) return;
  for (int32_t strand = 1; strand < params.strands; ++strand) sum += shared[strand * beside + thread];
  static_cast<T*>(params.dw)[to] = narrow<T>(sum);
}

}  // namespace fastconv
