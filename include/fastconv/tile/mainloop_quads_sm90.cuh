// Images of few channels by warpgroups: 8x8 pixels times 64 filters; see tile/quads.h.
#pragma once

#include <type_traits>

#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/wgmma.cuh"
#include "fastconv/tile/quad_words.cuh"
#include "fastconv/tile/quads.h"
#include "fastconv/tile/split.h"

namespace fastconv {

// A block's filters on their way from what has been brought to cells, as a product's columns want them.
template <bool kChannelsInner, QuadsOperands kOperands>
struct QuadsCellPacking {
  static constexpr int32_t kTaps = quads_cell_taps(kOperands);
  const QuadsParams& params;
  int32_t filters;  // that exist
  uint32_t smem;

  // `scale`: of scaled parts. A thread has one filter, of which it packs some cells.
  template <QuadsOperands kTo>
  __device__ __forceinline__ void pack(float scale = 1) const {
    constexpr int kWords = kQuadWords<kTo>, kParts = kTaps;  // with as many parts as taps, a cell is 16 bytes
    const int32_t column = static_cast<int32_t>(threadIdx.x) % kQuadsSquareFilters;
    const int32_t filter = quads_square_filter(kChannelsInner, column);
    const auto taps_w = static_cast<int32_t>(params.by_taps_w.divisor);
    const auto step = static_cast<int32_t>(blockDim.x) / kQuadsSquareFilters;
#pragma unroll 2
    for (auto cell = static_cast<int32_t>(threadIdx.x) / kQuadsSquareFilters; cell < params.cells.steps * 2;
         cell += step) {
      int32_t r, first;
      params.cells.by_columns.divmod(cell, r, first);
      first *= kTaps;
      uint32_t quads[kTaps][kWords];
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
        const int32_t tap = r * taps_w + first + t;
        const bool exists = first + t < taps_w && tap < params.taps && filter < filters;
        const uint32_t from = smem + (filter * params.raw.elements + tap * params.raw.tap) * 4;
        uint32_t values[kQuadChannels];
#pragma unroll
        for (int c = 0; c < kQuadChannels; ++c) {
          values[c] = exists && c < params.channels ? ptx::load_shared4(from + c * params.raw.channel * 4) : 0;
        }
        put_together<kTo>(values, scale, quads[t]);
      }
      const uint32_t to = smem + params.filter_at + (cell * kQuadsSquareFilters + column) * kQuadsCellBytes;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        uint32_t words[kQuadChannels];
#pragma unroll
        for (int i = 0; i < kQuadChannels; ++i) {
          constexpr int kOfTap = kQuadChannels / kTaps;
          words[i] = quads[i / kOfTap][part * kOfTap + i % kOfTap];
        }
        ptx::store_shared16(to + part * params.cells.filter_part_bytes(),
                            make_uint4(words[0], words[1], words[2], words[3]));
      }
    }
  }
};

// What a block has in shared memory besides, by so many threads.
__device__ __forceinline__ void clear_zero_cells(const QuadsParams& params, uint32_t smem, int32_t thread,
                                                 int32_t threads) {
  for (int32_t i = thread * 16; i < params.cells.zero_bytes; i += threads * 16) {
    ptx::store_shared16(smem + params.cells.zeros_at + i, make_uint4(0, 0, 0, 0));
  }
}

// Sums of a square, of which a warp has two rows, a lane a pixel of each: two filters of every eight columns.
template <bool kChannelsInner>
struct QuadsSquare {
  static constexpr int kSums = kQuadsSquareFilters / 2;
  float sum[kSums];

  // `pixels`: where the first one's first cell is.
  template <QuadsOperands kOperands>
  __device__ __forceinline__ void multiply(const QuadsParams& params, uint32_t smem, uint32_t pixels, float back) {
    const uint32_t filter_high = ptx::descriptor_high(kQuadsSquare * kQuadsCellBytes, ptx::Swizzle::kNone);
    const uint32_t filter = ptx::descriptor_low(smem + params.filter_at, kQuadsCellBlock);
    constexpr uint32_t kFilterStep = 2 * kQuadsCellBlock >> 4;
    const uint32_t high = ptx::descriptor_high(params.cell_place(params.h.source_step, 0), ptx::Swizzle::kNone);
    const uint32_t first = ptx::descriptor_low(pixels, 0);
    auto times = [&](auto value, float (&d)[kSums], uint32_t low, uint32_t of_filter, int accumulate) {
      ptx::wgmma<decltype(value), ptx::Major::kK, ptx::Major::kK>(d, ptx::descriptor(low, high),
                                                                  ptx::descriptor(of_filter, filter_high), accumulate);
    };
    const int32_t steps = params.cells.steps;
    if constexpr (kOperands == QuadsOperands::kTf32) {
      const bool lacks_cell = params.cells.zero_bytes > 0;
#pragma unroll 1
      for (int32_t k = 0; k < steps; ++k) {
        uint32_t low = first + params.cells.step[k];
        if (lacks_cell && k + 1 == steps) low += (smem + params.cells.zeros_at - pixels) >> 4 << 16;
        ptx::wgmma_fence();
        times(float{}, sum, low, filter + k * kFilterStep, k);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
      }
      ptx::wgmma_wait<0>();
    } else {
      // As QuadsUnit::multiply_scaled(), which see; large products are added up while the small ones are on their way.
      const uint32_t part = params.cells.part_bytes >> 4, filter_part = params.cells.filter_part_bytes() >> 4;
      float large[kSums], small[kSums];
#pragma unroll
      for (float& value : sum) value = 0;
      uint32_t next = params.cells.step[0];  // before it is needed
#pragma unroll 1
      for (int32_t k = 0; k < steps; ++k) {
        const uint32_t low = first + next, of_filter = filter + k * kFilterStep;
        ptx::wgmma_fence();
        times(__half{}, large, low, of_filter, 0);
        ptx::wgmma_commit();
        times(__half{}, small, low + part, of_filter, k);
        times(__half{}, small, low, of_filter + filter_part, 1);
        ptx::wgmma_commit();
        next = params.cells.step[min(k + 1, kQuadsMostSteps - 1)];
        ptx::wgmma_wait<1>();
#pragma unroll
        for (int i = 0; i < kSums; ++i) sum[i] = __fmaf_rn(large[i], back, sum[i]);
      }
      ptx::wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        small[i] *= 1 / split_scale(2, Operand::kFp16);
        sum[i] = __fmaf_rn(small[i], back, sum[i]);
      }
    }
  }

  // The sum of a pixel of the warp's row `row`, and of a lane's filter number `filter`, in their order in the output.
  __device__ __forceinline__ float at(int row, int filter) const { return sum[filter / 2 * 4 + row * 2 + filter % 2]; }
  static __device__ __forceinline__ int32_t filter_of(int32_t lane, int filter) {
    return quads_square_filter(kChannelsInner, filter / 2 * 8 + lane % 4 * 2 + filter % 2);
  }

  __device__ __forceinline__ void add_bias(uint32_t bias, int32_t lane) {
#pragma unroll
    for (int k = 0; k < kSums / 2; ++k) {
      const float value = __uint_as_float(ptx::load_shared4(bias + filter_of(lane, k) * 4));
#pragma unroll
      for (int row = 0; row < 2; ++row) sum[k / 2 * 4 + row * 2 + k % 2] += value;
    }
  }

  // Pixels to lines of shared memory, row by row; those of half of the lanes in another order, for other banks.
  __device__ __forceinline__ void store_lines(uint32_t lines, int32_t lane) const {
    static_assert(kChannelsInner);
    const bool odd = lane / 4 % 2 != 0;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int i = 0; i < kSums / 8; ++i) {
        float four[kQuadsFilters];
#pragma unroll
        for (int f = 0; f < kQuadsFilters; ++f) {
          four[f] = odd ? at(row, (i ^ 1) * kQuadsFilters + f) : at(row, i * kQuadsFilters + f);
        }
        const uint32_t line = lines + (row * kQuadsSquare + lane / 4) * kQuadsLine;
        ptx::store_shared_floats(line + (odd ? i ^ 1 : i) * 64 + lane % 4 * 16, four[0], four[1], four[2], four[3]);
      }
    }
  }
};

}  // namespace fastconv
