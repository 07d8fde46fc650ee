// Measures how far apart the numbers of two tensors lie; see tile/operand_range.h.
#pragma once

#include <cooperative_groups.h>

#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/tile/operand_range.h"

namespace fastconv {

inline constexpr int kRangeThreads = 512;

struct RangeParams {
  const void* values[2];
  int64_t quads[2];  // of 16 bytes
  TensorRange* blocks[2];
  OperandRange* range;
  int32_t widest;  // see widest_range()
};

// A thread's quads; eight neighbouring lanes have a group. From the end on: what L2 keeps is then what is read next.
__device__ __forceinline__ TensorRange thread_range(const void* values, int64_t quads) {
  constexpr int kAtOnce = 8;  // in flight
  TensorRange range;
  const int64_t step = int64_t{gridDim.x} * kRangeThreads, round = kAtOnce * step;
  const int64_t begin = int64_t{blockIdx.x} * kRangeThreads;
  for (int64_t first = begin + (quads - 1) / round * round; first >= begin; first -= round) {
    uint32_t v[kAtOnce][4];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t at = first + i * step + threadIdx.x;
      v[i][0] = v[i][1] = v[i][2] = v[i][3] = 0;
      if (at < quads) ptx::load_global16(static_cast<const uint4*>(values) + at, v[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (uint32_t& bits : v[i]) bits &= kMagnitude;
      uint32_t most = max(max(v[i][0], v[i][1]), max(v[i][2], v[i][3]));
#pragma unroll
      for (int lanes = 1; lanes < kRangeGroup / 4; lanes *= 2) most = max(most, __shfl_xor_sync(~0u, most, lanes));
      range.add(v[i], most);
    }
  }
  return range;
}

// Of all threads of the block; the first has the result.
__device__ __forceinline__ TensorRange block_range(TensorRange range) {
  constexpr int kWarps = kRangeThreads / 32;
  __shared__ TensorRange warps[kWarps];
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    range.add({__shfl_xor_sync(~0u, range.most, lanes), __shfl_xor_sync(~0u, range.least, lanes),
               __shfl_xor_sync(~0u, range.numbers, lanes), __shfl_xor_sync(~0u, range.small, lanes)});
  }
  __syncthreads();  // `warps` has been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = range;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kWarps; ++i) range.add(warps[i]);
  }
  return range;
}

// All blocks together.
__global__ __launch_bounds__(kRangeThreads, 2) void measure_range(const __grid_constant__ RangeParams params) {
  for (int i = 1; i >= 0; --i) {
    const TensorRange range = block_range(thread_range(params.values[i], params.quads[i]));
    if (threadIdx.x == 0) params.blocks[i][blockIdx.x] = range;
  }
  cooperative_groups::this_grid().sync();
  if (blockIdx.x != 0) return;
  TensorRange all[2];
  for (int i = 0; i < 2; ++i) {
    TensorRange range;
    for (unsigned block = threadIdx.x; block < gridDim.x; block += kRangeThreads) {
      range.add(params.blocks[i][block]);
    }
    all[i] = block_range(range);
  }
  if (threadIdx.x == 0) *params.range = operand_range(all[0], all[1], params.widest);
}

}  // namespace fastconv
