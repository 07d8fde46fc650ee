// The filter in the workspace, as the kernels of several taps read it.
#pragma once

#include "fastconv/families/pointwise/config.h"
#include "fastconv/families/pointwise/taps.h"
#include "fastconv/ptx/dependent_launch.cuh"

namespace fastconv {

inline constexpr int kPackThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kPackThreads)
    pack_taps(const __grid_constant__ TapPacking params, const T* filter, T* packed) {
  constexpr int kChunk = kPointwiseChunkBytes / sizeof(T);
  ptx::follow_previous_kernel();
  const int64_t index = int64_t{blockIdx.x} * kPackThreads + threadIdx.x;
  if (index >= params.chunks) return;
  int32_t k, rest, tap, chunk, r, s;
  params.by_filter.divmod(static_cast<int32_t>(index), k, rest);
  params.by_tap.divmod(rest, tap, chunk);
  params.by_columns.divmod(tap, r, s);
  const int32_t channel = chunk * kChunk;
  filter += k * params.filter + r * params.row + s * params.column + channel * params.channel;
  alignas(kPointwiseChunkBytes) T values[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) values[i] = channel + i < params.channels ? filter[i * params.channel] : T(0.f);
  reinterpret_cast<uint4*>(packed)[index] = *reinterpret_cast<const uint4*>(values);
}

}  // namespace fastconv
