// Blocks that share a tile, each with some of its channels, add their sums up: each then has all of some filters.
#pragma once

#include "fastconv/families/halo/params.h"
#include "fastconv/ptx/cluster.cuh"
#include "fastconv/ptx/global_memory.cuh"

namespace fastconv {

// One of two consumer warpgroups; all threads of the cluster meet once, the others by cluster_sync(). `acc` then begins
// with the filters that the block has: those of its rank. Sums are added in the order of ranks. NOTES: a tile's share
// is the block's rank, which takes no register to know.
template <int kMBlocks, int kAccumulators>
__device__ __forceinline__ void add_shares(const HaloParams& params, int warpgroup,
                                           float (&acc)[kMBlocks][kAccumulators]) {
  constexpr int kQuads = kAccumulators / 4, kQuadFloats = 4 * 128;  // a thread's sums of eight filters; of all threads
  const uint32_t rank = ptx::cluster_rank(), shares = params.shares.divisor;
  auto sums_of = [&](uint32_t block) {
    return params.share_sums + (int64_t{block} * 2 + warpgroup) * (kMBlocks * kQuads * kQuadFloats) +
           threadIdx.x % 128 * 4;
  };
  float* const mine = sums_of(blockIdx.x);
#pragma unroll
  for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const float* const sums = &acc[m][4 * q];
      *reinterpret_cast<float4*>(mine + (m * kQuads + q) * kQuadFloats) =
          make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
  }
  ptx::cluster_sync();
  const int quads = kQuads / static_cast<int>(shares);
  // add(sum, of this share)
  auto for_each_sum = [&](uint32_t share, auto add) {
    const float* const from = sums_of(blockIdx.x - rank + share) + rank * quads * kQuadFloats;
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
      for (int q = 0; q < kQuads / 2; ++q) {
        if (q >= quads) break;
        uint32_t v[4];
        ptx::load_global16(from + (m * kQuads + q) * kQuadFloats, v);
#pragma unroll
        for (int i = 0; i < 4; ++i) add(acc[m][4 * q + i], __uint_as_float(v[i]));
      }
    }
  };
  for_each_sum(0, [](float& sum, float value) { sum = value; });
#pragma unroll 1
  for (uint32_t share = 1; share < shares; ++share) {
    for_each_sum(share, [](float& sum, float value) { sum += value; });
  }
}

}  // namespace fastconv
