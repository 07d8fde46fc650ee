// Blocks that share a tile, each with some of its channels: the first of a cluster adds the others' sums to its own, in
// their order.
#pragma once

#include "fastconv/ptx/cluster.cuh"
#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/tile/halo_params.h"

namespace fastconv {

// One of two consumer warpgroups; all threads of the cluster meet once, the others by cluster_sync(). Whether the block
// has the whole sums then. NOTES: a tile's share is the block's rank, which takes no register to know.
template <int kMBlocks, int kAccumulators>
__device__ __forceinline__ bool add_shares(const HaloParams& params, int warpgroup,
                                           float (&acc)[kMBlocks][kAccumulators]) {
  constexpr int kAll = kMBlocks * kAccumulators, kThreads = 128;
  const uint32_t rank = ptx::cluster_rank();
  // Clusters leave their sums one after the other, without those of their first blocks.
  auto place = [&](uint32_t block) {
    const uint32_t before = block - params.shares.div(static_cast<int32_t>(block)) - 1;
    return params.share_sums + (int64_t{before} * 2 + warpgroup) * kAll * kThreads + threadIdx.x % kThreads * 4;
  };
  if (rank > 0) {
    float* const to = place(blockIdx.x);
#pragma unroll
    for (int i = 0; i < kAll; i += 4) {
      const float* const sums = &acc[i / kAccumulators][i % kAccumulators];
      *reinterpret_cast<float4*>(to + i * kThreads) = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
  }
  ptx::cluster_sync();
  if (rank > 0) return false;
#pragma unroll 1
  for (uint32_t share = 1; share < params.shares.divisor; ++share) {
    const float* const from = place(blockIdx.x + share);
#pragma unroll
    for (int i = 0; i < kAll; i += 4) {
      uint32_t v[4];
      ptx::load_global16(from + i * kThreads, v);
#pragma unroll
      for (int k = 0; k < 4; ++k) acc[i / kAccumulators][i % kAccumulators + k] += __uint_as_float(v[k]);
    }
  }
  return true;
}

}  // namespace fastconv
