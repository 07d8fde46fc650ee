// Measures how far apart the numbers of two tensors lie; see core/operand_range.h.
#pragma once

#include <cooperative_groups.h>

#include <cstddef>

#include "fastconv/core/operand_range.h"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/ptx/grid.cuh"

namespace fastconv {

static_assert(offsetof(cooperative_groups::details::grid_workspace, barrier) == ptx::kGridWord * sizeof(uint32_t));

inline constexpr int kRangeThreads = 512;

struct RangeParams {
  const void* values[2];
  int64_t quads[2];  // of 16 bytes
  TensorRange* blocks[2];
  OperandRange* range;
  int32_t widest;  // see widest_range()
};

using TensorRanges = TensorRange[2];

// A thread's quads of both tensors; eight neighbouring lanes have a group. While a round of loads is looked at, the
// next is under way. From the end on: what L2 keeps is then what is read next.
__device__ __forceinline__ void add_quads(const RangeParams& params, TensorRanges& ranges) {
  constexpr int kAtOnce = 4;
  const int64_t step = int64_t{gridDim.x} * kRangeThreads, round = kAtOnce * step;
  const int64_t thread = int64_t{blockIdx.x} * kRangeThreads + threadIdx.x;
  const int64_t rounds = (params.quads[0] + round - 1) / round, all = rounds + (params.quads[1] + round - 1) / round;
  using Quads = uint32_t[kAtOnce][4];
  auto load = [&](int64_t index, Quads& v) {
    const int which = index >= rounds;
    const auto* values = static_cast<const uint4*>(params.values[which]);
    const int64_t first = (index - which * rounds) * round + thread;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      v[i][0] = v[i][1] = v[i][2] = v[i][3] = 0;
      if (first + i * step < params.quads[which]) ptx::load_global16(values + first + i * step, v[i]);
    }
  };
  auto add = [&](Quads& v, TensorRange& range) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (uint32_t& bits : v[i]) bits &= kMagnitude;
      uint32_t most = max(max(v[i][0], v[i][1]), max(v[i][2], v[i][3]));
#pragma unroll
      for (int lanes = 1; lanes < kRangeGroup / 4; lanes *= 2) most = max(most, __shfl_xor_sync(~0u, most, lanes));
      range.add(v[i], most);
    }
  };
  Quads v, next;
  if (all > 0) load(all - 1, next);
  for (int64_t index = all - 1; index >= 0; --index) {
#pragma unroll
    for (int i = 0; i < 4 * kAtOnce; ++i) v[i / 4][i % 4] = next[i / 4][i % 4];
    if (index > 0) load(index - 1, next);
    if (index >= rounds) {
      add(v, ranges[1]);
    } else {
      add(v, ranges[0]);
    }
  }
}

// Of all threads of the block; the first has the result.
__device__ __forceinline__ void add_threads(TensorRanges& ranges) {
  constexpr int kWarps = kRangeThreads / 32;
  static_assert(kWarps <= 32);
  __shared__ TensorRanges warps[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto add_lanes = [](TensorRange& range) {
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      range.add({__shfl_xor_sync(~0u, range.most, lanes), __shfl_xor_sync(~0u, range.least, lanes),
                 __shfl_xor_sync(~0u, range.numbers, lanes), __shfl_xor_sync(~0u, range.small, lanes)});
    }
  };
  __syncthreads();  // `warps` has been read
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    add_lanes(ranges[i]);
    if (lane == 0) warps[warp][i] = ranges[i];
  }
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    ranges[i] = lane < kWarps ? warps[lane][i] : TensorRange{};
    add_lanes(ranges[i]);
  }
}

// All blocks together.
__global__ __launch_bounds__(kRangeThreads, 2) void measure_range(const __grid_constant__ RangeParams params) {
  ptx::follow_previous_kernel();
  TensorRanges ranges;
  add_quads(params, ranges);
  add_threads(ranges);
  if (threadIdx.x == 0) params.blocks[0][blockIdx.x] = ranges[0], params.blocks[1][blockIdx.x] = ranges[1];
  cooperative_groups::this_grid().sync();
  if (blockIdx.x != 0) return;
  TensorRanges all;
  for (unsigned block = threadIdx.x; block < gridDim.x; block += kRangeThreads) {
#pragma unroll
    for (int i = 0; i < 2; ++i) all[i].add(params.blocks[i][block]);
  }
  add_threads(all);
  if (threadIdx.x == 0) *params.range = operand_range(all[0], all[1], params.widest);
}

}  // namespace fastconv
