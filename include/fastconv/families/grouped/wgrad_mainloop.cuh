// Weight gradient of narrow groups: the sums of a unit and how a pixel's products are added to them. Pixels are what
// the products sum over, so that tensor cores need the rows transposed: ldmatrix does it for 16 bits, and of float32
// every lane loads its own words. A unit's sums stay in registers from the first tile to the last.
#pragma once

#include <cstdint>
#include <type_traits>

#include "fastconv/families/grouped/wgrad_walk.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/warpgroup.cuh"

namespace fastconv {

// A row of shared memory, or zeros, from where on nothing is at a distance.
struct GroupedInputRow {
  uint32_t row;
  int32_t exists;

  __device__ __forceinline__ uint32_t at(int32_t distance) const { return row + exists * distance; }
};

// A group's rows of a tile that is staged. Pixels that do not exist have zeros in both operands: nothing of the image
// meets a zero that it would not meet by definition.
struct GroupedTileRows {
  const GroupedWgradParams& params;
  const GroupedTile& tile;
  uint32_t x, y, zeros;  // first rows; the row of zeros
  int32_t pixels;        // with those between the columns that exist, whose gradients are staged as zeros

  __device__ __forceinline__ GroupedInputRow input(int32_t index) const {
    const GroupedWgradPixel pixel(params, tile, index);
    return {pixel.exists ? x + pixel.row : zeros, pixel.exists};
  }
  // At a distance of some filters.
  __device__ __forceinline__ uint32_t gradient(int32_t index, int32_t filters) const {
    return index < pixels ? y + index * kGroupedRowBytes + filters : zeros;
  }
};

// From a group's first row. What is beyond the last row or filter meets others and is not used.
__device__ __forceinline__ int32_t grouped_tap_distance(const GroupedWgradParams& params, const GroupedTile& tile,
                                                        int32_t row) {
  return tile.tap(params, min(row, params.reduction - 1)).row;
}
__device__ __forceinline__ int32_t grouped_filter_distance(const GroupedWgradParams& params, int32_t filter) {
  return min(filter / params.chunk, params.y_rows.chunks - 1) * params.y_rows.plane_bytes;
}

template <int kTiles>
struct GroupedTensorQuads {
  static constexpr int kQuads = kGroupedUnitBlocks * kTiles;
  float sum[kGroupedUnitBlocks][kTiles][4];

  __device__ __forceinline__ GroupedTensorQuads() {
#pragma unroll
    for (auto& tiles : sum) {
#pragma unroll
      for (auto& tile : tiles) tile[0] = tile[1] = tile[2] = tile[3] = 0.f;
    }
  }
  __device__ __forceinline__ const float (&quad(int index) const)[4] { return sum[index / kTiles][index % kTiles]; }
};

// 16 bits: 16 pixels at once.
template <typename T, int kTiles>
struct GroupedHalfQuads : GroupedTensorQuads<kTiles> {
  // Lanes name rows of input as the operand's registers have them, a tap of eight pixels and the next one, then of the
  // next eight; and of gradients 16 pixels of eight filters, then of the next eight.
  int32_t tap[kGroupedUnitBlocks], filters;

  __device__ __forceinline__ GroupedHalfQuads(const GroupedWgradParams& params, const GroupedTile& tile,
                                              const GroupedWgradUnit& unit) {
    const int32_t lane = ptx::lane();
#pragma unroll
    for (int b = 0; b < kGroupedUnitBlocks; ++b) {
      tap[b] = grouped_tap_distance(params, tile, unit.first_row + 2 * b + lane / 8 % 2);
    }
    filters = grouped_filter_distance(params, unit.first_filter + lane / 16 * 8);
  }

  // Pixels from `first` on.
  __device__ __forceinline__ void add(const GroupedTileRows& rows, int32_t first) {
    const int32_t lane = ptx::lane();
    const GroupedInputRow input = rows.input(first + lane / 16 * 8 + lane % 8);
    const uint32_t gradient = rows.gradient(first + lane % 16, filters);
    uint32_t y[2 * kTiles];
    if constexpr (kTiles == 2) {
      ptx::ldmatrix4<true>(gradient, y);
    } else {
      ptx::ldmatrix2<true>(gradient, y);
    }
#pragma unroll
    for (int b = 0; b < kGroupedUnitBlocks; ++b) {
      uint32_t x[4];
      ptx::ldmatrix4<true>(input.at(tap[b]), x);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) ptx::mma(T{}, this->sum[b][t], x, y[2 * t], y[2 * t + 1]);
    }
  }
};

// TF32: 8 pixels at once, in an order in which neighbouring rows of four channels are in different banks: a lane has
// two pixels that follow each other.
template <int kTiles>
struct GroupedTf32Quads : GroupedTensorQuads<kTiles> {
  int32_t tap[kGroupedUnitBlocks][2], filters[kTiles];

  __device__ __forceinline__ GroupedTf32Quads(const GroupedWgradParams& params, const GroupedTile& tile,
                                              const GroupedWgradUnit& unit) {
    const int32_t at = ptx::lane() / 4, word = at % 4 * 4;
#pragma unroll
    for (int b = 0; b < kGroupedUnitBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        tap[b][i] = grouped_tap_distance(params, tile, unit.first_row + 4 * b + 2 * i + at / 4) + word;
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      filters[t] = grouped_filter_distance(params, unit.first_filter + 8 * t + at) + word;
    }
  }

  __device__ __forceinline__ void add(const GroupedTileRows& rows, int32_t first) {
    const int32_t pixel = first + ptx::lane() % 4 * 2;
    const GroupedInputRow input[2] = {rows.input(pixel), rows.input(pixel + 1)};
    uint32_t y[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) y[t][i] = ptx::load_shared4(rows.gradient(pixel + i, filters[t]));
    }
#pragma unroll
    for (int b = 0; b < kGroupedUnitBlocks; ++b) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = ptx::load_shared4(input[i / 2].at(tap[b][i % 2]));
#pragma unroll
      for (int t = 0; t < kTiles; ++t) ptx::mma(float{}, this->sum[b][t], x, y[t][0], y[t][1]);
    }
  }
};

// Multiply-adds: a thread has a unit of its own, two rows of four channels by eight filters.
struct GroupedFloatQuads {
  static constexpr int kRows = 2, kFilters = 8, kQuads = kRows * kFilters;
  float sum[kRows][kFilters][4];
  int32_t tap[kRows], filters[2];

  __device__ __forceinline__ GroupedFloatQuads(const GroupedWgradParams& params, const GroupedTile& tile,
                                               const GroupedWgradUnit& unit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      tap[i] = grouped_tap_distance(params, tile, unit.first_row + i);
      filters[i] = grouped_filter_distance(params, unit.first_filter + 4 * i);
    }
#pragma unroll
    for (auto& row : sum) {
#pragma unroll
      for (auto& quad : row) quad[0] = quad[1] = quad[2] = quad[3] = 0.f;
    }
  }
  __device__ __forceinline__ const float (&quad(int index) const)[4] { return sum[index / kFilters][index % kFilters]; }

  __device__ __forceinline__ void add(const GroupedTileRows& rows, int32_t pixel) {
    const GroupedInputRow input = rows.input(pixel);
    uint4 x[2], y[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[i] = ptx::load_shared16(input.at(tap[i])), y[i] = ptx::load_shared16(rows.gradient(pixel, filters[i]));
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int k = 0; k < kFilters; ++k) {
        const uint4& four = y[k / 4];
        const uint32_t word = k % 4 == 0 ? four.x : k % 4 == 1 ? four.y : k % 4 == 2 ? four.z : four.w;
        const float gradient = __uint_as_float(word);
        float (&s)[4] = sum[i][k];
        s[0] = __fmaf_rn(__uint_as_float(x[i].x), gradient, s[0]);
        s[1] = __fmaf_rn(__uint_as_float(x[i].y), gradient, s[1]);
        s[2] = __fmaf_rn(__uint_as_float(x[i].z), gradient, s[2]);
        s[3] = __fmaf_rn(__uint_as_float(x[i].w), gradient, s[3]);
      }
    }
  }
};

}  // namespace fastconv
