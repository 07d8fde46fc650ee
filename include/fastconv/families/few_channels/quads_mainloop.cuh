// Images of few channels by warpgroups: 8x8 pixels times 64 filters, in scaled parts; see
// families/few_channels/quads.h.
#pragma once

#include "fastconv/families/few_channels/quad_words.cuh"
#include "fastconv/families/few_channels/quads.h"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/wgmma.cuh"
#include "fastconv/tile/split.h"

namespace fastconv {

// A block's filters on their way from what has been brought to cells, as a product's columns want them.
template <bool kChannelsInner>
struct QuadsCellPacking {
  const QuadsParams& params;
  int32_t filters;  // that exist
  uint32_t smem;

  // A thread has one filter, of which it packs some cells.
  template <QuadsOperands kOperands>
  __device__ __forceinline__ void pack(float scale) const {
    static_assert(kOperands == QuadsOperands::kScaledParts);
    const int32_t column = static_cast<int32_t>(threadIdx.x) % kQuadsSquareFilters;
    const int32_t filter = quads_square_filter(kChannelsInner, column);
    const auto taps_w = static_cast<int32_t>(params.by_taps_w.divisor);
    const auto step = static_cast<int32_t>(blockDim.x) / kQuadsSquareFilters;
#pragma unroll 2
    for (auto cell = static_cast<int32_t>(threadIdx.x) / kQuadsSquareFilters; cell < params.cells.steps * 2;
         cell += step) {
      int32_t r, s;
      params.cells.by_columns.divmod(cell, r, s);
      s *= kQuadsCellTaps;
      uint32_t quads[kQuadsCellTaps][kQuadWords<kOperands>];
#pragma unroll
      for (int t = 0; t < kQuadsCellTaps; ++t) {
        const int32_t tap = r * taps_w + s + t;
        const bool exists = s + t < taps_w && tap < params.taps && filter < filters;
        const uint32_t from = smem + params.raw_at() + (filter * params.filter_elements + tap * params.raw_tap) * 4;
        uint32_t values[kQuadChannels];
#pragma unroll
        for (int c = 0; c < kQuadChannels; ++c) {
          values[c] = exists && c < params.channels ? ptx::load_shared4(from + c * params.raw_channel * 4) : 0;
        }
        put_together<kOperands>(values, scale, quads[t]);
      }
      const uint32_t to = smem + params.filter_at + (cell * kQuadsSquareFilters + column) * kQuadsCellBytes;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        ptx::store_shared16(
            to + part * params.cells.filter_part_bytes(),
            make_uint4(quads[0][2 * part], quads[0][2 * part + 1], quads[1][2 * part], quads[1][2 * part + 1]));
      }
    }
  }
};

// Sums of a square, of which a warp has two rows, a lane a pixel of each: two filters of every eight columns.
template <bool kChannelsInner>
struct QuadsSquare {
  static constexpr int kSums = kQuadsSquareFilters / 2;
  float sum[kSums];

  // As QuadsUnit::multiply_scaled(), which see; large products are added up while the small ones are on their way.
  // `pixels`: where the first one's first cell is.
  __device__ __forceinline__ void multiply_scaled(const QuadsParams& params, uint32_t smem, uint32_t pixels,
                                                  float back) {
    const uint32_t high = ptx::descriptor_high(params.cell_place(params.h.source_step, 0), ptx::Swizzle::kNone);
    const uint32_t filter_high = ptx::descriptor_high(kQuadsSquare * kQuadsCellBytes, ptx::Swizzle::kNone);
    const uint32_t first = ptx::descriptor_low(pixels, 0);
    uint32_t filter = ptx::descriptor_low(smem + params.filter_at, kQuadsCellBlock);
    const uint32_t part = params.cells.part_bytes >> 4, filter_part = params.cells.filter_part_bytes() >> 4;
    auto times = [&](float (&d)[kSums], uint32_t low, uint32_t of_filter, int accumulate) {
      ptx::wgmma<__half, ptx::Major::kK, ptx::Major::kK>(d, ptx::descriptor(low, high),
                                                         ptx::descriptor(of_filter, filter_high), accumulate);
    };
    float large[kSums], small[kSums];
#pragma unroll
    for (float& value : sum) value = 0;
    uint32_t next = params.cells.step[0];  // before it is needed
#pragma unroll 1
    for (int32_t k = 0; k < params.cells.steps; ++k, filter += 2 * kQuadsCellBlock >> 4) {
      const uint32_t low = first + next;
      ptx::wgmma_fence();
      times(large, low, filter, 0);
      ptx::wgmma_commit();
      times(small, low + part, filter, k);
      times(small, low, filter + filter_part, 1);
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

  // The sum of a pixel of the warp's row `row`, and of a lane's filter number `filter`, in their order in the output.
  __device__ __forceinline__ float at(int row, int filter) const { return sum[filter / 2 * 4 + row * 2 + filter % 2]; }
  static __device__ __forceinline__ int32_t filter_of(int32_t lane, int filter) {
    return quads_square_filter(kChannelsInner, filter / 2 * 8 + lane % 4 * 2 + filter % 2);
  }
};

}  // namespace fastconv
