// Narrow groups: the products of a warp. An output's rows, [pixel][chunk], lie at the same distances from its first one
// for all pixels of a block; a set's filters are rows too, [tap and chunk][filter], so that both are operands of tensor
// cores as they lie. Groups never share a product: zeros between them would make NaNs of a neighbour's infinities.
#pragma once

#include <cstdint>

#include "fastconv/families/grouped/config.h"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/warpgroup.cuh"

namespace fastconv {

inline constexpr int kGroupedBlocks = 4;  // of pixels a lane has rows of: 16 each on tensor cores, else 32

// Where the operands of a reduction are in shared memory.
struct GroupedOperandRows {
  int32_t pixel[kGroupedBlocks];  // a lane's, from the group's first row on
  uint32_t group, table, filter;  // that row; distances of the reduction's rows; the set's first row of filters
};

// Products on tensor cores: lanes 0 to 15 name rows of 16 pixels, the others those of the next tap or chunk.
template <typename T, int kTiles>
struct GroupedTensorSums {
  static constexpr int kDepthBytes = kTiles * 8 * kGroupedRowBytes;  // of the filters
  float sum[kGroupedBlocks][kTiles][4];

  static __device__ __forceinline__ int pixel() { return static_cast<int>(threadIdx.x % 16); }
  // Of the table: those of lanes 0 to 15 of two products, then those of the others.
  static __device__ __forceinline__ int entry(int depth) { return (depth & ~3) | depth % 2 * 2 | depth / 2 % 2; }

  // Rows `begin`, a multiple of four, to `end` of the reduction.
  __device__ __forceinline__ void multiply(const GroupedOperandRows& rows, int begin, int end) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (auto& tiles : sum) {
#pragma unroll
      for (auto& tile : tiles) tile[0] = tile[1] = tile[2] = tile[3] = 0.f;
    }
    uint32_t table = rows.table + begin * 4 + lane / 16 * 8;
    uint32_t filter = rows.filter + begin * kDepthBytes + lane * 4;
    uint2 row = ptx::load_shared8(table);
    int left = end - begin;
#pragma unroll 1
    for (; left >= 4; left -= 4) {
      table += 16;
      const uint2 next = ptx::load_shared8(table);  // the table ends with spare entries
      multiply<2>(rows, row.x, filter);
      multiply<2>(rows, row.y, filter + 2 * kDepthBytes);
      filter += 4 * kDepthBytes;
      row = next;
    }
    if (left >= 2) {
      multiply<2>(rows, row.x, filter);
      filter += 2 * kDepthBytes;
      row.x = row.y;
    }
    if (left % 2 != 0) multiply<1>(rows, row.x, filter);
  }

  // A lane has pairs of filters that lie side by side: f(pixel from the lane's first, sums of a pair's two filters).
  static constexpr int kPairs = kTiles;
  static __device__ __forceinline__ int first_pixel() { return static_cast<int>(threadIdx.x % 32 / 4); }
  static __device__ __forceinline__ int filter(int pair) { return pair * 8 + static_cast<int>(threadIdx.x % 4 * 2); }
  template <typename F>
  __device__ __forceinline__ void for_pixels(int pair, F&& f) {
#pragma unroll
    for (int m = 0; m < kGroupedBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        f(m * 16 + half * 8, sum[m][pair][2 * half], sum[m][pair][2 * half + 1]);
      }
    }
  }

 private:
  // kRows of the reduction; what lanes name beyond is not used.
  template <int kRows>
  __device__ __forceinline__ void multiply(const GroupedOperandRows& rows, uint32_t distance, uint32_t filter) {
    const uint32_t row = rows.group + distance;
    uint32_t b[kTiles][kRows];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) b[t][i] = ptx::load_shared4(filter + i * kDepthBytes + t * 128);
    }
#pragma unroll
    for (int m = 0; m < kGroupedBlocks; ++m) {
      uint32_t a[4];
      ptx::ldmatrix4<false>(row + rows.pixel[m], a);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if constexpr (kRows == 2) {
          ptx::mma(T{}, sum[m][t], a, b[t][0], b[t][1]);
        } else {
          ptx::mma(T{}, sum[m][t], a[0], a[1], b[t][0]);
        }
      }
    }
  }
};

// Products by multiply-adds: a lane has a pixel of each block, and all of the set's filters.
struct GroupedFloatSums {
  static constexpr int kFilters = 8, kChunk = 4;
  float sum[kGroupedBlocks][kFilters];

  static __device__ __forceinline__ int pixel() { return static_cast<int>(threadIdx.x % 32); }
  static __device__ __forceinline__ int entry(int depth) { return depth; }

  __device__ __forceinline__ void multiply(const GroupedOperandRows& rows, int begin, int end) {
#pragma unroll
    for (auto& sums : sum) {
#pragma unroll
      for (float& value : sums) value = 0.f;
    }
    uint32_t filter = rows.filter + begin * kFilters * kGroupedRowBytes;
#pragma unroll 1
    for (int depth = begin; depth < end; ++depth) {
      const uint32_t row = rows.group + ptx::load_shared4(rows.table + depth * 4);
      uint4 x[kGroupedBlocks];
#pragma unroll
      for (int m = 0; m < kGroupedBlocks; ++m) x[m] = ptx::load_shared16(row + rows.pixel[m]);
#pragma unroll
      for (int k = 0; k < kFilters; ++k) {
        const uint4 w = ptx::load_shared16(filter + k * kGroupedRowBytes);
#pragma unroll
        for (int m = 0; m < kGroupedBlocks; ++m) {
          float& s = sum[m][k];
          s = __fmaf_rn(__uint_as_float(x[m].x), __uint_as_float(w.x), s);
          s = __fmaf_rn(__uint_as_float(x[m].y), __uint_as_float(w.y), s);
          s = __fmaf_rn(__uint_as_float(x[m].z), __uint_as_float(w.z), s);
          s = __fmaf_rn(__uint_as_float(x[m].w), __uint_as_float(w.w), s);
        }
      }
      filter += kFilters * kGroupedRowBytes;
    }
  }

  static constexpr int kPairs = kFilters / 2;
  static __device__ __forceinline__ int first_pixel() { return pixel(); }
  static __device__ __forceinline__ int filter(int pair) { return 2 * pair; }
  template <typename F>
  __device__ __forceinline__ void for_pixels(int pair, F&& f) {
#pragma unroll
    for (int m = 0; m < kGroupedBlocks; ++m) f(m * 32, sum[m][2 * pair], sum[m][2 * pair + 1]);
  }
};

}  // namespace fastconv
