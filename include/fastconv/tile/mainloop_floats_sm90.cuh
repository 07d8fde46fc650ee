// Consumer of HaloStaging::kFloats: a warpgroup makes operands of float32 planes in registers, in as many parts as the
// filter has, and multiplies its M-blocks by every filter tap of every channel block of a tile.
#pragma once

#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/wgmma.cuh"
#include "fastconv/tile/halo_walk.cuh"
#include "fastconv/tile/mainloop_sm90.cuh"
#include "fastconv/tile/ring.cuh"
#include "fastconv/tile/split.h"

namespace fastconv {

template <typename T, int kBlockK, int kMBlocks, int kChannels, int kColumns, HaloOperands kOperands>
struct FloatsMainloop {
  static constexpr int kParts = parts_a_stage(HaloStaging::kFloats, kOperands, false);
  static constexpr bool kPromoted = kOperands == HaloOperands::kPromotedParts;
  static constexpr int kPixelBytes = kChannels * sizeof(T);                     // of the filter
  static constexpr int kDepth = 32 / sizeof(T), kSteps = kChannels / kDepth;    // channels of an instruction
  static constexpr int kFragments = kSteps * kMBlocks;                          // of a tap
  static constexpr int kAccumulators = kBlockK * kColumns / 2;                  // of one M-block, per thread
  static constexpr uint32_t kPartStep = kColumns * kBlockK * kPixelBytes >> 4;  // of the filter
  static constexpr ptx::Swizzle kSwizzle = ptx::swizzle_of(kPixelBytes);
  using Fragment = FloatFragment<kDepth>;
  using Operand = uint32_t[kParts][4];  // of a fragment
  using Sums = float[kMBlocks][kAccumulators];

  const HaloParams& params;
  const Tile& tile;
  int first_block;
  Fragment fragment;
  int32_t channel_bytes, row_bytes;
  FloatPlace pixel;  // of this lane in an M-block

  __device__ FloatsMainloop(const HaloParams& params, const Tile& tile, int first_block)
      : params(params),
        tile(tile),
        first_block(first_block),
        fragment(threadIdx.x % 128 / 32, threadIdx.x % 32),
        channel_bytes(4 * params.raw.box_w),
        row_bytes(kChannels * channel_bytes),
        pixel(float_pixel(params, fragment.pixel)) {}

  // `issued` is called when no stage is left to wait for, with wgmmas still in flight.
  template <typename F>
  static __device__ __forceinline__ void run(const HaloParams& params, const Tile& tile, int first_block, Ring& halo,
                                             Ring& filter, bool release_filter, bool elected, Sums& acc, F issued) {
    FloatsMainloop(params, tile, first_block).multiply(halo, filter, release_filter, elected, acc, issued);
  }

 private:
  // Of a tap: values of step k of M-block m.
  __device__ __forceinline__ void load(uint32_t stage, const FloatRows& rows, int tap_row, int tap_col, int k, int m,
                                       float (&v)[Fragment::kValues]) const {
    const FloatPlace block = float_block(params, first_block + m);
    uint32_t at[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // its pixels are of two groups, and filter columns have those of a row
      const int row = block.row + tap_row + (kColumns == 1 ? pixel.row + half * params.group_p : 0);
      const int column = block.column + pixel.column + half * params.group_q + tap_col;
      at[half] = stage + row * row_bytes + 4 * (column + rows.lead(row)) + k * kDepth * channel_bytes;
    }
#pragma unroll
    for (int i = 0; i < Fragment::kValues; ++i) {
      v[i] = __uint_as_float(ptx::load_shared4(at[Fragment::pixels(i) / 8] + Fragment::channels(i) * channel_bytes));
    }
  }

  static __device__ __forceinline__ void make_operand(const float (&v)[Fragment::kValues], Operand& operand) {
    if constexpr (kParts == 1) {
#pragma unroll
      for (int i = 0; i < 4; ++i) operand[0][i] = __float_as_uint(v[i]);  // the copy engine has rounded it
    } else {
      SplitParts parts(v);
#pragma unroll
      for (int part = 0; part < kParts - 1; ++part) parts.next(part == 0, split_scale(kParts), operand[part]);
      parts.last(operand[kParts - 1]);
    }
  }

  template <typename F>
  __device__ __forceinline__ void multiply(Ring& halo, Ring& filter, bool release_filter, bool elected, Sums& sums,
                                           F issued) const {
    const OutputPhase& phase = params.phase[tile.phase];
    const uint32_t b_high = ptx::descriptor_high(8 * kPixelBytes, kSwizzle);
    if constexpr (kPromoted) clear(sums);
    int accumulate = 0;
    uint32_t done_filter = 0;  // barrier to arrive on when it is known that the wgmmas that read the stage are done
    auto release = [&] {
      if (elected && done_filter != 0 && release_filter) ptx::mbarrier_arrive(done_filter);
    };
    Operand operand[2];
    for (int c_block = 0; c_block < params.c_blocks; ++c_block) {
      for (int g = phase.group_begin; g < phase.group_end; ++g) {
        const TapGroup& group = params.group[g];
        const FloatRows rows(params, tile, group);
        halo.wait_full();
        const uint32_t stage = halo.stage() + fragment.channel * channel_bytes;
        int tap_row = 0;
        for (int i = 0; i < group.rows; ++i, tap_row += group.row_step) {
          int tap_col = 0;
          for (int j = 0; j < group.cols; j += kColumns, tap_col += kColumns * group.col_step) {
            filter.wait_full();
            const uint32_t b_low = ptx::descriptor_low(filter.stage());
            auto product = [&](const Operand& a, int k, int first, int second, float (&acc)[kAccumulators],
                               int accumulate) {
              const uint32_t b = b_low + second * kPartStep + 2 * k;
              ptx::wgmma<T, ptx::Major::kK>(acc, a[first], ptx::descriptor(b, b_high), accumulate);
            };
            if constexpr (kPromoted) {
              Operand operands[kFragments];
#pragma unroll
              for (int f = 0; f < kFragments; ++f) {
                float v[Fragment::kValues];
                load(stage, rows, tap_row, tap_col, f / kMBlocks, f % kMBlocks, v);
                make_operand(v, operands[f]);
              }
              // Small products first, those of one size together: see split_scale().
              float weight = 1 / (split_scale(kParts) * split_scale(kParts));
#pragma unroll
              for (int size = kParts - 1; size >= 0; --size, weight *= split_scale(kParts)) {
                Sums acc;
                ptx::wgmma_fence();
#pragma unroll
                for (int f = 0; f < kFragments; ++f) {
#pragma unroll
                  for (int first = 0; first <= size; ++first) {
                    product(operands[f], f / kMBlocks, first, size - first, acc[f % kMBlocks],
                            f / kMBlocks + first == 0 ? 0 : 1);
                  }
                }
                ptx::wgmma_commit();
                ptx::wgmma_wait<0>();
#pragma unroll
                for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
                  for (int e = 0; e < kAccumulators; ++e) sums[m][e] += weight * acc[m][e];
                }
              }
              if (elected && release_filter) ptx::mbarrier_arrive(filter.empty());
            } else {
              static_assert(kFragments % 2 == 0);
#pragma unroll
              for (int f = 0; f < kFragments; ++f) {
                float v[Fragment::kValues];
                load(stage, rows, tap_row, tap_col, f / kMBlocks, f % kMBlocks, v);
                ptx::wgmma_wait<1>();  // whose fragment makes room for this one
                if (f == 1) release();
                make_operand(v, operand[f % 2]);
                ptx::wgmma_fence();
#pragma unroll
                for (int size = kParts - 1; size >= 0; --size) {
#pragma unroll
                  for (int first = 0; first <= size; ++first) {
                    product(operand[f % 2], f / kMBlocks, first, size - first, sums[f % kMBlocks],
                            f / kMBlocks == 0 && size == kParts - 1 && first == 0 ? accumulate : 1);
                  }
                }
                ptx::wgmma_commit();
              }
              accumulate = 1;
              done_filter = filter.empty();
            }
            filter.next();
          }
        }
        __syncwarp();
        if (elected) ptx::mbarrier_arrive(halo.empty());
        halo.next();
      }
    }
    issued();
    ptx::wgmma_wait<0>();
    release();
  }
};

}  // namespace fastconv
