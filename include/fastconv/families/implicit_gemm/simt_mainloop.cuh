// The multiply-add loop of the kernels without tensor cores: tiles double-buffered in shared memory, outputs in
// registers.
#pragma once

#include "fastconv/families/implicit_gemm/operand_tile.cuh"
#include "fastconv/families/implicit_gemm/tile_config.h"

namespace fastconv {

template <typename Acc, typename Config>
struct SimtStorage {
  OperandTile<Acc, Config::kM, Config::kDepth> a[2];
  OperandTile<Acc, Config::kN, Config::kDepth> b[2];
  Coord depth_a[2][Config::kDepth], depth_b[2][Config::kDepth];
};

// Which of the tile's outputs a thread holds.
template <typename Config>
struct ThreadTile {
  int first_m, first_n;

  __device__ ThreadTile() {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    first_m = warp / Config::kWarpsN * Config::kLanesM * Config::kThreadM + lane / Config::kLanesN * Config::kRun;
    first_n = warp % Config::kWarpsN * Config::kLanesN * Config::kThreadN + lane % Config::kLanesN * Config::kRun;
  }
  __device__ int m(int i) const {
    return first_m + i / Config::kRun * Config::kLanesM * Config::kRun + i % Config::kRun;
  }
  __device__ int n(int j) const {
    return first_n + j / Config::kRun * Config::kLanesN * Config::kRun + j % Config::kRun;
  }
};

// Adds the products of depths [begin, end) to acc. Depths beyond `end` read as zero, so there is no tail.
template <typename Config, typename Gemm, typename Acc, typename LoaderA, typename LoaderB>
__device__ __forceinline__ void mainloop(const Gemm& gemm, SimtStorage<Acc, Config>& smem, LoaderA& loader_a,
                                         LoaderB& loader_b, int32_t begin, int32_t end,
                                         Acc (&acc)[Config::kThreadM][Config::kThreadN]) {
  constexpr int kDepth = Config::kDepth;
  const ThreadTile<Config> thread;
  const int tid = static_cast<int>(threadIdx.x);

  auto tabulate = [&](int stage, int32_t first) {
    const int32_t depth = first + tid % 32;
    if (tid < kDepth) smem.depth_a[stage][tid] = depth < end ? gemm.a_depth(depth) : outside();
    if (tid >= 32 && tid < 32 + kDepth) smem.depth_b[stage][tid - 32] = depth < end ? gemm.b_depth(depth) : outside();
  };
  auto multiply = [&](int stage, int first, int last) {
#pragma unroll
    for (int k = first; k < last; ++k) {
      alignas(16) Acc a[Config::kThreadM], b[Config::kThreadN];
#pragma unroll
      for (int i = 0; i < Config::kThreadM; i += Config::kRun) {
        *reinterpret_cast<Vector<Acc, 4>*>(a + i) =
            *reinterpret_cast<const Vector<Acc, 4>*>(&smem.a[stage].data[k][thread.m(i)]);
      }
#pragma unroll
      for (int j = 0; j < Config::kThreadN; j += Config::kRun) {
        *reinterpret_cast<Vector<Acc, 4>*>(b + j) =
            *reinterpret_cast<const Vector<Acc, 4>*>(&smem.b[stage].data[k][thread.n(j)]);
      }
#pragma unroll
      for (int i = 0; i < Config::kThreadM; ++i) {
#pragma unroll
        for (int j = 0; j < Config::kThreadN; ++j) acc[i][j] += a[i] * b[j];
      }
    }
  };

  tabulate(0, begin);
  tabulate(1, begin + kDepth);
  __syncthreads();
  loader_a.load(smem.depth_a[0]);
  loader_b.load(smem.depth_b[0]);
  loader_a.store(smem.a[0]);
  loader_b.store(smem.b[0]);
  __syncthreads();
  int stage = 0;
  for (int32_t depth = begin; depth < end; depth += kDepth, stage ^= 1) {
    // The operands take turns in flight: staging both at once would cost the second block per SM.
    loader_a.load(smem.depth_a[stage ^ 1]);
    multiply(stage, 0, kDepth / 2);
    loader_a.store(smem.a[stage ^ 1]);
    loader_b.load(smem.depth_b[stage ^ 1]);
    multiply(stage, kDepth / 2, kDepth);
    loader_b.store(smem.b[stage ^ 1]);
    // The loads of the step before this one were the last to read this table.
    tabulate(stage, depth + 2 * kDepth);
    __syncthreads();
  }
}

}  // namespace fastconv
