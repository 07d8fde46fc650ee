// From the sums of the mma family to output: through shared memory, where warps that share outputs add theirs, and
// which makes runs of neighbours of them whatever the output's layout.
#pragma once

#include "fastconv/families/implicit_gemm/mma_mainloop.cuh"
#include "fastconv/families/implicit_gemm/store_tile.cuh"
#include "fastconv/ptx/shared_memory.cuh"

namespace fastconv {

// Where a lane's four sums of a product lie in its warp's 64x64: in `half` of the product's 16 rows, and in column `i`
// of the two that the lane has. The operands' order makes runs of four rows, and of four columns, of neighbouring
// products'.
struct MmaSumPlace {
  static __device__ __forceinline__ int row(int lane, int tile, int half) {
    return tile / 2 * 32 + lane / 4 * 4 + tile % 2 * 2 + half;
  }
  static __device__ __forceinline__ int column(int lane, int tile, int i) {
    return tile / 4 * 32 + i * 16 + lane % 4 * 4 + tile % 4;
  }
};

// Half of the tile's rows of each of the warps that share outputs: columns of chunks of four rows, in an order in which
// lanes that write or read at once meet different banks.
template <typename Config>
struct MmaSums {
  static constexpr int kRows = Config::kM / 2, kPartBytes = kRows * Config::kN * 4;
  static_assert(Config::kWarpsK * kPartBytes <= kMmaSumBytes);

  static __device__ __forceinline__ uint32_t offset(int row, int column) {
    return ((column * (kRows / 4) + (row / 4 ^ column / 4 % 4 * 2)) * 4 + row % 4) * 4;
  }
  // A tile has 64 rows for every 32 of a half.
  static __device__ __forceinline__ int tile_row(int row, int half) { return row / 32 * 64 + half * 32 + row % 32; }

  // A warp's sums of a half.
  static __device__ __forceinline__ void write(uint32_t part, const MmaWarp& warp, int half,
                                               const MmaSumsOfWarp& sums) {
    const int lane = static_cast<int>(threadIdx.x) % 32, first = warp.row / 2;
#pragma unroll
    for (int tile = 0; tile < kMmaWarpTile / 8; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = warp.column + MmaSumPlace::column(lane, tile, i);
        const auto& low = sums[2 * half][tile];
        const auto& high = sums[2 * half + 1][tile];
        ptx::store_shared_floats(part + offset(first + MmaSumPlace::row(lane, 0, 0), column), low[i], low[2 + i],
                                 high[i], high[2 + i]);
      }
    }
  }

  // Four outputs from shared memory: side by side along m, or along n.
  template <bool kAlongN>
  static __device__ __forceinline__ Vector<float, 4> read(uint32_t sums, int row, int column) {
    Vector<float, 4> four;
    if constexpr (kAlongN) {
#pragma unroll
      for (int i = 0; i < 4; ++i) four.data[i] = __uint_as_float(ptx::load_shared4(sums + offset(row, column + i)));
    } else {
      const uint4 v = ptx::load_shared16(sums + offset(row, column));
      four = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
    }
    return four;
  }

  // All threads together. `run` of the output; without one its elements are stored one by one.
  template <bool kAlongN, typename Out>
  static __device__ __forceinline__ void store(uint32_t sums, const OutputTable<float, Config>& table, Out* base,
                                               int half, bool run) {
    constexpr int kUnits = kRows * Config::kN / 4;
#pragma unroll 2
    for (int unit = static_cast<int>(threadIdx.x); unit < kUnits; unit += kMmaThreads) {
      // Along n, eight rows by four runs of a warp's lanes.
      const int row = kAlongN ? unit / 32 % (kRows / 8) * 8 + unit / 4 % 8 : unit % (kRows / 4) * 4;
      const int column = kAlongN ? (unit / (4 * kRows) * 4 + unit % 4) * 4 : unit / (kRows / 4);
      Vector<float, 4> four = read<kAlongN>(sums, row, column);
#pragma unroll
      for (int part = 1; part < Config::kWarpsK; ++part) {
        const Vector<float, 4> more = read<kAlongN>(sums + part * kPartBytes, row, column);
#pragma unroll
        for (int i = 0; i < 4; ++i) four.data[i] += more.data[i];
      }
      Vector<Out, 4> out;
#pragma unroll
      for (int i = 0; i < 4; ++i) out.data[i] = narrow<Out>(table.filter(column + (kAlongN ? i : 0))(four.data[i]));
      const int m = tile_row(row, half);
      if (run) {
        const int64_t offset_m = table.m[m], offset_n = table.n[column];
        if (offset_m >= 0 && offset_n >= 0) *reinterpret_cast<Vector<Out, 4>*>(base + offset_m + offset_n) = out;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int64_t offset_m = table.m[m + (kAlongN ? 0 : i)], offset_n = table.n[column + (kAlongN ? i : 0)];
          if (offset_m >= 0 && offset_n >= 0) base[offset_m + offset_n] = out.data[i];
        }
      }
    }
  }
};

// `memory`: shared, of which nothing else is needed any more.
template <typename Config, typename Out>
__device__ __forceinline__ void store_mma_tile(const MmaSumsOfWarp& sums, uint32_t memory,
                                               const OutputTable<float, Config>& table, Out* base, OutputRun run) {
  using Sums = MmaSums<Config>;
  const MmaWarp warp = Config::warp(static_cast<int>(threadIdx.x) / 32);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    __syncthreads();
    Sums::write(memory + warp.part * Sums::kPartBytes, warp, half, sums);
    __syncthreads();
    if (run == OutputRun::kAlongN) {
      Sums::template store<true>(memory, table, base, half, true);
    } else {
      Sums::template store<false>(memory, table, base, half, run == OutputRun::kAlongM);
    }
  }
}

}  // namespace fastconv
