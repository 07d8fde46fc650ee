// Second pass of a weight gradient by split-K, whose pixels were shared out to several slices of blocks: adds their
// sums, which are in the order of the filter.
#pragma once

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/add_partials.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {

inline constexpr int kReduceSlicesLog2 = 7, kReduceSlicesThreads = 1 << kReduceSlicesLog2;
inline constexpr int kReduceSlicesStrands = 8;  // at most: threads that share a tap's slices

struct SliceReduction {
  const float* sums;  // [slice][filter][tap], or [slice][tap][filter][channel of its group]
  void* dw;
  Strides strides;
  int32_t slices, slice_sums;  // the latter: of a slice; workspaces hold fewer than 2^31
  int32_t strands_log2;
  bool taps_outer;                    // the second order
  FastDivmod by_inner;                // taps, or pairs of filter and channel
  FastDivmod by_channels, by_taps_w;  // channels: of a group
};

// In an order that does not change. Static, as what launches it: each file has its own, for the architectures that it
// is compiled for, and before CUDA 13 files would share one.
template <typename T>
static __global__ void __launch_bounds__(kReduceSlicesThreads)
    reduce_slices(const __grid_constant__ SliceReduction params) {
  __shared__ float shared[kReduceSlicesThreads];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t beside_log2 = kReduceSlicesLog2 - params.strands_log2;
  const int32_t strands = 1 << params.strands_log2, beside = 1 << beside_log2;
  const int32_t strand = thread >> beside_log2, place = thread & (beside - 1);
  const int32_t i = static_cast<int32_t>(blockIdx.x) * beside + place;
  const bool exists = i < params.slice_sums;
  // Where the sum goes is worked out while the kernel before this one ends.
  int32_t outer, inner, filter, channel, r, s;
  params.by_inner.divmod(i, outer, inner);
  params.by_channels.divmod(params.taps_outer ? inner : outer, filter, channel);
  params.by_taps_w.divmod(params.taps_outer ? outer : inner, r, s);
  const Strides& strides = params.strides;
  const int64_t to = filter * strides.n + channel * strides.c + r * strides.h + s * strides.w;
  ptx::follow_previous_kernel();
  float sum = 0;
  if (exists) {
    sum = add_in_order(strand, strands, params.slices,
                       [&](int32_t slice) { return params.sums[int64_t{slice} * params.slice_sums + i]; });
  }
  if (strands > 1) {
    shared[thread] = sum;
    __syncthreads();
  }
  if (!exists || strand > 0) return;
  for (int32_t other = 1; other < strands; ++other) sum += shared[other * beside + place];
  static_cast<T*>(params.dw)[to] = narrow<T>(sum);
}

}  // namespace fastconv
