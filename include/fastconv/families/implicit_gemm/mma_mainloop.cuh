// The loop of the mma family: operands' stages in shared memory, filled ahead of the products of tensor cores.
#pragma once

#include "fastconv/families/implicit_gemm/operand.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {

// A kernel's tile. A warp's 64x64 sums are those of 4 by 8 products of 16x8.
template <typename T, int m, int n>
struct MmaTile {
  static_assert(sizeof(T) == kMmaElement);
  static constexpr MmaConfig kConfig{m, n};
  static constexpr int kM = m, kN = n, kDepth = kConfig.depth(), kThreads = kMmaThreads;
  static constexpr int kWarpsN = n / kMmaWarpTile, kWarpsK = kConfig.warps_k(), kWarpsMN = kMmaWarps / kWarpsK;
  static constexpr int kParts = kDepth * sizeof(T) / kMmaBlockBytes / kWarpsK * 2;  // steps that a warp has of a stage
  static_assert(kWarpsMN == m / kMmaWarpTile * kWarpsN);

  static __device__ __forceinline__ MmaWarp warp(int index) {
    const int outputs = index % kWarpsMN;
    return {outputs / kWarpsN * kMmaWarpTile, outputs % kWarpsN * kMmaWarpTile, index / kWarpsMN};
  }
};

using MmaSumsOfWarp = float[kMmaWarpTile / 16][kMmaWarpTile / 8][4];

// All of a stage's products of a warp. beside(i) is called for each of its kParts steps, to do something else
// meanwhile.
template <typename T, typename Config, bool kRowsA, bool kRowsB, typename F>
__device__ __forceinline__ void multiply_stage(uint32_t a_stage, uint32_t b_stage, MmaSumsOfWarp& sums, F&& beside) {
  using A = MmaFragments<kRowsA, false, Config::kM, Config::kDepth>;
  using B = MmaFragments<kRowsB, true, Config::kN, Config::kDepth>;
  const MmaWarp warp = Config::warp(static_cast<int>(threadIdx.x) / 32);
  const auto place_a = A::place(warp.row);
  const auto place_b = B::place(warp.column);
  A a;
  B b;
#pragma unroll
  for (int part = 0; part < Config::kParts; ++part) {
    const int block = part / 2 * Config::kWarpsK + warp.part, step = part % 2;
    a.load(a_stage, place_a, block, step);
    b.load(b_stage, place_b, block, step);
    beside(part);
#pragma unroll
    for (int i = 0; i < kMmaWarpTile / 16; ++i) {
      uint32_t rows[4];
      a.operand(step, i, rows);
#pragma unroll
      for (int j = 0; j < kMmaWarpTile / 8; ++j) {
        uint32_t columns[2];
        b.operand(step, j, columns);
        ptx::mma(T{}, sums[i][j], rows, columns[0], columns[1]);
      }
    }
  }
}

// Coords of an operand's depths: those of one half of the table are worked out, long before a stage needs them, in
// place of some that no stage needs any more.
struct DepthTable {
  Coord coords[2 * kMmaTableHalf];

  __device__ __forceinline__ Coord& at(int32_t depth) {
    return coords[static_cast<uint32_t>(depth) % (2 * kMmaTableHalf)];
  }
};

// Until all but so many of this thread's groups of copies are there.
__device__ __forceinline__ void wait_for_copies(int pending) {
  switch (pending) {
    case 0: return ptx::async_copy_wait<0>();
    case 1: return ptx::async_copy_wait<1>();
    case 2: return ptx::async_copy_wait<2>();
    case 3: return ptx::async_copy_wait<3>();
    default: return ptx::async_copy_wait<kMaxMmaStages - 2>();
  }
}

}  // namespace fastconv
