// Blocks that share a tile, each with some of its channels: the first of a cluster adds the others' sums to its own, in
// their order.
#pragma once

#include "fastconv/ptx/cluster.cuh"
#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/tile/scheduler.cuh"

namespace fastconv {

// One of two consumer warpgroups; `index`: of the block's only share. All threads of the cluster meet once: the others
// by cluster_sync().
template <int kMBlocks, int kAccumulators>
__device__ __forceinline__ void add_shares(const HaloParams& params, const Tile& tile, int32_t index, int warpgroup,
                                           float (&acc)[kMBlocks][kAccumulators]) {
  constexpr int kAll = kMBlocks * kAccumulators, kThreads = 128;
  const auto shares = static_cast<int32_t>(params.shares.divisor);
  const int64_t first = int64_t{index - tile.share} / shares * (shares - 1);  // that leaves sums
  auto place = [&](int32_t share) {
    return params.share_sums + ((first + share - 1) * 2 + warpgroup) * kAll * kThreads + threadIdx.x % kThreads * 4;
  };
  if (tile.share > 0) {
    float* const to = place(tile.share);
#pragma unroll
    for (int i = 0; i < kAll; i += 4) {
      const float* const sums = &acc[i / kAccumulators][i % kAccumulators];
      *reinterpret_cast<float4*>(to + i * kThreads) = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
  }
  ptx::cluster_sync();
  if (tile.share > 0) return;
#pragma unroll 1
  for (int32_t share = 1; share < shares; ++share) {
    const float* const from = place(share);
#pragma unroll
    for (int i = 0; i < kAll; i += 4) {
      uint32_t v[4];
      ptx::load_global16(from + i * kThreads, v);
#pragma unroll
      for (int k = 0; k < 4; ++k) acc[i / kAccumulators][i % kAccumulators + k] += __uint_as_float(v[k]);
    }
  }
}

}  // namespace fastconv
