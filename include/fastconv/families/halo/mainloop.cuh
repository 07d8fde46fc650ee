// Consumer: multiplies the M-blocks of one warpgroup by every filter tap of every channel block of a tile.
#pragma once

#include "fastconv/families/halo/scheduler.cuh"
#include "fastconv/families/halo/walk.cuh"
#include "fastconv/ptx/wgmma.cuh"
#include "fastconv/tile/ring.cuh"
#include "fastconv/tile/split.cuh"

namespace fastconv {

// For outputs that no tap reaches.
template <int kRows, int kCols>
__device__ __forceinline__ void clear(float (&acc)[kRows][kCols]) {
#pragma unroll
  for (int i = 0; i < kRows * kCols; ++i) acc[i / kCols][i % kCols] = 0.f;
}

// The products of one filter tap with a warpgroup's M-blocks. Operands lie in shared memory, their kParts side by side.
template <typename T, int kN, int kMBlocks, int kPixelBytes, int kParts, bool kMMajor = false, bool kNMajor = false>
struct TapProducts {
  static constexpr int kAccumulators = kN / 2;  // of one M-block, per thread
  static constexpr ptx::Swizzle kSwizzle = ptx::swizzle_of(kPixelBytes);
  static constexpr ptx::Major kInputMajor = kMMajor ? ptx::Major::kMn : ptx::Major::kK;
  static constexpr ptx::Major kFilterMajor = kNMajor ? ptx::Major::kMn : ptx::Major::kK;
  static constexpr uint32_t kInputStep = (kMMajor ? 16 * 128 : 32) >> 4;
  // An N-major filter tile is blocks of [channels][64 filters] under the 128-byte swizzle.
  static constexpr uint32_t kFilterStep = (kNMajor ? 16 * 128 : 32) >> 4;
  static constexpr uint32_t kFilterPart = kN * kPixelBytes >> 4;
  static constexpr float kScale = split_scale(kParts, kOperandOf<T>);
  using Sums = float[kMBlocks][kAccumulators];

  uint32_t a_high, b_high, part_step;
  uint32_t block[kMBlocks];

  __device__ TapProducts(const HaloParams& params, const Tile& tile, int first_block)
      : a_high(ptx::descriptor_high(params.group_pitch, kSwizzle)),
        b_high(kNMajor ? ptx::descriptor_high(1024, ptx::Swizzle::k128B)
                       : ptx::descriptor_high(8 * kPixelBytes, kSwizzle)),
        part_step(params.part_bytes >> 4) {
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) block[m] = block_offset(params, tile, first_block + m, kPixelBytes) >> 4;
  }

  // Of parts whose numbers add up to `size`: from the smallest to the largest of the first's.
  __device__ __forceinline__ void multiply(int size, uint32_t tap, uint32_t b_low, Sums& acc, int accumulate) const {
#pragma unroll
    for (int first = 0; first <= size; ++first) {
      const uint32_t a = tap + first * part_step, b = b_low + (size - first) * kFilterPart;
#pragma unroll
      for (int k = 0; k < kPixelBytes / 32; ++k) {
#pragma unroll
        for (int m = 0; m < kMBlocks; ++m) {
          ptx::wgmma<T, kInputMajor, kFilterMajor>(acc[m], ptx::descriptor(a + block[m] + kInputStep * k, a_high),
                                                   ptx::descriptor(b + kFilterStep * k, b_high),
                                                   first + k == 0 ? accumulate : 1);
        }
      }
    }
  }
  // Of all that matter, the small ones first.
  __device__ __forceinline__ void multiply_all(uint32_t tap, uint32_t b_low, Sums& acc, int accumulate) const {
#pragma unroll
    for (int size = kParts - 1; size >= 0; --size) {
      multiply(size, tap, b_low, acc, size == kParts - 1 ? accumulate : 1);
    }
  }
  // From products of one size to the next larger ones, see split_scale().
  static __device__ __forceinline__ void shrink(Sums& products, float by) {
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
      for (int e = 0; e < kAccumulators; ++e) {
        make_finite(products[m][e]);
        products[m][e] *= by;
      }
    }
  }
  // Products of that size, with their weight: see split_scale().
  static __device__ __forceinline__ void add(Sums& products, int size, Sums& sums) {
    float weight = 1;
#pragma unroll
    for (int i = 0; i < size; ++i) weight /= kScale;
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
      for (int e = 0; e < kAccumulators; ++e) {
        if (weight != 1) make_finite(products[m][e]);
        sums[m][e] += weight * products[m][e];
      }
    }
  }
};

// kMMajor: the input lies as blocks of [64 channels][64 pixels], one an M-block.
// kColumns filter columns are multiplied at once, side by side on N.
// Promoted operands: the tensor cores truncate their sums, so that these shrink with every product; every few steps
// they move to sums of the ordinary kind and begin anew.
template <typename T, int kBlockK, int kMBlocks, int kChannels, bool kMMajor, bool kNMajor, int kColumns,
          OperandForm kOperands, int kParts>
struct Mainloop {
  static constexpr bool kPromoted = promotes(kOperands);
  static_assert(!kMMajor || kChannels == 64);
  static_assert(kColumns == 1 || !kNMajor);
  static constexpr int kPixelBytes = kChannels * sizeof(T);
  using Tap = TapProducts<T, kBlockK * kColumns, kMBlocks, kPixelBytes, kParts, kMMajor, kNMajor>;
  static constexpr int kAccumulators = Tap::kAccumulators;

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
  using Sums = typename Tap::Sums;

  template <typename F>
  static __device__ __forceinline__ void multiply(const HaloParams& params, const Tile& tile, int first_block,
                                                  Ring& halo, Ring& filter, bool release_filter, bool elected,
                                                  Sums& acc, Sums& sums, F issued) {
    const OutputPhase& phase = params.phase[tile.phase];
    constexpr uint32_t kBlockPitch = kNMajor ? kChannels * 128 : 16;  // of an N-major filter tile
    const Tap products(params, tile, first_block);

    int accumulate = 0, steps = 0;            // since the last promotion
    uint32_t done_filter = 0, done_halo = 0;  // barriers to arrive on after the next wait
    auto release = [&] {
      if (elected && done_filter != 0 && release_filter) ptx::mbarrier_arrive(done_filter);
      if (elected && done_halo != 0) ptx::mbarrier_arrive(done_halo);
      done_filter = done_halo = 0;
    };
    for (int c_block = 0; c_block < params.c_blocks; ++c_block) {
      if constexpr (has_parts(kOperands)) {
        if (!release_filter) filter.index = resident_stage(params, phase, c_block) / kColumns, filter.parity = 0;
      }
      if constexpr (kPromoted) {
        if (c_block == params.shrink_at[0] || c_block == params.shrink_at[1]) {
          ptx::wgmma_wait<0>();
          release();
          Tap::shrink(acc, params.shrink);
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
            products.multiply_all(tap, b_low, acc, accumulate);
            ptx::wgmma_commit();
            // NOTES: float32 with few channels has one instruction a step, whose latency would show.
            if (kOperands == OperandForm::kHalf || release_filter || done_halo != 0) {
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
                Tap::add(acc, 0, sums);
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
      if (accumulate != 0) Tap::add(acc, 0, sums);
    }
  }
};

// One halo a tile, all of the filter in its stages: nothing to wait for between taps, and promoted products go through
// all taps once for each size. NOTES: the first product's accumulators are not read, as ptxas can see; between tiles
// their registers are free.
template <typename T, int kBlockK, int kMBlocks, int kChannels, bool kPromoted, int kParts>
struct OneHaloMainloop {
  static constexpr int kPixelBytes = kChannels * sizeof(T);
  using Tap = TapProducts<T, kBlockK, kMBlocks, kPixelBytes, kParts>;
  using Sums = typename Tap::Sums;

  static __device__ __forceinline__ void run(const HaloParams& params, const Tile& tile, Ring& halo, const Ring& filter,
                                             bool elected, Sums& acc) {
    const TapGroup& group = params.group[0];
    Tap products(params, tile, 0);
    // NOTES: not read from constant memory again for every tap.
    uint32_t row_step = group.row_step >> 4, col_step = group.col_step >> 4;
    asm volatile("" : "+r"(row_step), "+r"(col_step), "+r"(products.part_step));
    halo.wait_full();
    const uint32_t first = ptx::descriptor_low(halo.stage());
    // multiply(tap, filter's tap, its number)
    auto for_each_tap = [&](auto multiply) {
      uint32_t row = first, tap = first, b_low = ptx::descriptor_low(filter.data);
      multiply(tap, b_low, 0);
      const int taps = group.rows * group.cols;
      for (int i = 1, col = 1; i < taps; ++i, ++col) {
        tap += col_step;
        if (col == group.cols) {
          row += row_step;
          tap = row;
          col = 0;
        }
        b_low += kParts * kBlockK * kPixelBytes >> 4;
        multiply(tap, b_low, i);
      }
    };
    if constexpr (kPromoted) {
      clear(acc);
      Sums sums;
#pragma unroll
      for (int size = kParts - 1; size >= 0; --size) {
        int steps = 0;
        for_each_tap([&](uint32_t tap, uint32_t b_low, int) {
          if (steps == params.promote_steps) {
            ptx::wgmma_wait<0>();
            Tap::add(sums, size, acc);
            steps = 0;
          }
          ptx::wgmma_fence();
          products.multiply(size, tap, b_low, sums, steps++ > 0);
          ptx::wgmma_commit();
        });
        ptx::wgmma_wait<0>();
        Tap::add(sums, size, acc);
      }
    } else {
      for_each_tap([&](uint32_t tap, uint32_t b_low, int i) {
        ptx::wgmma_fence();
        products.multiply_all(tap, b_low, acc, i > 0);
        ptx::wgmma_commit();
      });
      ptx::wgmma_wait<0>();
    }
    if (elected) ptx::mbarrier_arrive(halo.empty());
    halo.next();
  }
};

}  // namespace fastconv
