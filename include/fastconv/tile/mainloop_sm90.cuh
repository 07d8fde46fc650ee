// Consumer: multiplies the M-blocks of one warpgroup by every filter tap of every channel block of a tile.
#pragma once

#include "fastconv/ptx/wgmma.cuh"
#include "fastconv/tile/halo_walk.cuh"
#include "fastconv/tile/ring.cuh"
#include "fastconv/tile/scheduler.cuh"

namespace fastconv {

// For outputs that no tap reaches.
template <int kRows, int kCols>
__device__ __forceinline__ void clear(float (&acc)[kRows][kCols]) {
#pragma unroll
  for (int i = 0; i < kRows * kCols; ++i) acc[i / kCols][i % kCols] = 0.f;
}

// kMMajor: the input lies as blocks of [64 channels][64 pixels], one an M-block.
// kColumns filter columns are multiplied at once, side by side on N.
// kPromotedParts: the tensor cores truncate their sums, so that these shrink with every product; every few steps they
// move to sums of the ordinary kind and begin anew.
template <typename T, int kBlockK, int kMBlocks, int kChannels, bool kMMajor, bool kNMajor, int kColumns,
          HaloOperands kOperands>
struct Mainloop {
  static constexpr bool kPromoted = kOperands == HaloOperands::kPromotedParts;
  static_assert(!kMMajor || kChannels == 64);
  static_assert(kColumns == 1 || !kNMajor);
  static constexpr int kPixelBytes = kChannels * sizeof(T);
  static constexpr int kAccumulators = kBlockK * kColumns / 2;  // of one M-block, per thread
  static constexpr ptx::Swizzle kSwizzle = ptx::swizzle_of(kPixelBytes);
  static constexpr ptx::Major kInputMajor = kMMajor ? ptx::Major::kMn : ptx::Major::kK;
  static constexpr ptx::Major kFilterMajor = kNMajor ? ptx::Major::kMn : ptx::Major::kK;

  // NOTES: accumulators are cleared by the first wgmma's scale-d: zeroing registers makes ptxas serialise the loop
  // (C7515). A stage is released one step late, when the wgmmas that read it are known to be done.
  // `issued` is called when no stage is left to wait for, with wgmmas still in flight.
  template <typename F>
  static __device__ __forceinline__ void run(const HaloParams& params, const Tile& tile, int first_block, Ring& halo,
                                             Ring& filter, bool release_filter, bool elected,
                                             float (&acc)[kMBlocks][kAccumulators], F issued) {
    if constexpr (kPromoted) {
      clear(acc);
      float products[kMBlocks][kAccumulators];
      multiply(params, tile, first_block, halo, filter, release_filter, elected, products, acc, issued);
    } else {
      multiply(params, tile, first_block, halo, filter, release_filter, elected, acc, acc, issued);
    }
  }

 private:
  using Sums = float[kMBlocks][kAccumulators];

  static __device__ __forceinline__ void add(const Sums& products, Sums& sums) {
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
      for (int e = 0; e < kAccumulators; ++e) sums[m][e] += products[m][e];
    }
  }

  // See split_scale().
  static __device__ __forceinline__ void shrink(Sums& products, float by) {
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
      for (int e = 0; e < kAccumulators; ++e) products[m][e] *= by;
    }
  }

  template <typename F>
  static __device__ __forceinline__ void multiply(const HaloParams& params, const Tile& tile, int first_block,
                                                  Ring& halo, Ring& filter, bool release_filter, bool elected,
                                                  Sums& acc, Sums& sums, F issued) {
    const OutputPhase& phase = params.phase[tile.phase];
    const uint32_t a_high = ptx::descriptor_high(params.group_pitch, kSwizzle);
    constexpr uint32_t kInputStep = (kMMajor ? 16 * 128 : 32) >> 4;
    // An N-major filter tile is blocks of [kChannels][64 filters] under the 128-byte swizzle.
    constexpr uint32_t kBlockPitch = kNMajor ? kChannels * 128 : 16, kFilterStep = (kNMajor ? 16 * 128 : 32) >> 4;
    const uint32_t b_high =
        kNMajor ? ptx::descriptor_high(1024, ptx::Swizzle::k128B) : ptx::descriptor_high(8 * kPixelBytes, kSwizzle);
    uint32_t block[kMBlocks];
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) block[m] = block_offset(params, tile, first_block + m, kPixelBytes) >> 4;

    int accumulate = 0, steps = 0;            // since the last promotion
    uint32_t done_filter = 0, done_halo = 0;  // barriers to arrive on after the next wait
    auto release = [&] {
      if (elected && done_filter != 0 && release_filter) ptx::mbarrier_arrive(done_filter);
      if (elected && done_halo != 0) ptx::mbarrier_arrive(done_halo);
      done_filter = done_halo = 0;
    };
    for (int c_block = 0; c_block < params.c_blocks; ++c_block) {
      if constexpr (has_parts(kOperands)) {
        if (!release_filter) filter.index = resident_stage(params, c_block) / kColumns, filter.parity = 0;
      }
      if constexpr (kPromoted) {
        if (c_block == params.shrink_at[0] || c_block == params.shrink_at[1]) {
          ptx::wgmma_wait<0>();
          release();
          shrink(acc, params.shrink);
        }
      }
      for (int g = phase.group_begin; g < phase.group_end; ++g) {
        const TapGroup& group = params.group[g];
        const int rows = group.rows, cols = group.cols;
        const uint32_t row_step = group.row_step >> 4, col_step = kColumns * group.col_step >> 4;
        halo.wait_full();
        uint32_t row = ptx::descriptor_low(halo.stage());
        for (int i = 0; i < rows; ++i, row += row_step) {
          uint32_t tap = row;
          for (int j = 0; j < cols; j += kColumns, tap += col_step) {
            filter.wait_full();
            const uint32_t b_low = ptx::descriptor_low(filter.stage(), kBlockPitch);
            ptx::wgmma_fence();
#pragma unroll
            for (int k = 0; k < kPixelBytes / 32; ++k) {
#pragma unroll
              for (int m = 0; m < kMBlocks; ++m) {
                ptx::wgmma<T, kInputMajor, kFilterMajor>(
                    acc[m], ptx::descriptor(tap + block[m] + kInputStep * k, a_high),
                    ptx::descriptor(b_low + kFilterStep * k, b_high), k == 0 ? accumulate : 1);
              }
            }
            ptx::wgmma_commit();
            // NOTES: float32 with few channels has one instruction a step, whose latency would show.
            if (kOperands == HaloOperands::kHalf || release_filter || done_halo != 0) {
              ptx::wgmma_wait<1>();
              release();
            }
            accumulate = 1;
            done_filter = filter.empty();
            filter.next();
            if constexpr (kPromoted) {
              if (c_block >= params.promote_from && ++steps == params.promote_steps) {
                ptx::wgmma_wait<0>();
                release();
                add(acc, sums);
                accumulate = steps = 0;
              }
            }
          }
        }
        done_halo = halo.empty();
        halo.next();
      }
    }
    issued();
    ptx::wgmma_wait<0>();
    release();
    if constexpr (kPromoted) {
      if (accumulate != 0) add(acc, sums);
    }
  }
};

// One halo a tile, all of the filter in its stages: nothing to wait for between taps. NOTES: the first product's
// accumulators are not read, as ptxas can see; between tiles their registers are free.
// kParts of both operands lie side by side, see split.h.
template <typename T, int kBlockK, int kMBlocks, int kChannels, int kParts>
struct OneHaloMainloop {
  static constexpr int kPixelBytes = kChannels * sizeof(T), kAccumulators = kBlockK / 2;
  static constexpr ptx::Swizzle kSwizzle = ptx::swizzle_of(kPixelBytes);

  static __device__ __forceinline__ void run(const HaloParams& params, const Tile& tile, Ring& halo, const Ring& filter,
                                             bool elected, float (&acc)[kMBlocks][kAccumulators]) {
    const TapGroup& group = params.group[0];
    const uint32_t a_high = ptx::descriptor_high(params.group_pitch, kSwizzle);
    const uint32_t b_high = ptx::descriptor_high(8 * kPixelBytes, kSwizzle);
    uint32_t block[kMBlocks];
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) block[m] = block_offset(params, tile, m, kPixelBytes) >> 4;
    // NOTES: not read from constant memory again for every tap.
    uint32_t row_step = group.row_step >> 4, col_step = group.col_step >> 4, part_step = params.part_bytes >> 4;
    asm volatile("" : "+r"(row_step), "+r"(col_step), "+r"(part_step));
    static_assert(kParts <= 2);
    constexpr SplitProduct kProducts[] = {{kParts, 0}, {kParts, kParts - 1}, {kParts, 2 * kParts - 2}};
    auto multiply = [&](uint32_t tap, uint32_t b_low, int accumulate) {
#pragma unroll
      for (int product = 0; product < split_products(kParts); ++product) {
        const SplitProduct parts = kProducts[product];
        const uint32_t a = tap + parts.first * part_step, b = b_low + parts.second * (kBlockK * kPixelBytes >> 4);
#pragma unroll
        for (int k = 0; k < kPixelBytes / 32; ++k) {
#pragma unroll
          for (int m = 0; m < kMBlocks; ++m) {
            ptx::wgmma<T, ptx::Major::kK, ptx::Major::kK>(acc[m], ptx::descriptor(a + block[m] + 2 * k, a_high),
                                                          ptx::descriptor(b + 2 * k, b_high),
                                                          product + k == 0 ? accumulate : 1);
          }
        }
      }
      ptx::wgmma_commit();
    };
    const int taps = group.rows * group.cols;
    halo.wait_full();
    uint32_t row = ptx::descriptor_low(halo.stage()), tap = row, b_low = ptx::descriptor_low(filter.data);
    ptx::wgmma_fence();
    multiply(tap, b_low, 0);
    for (int i = 1, col = 1; i < taps; ++i, ++col) {
      tap += col_step;
      if (col == group.cols) {
        row += row_step;
        tap = row;
        col = 0;
      }
      b_low += kParts * kBlockK * kPixelBytes >> 4;
      ptx::wgmma_fence();
      multiply(tap, b_low, 1);
    }
    ptx::wgmma_wait<0>();
    if (elected) ptx::mbarrier_arrive(halo.empty());
    halo.next();
  }
};

}  // namespace fastconv
