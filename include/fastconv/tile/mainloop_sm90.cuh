// Consumer: multiplies the M-blocks of one warpgroup by every filter tap of every channel block of a tile.
#pragma once

#include "fastconv/ptx/wgmma.cuh"
#include "fastconv/tile/ring.cuh"
#include "fastconv/tile/scheduler.cuh"

namespace fastconv {

// kMMajor: the input lies as blocks of [64 channels][64 pixels], one an M-block.
// kColumns filter columns are multiplied at once, side by side on N.
template <typename T, int kBlockK, int kMBlocks, int kChannels, bool kMMajor, bool kNMajor, int kColumns>
struct Mainloop {
  static_assert(!kMMajor || kChannels == 64);
  static_assert(kColumns == 1 || !kNMajor);
  static constexpr int kPixelBytes = kChannels * 2;
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

    int accumulate = 0;
    uint32_t done_filter = 0, done_halo = 0;  // barriers to arrive on after the next wait
    for (int c_block = 0; c_block < params.c_blocks; ++c_block) {
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
            for (int k = 0; k < kChannels / 16; ++k) {
#pragma unroll
              for (int m = 0; m < kMBlocks; ++m) {
                ptx::wgmma<T, kInputMajor, kFilterMajor>(
                    acc[m], ptx::descriptor(tap + block[m] + kInputStep * k, a_high),
                    ptx::descriptor(b_low + kFilterStep * k, b_high), k == 0 ? accumulate : 1);
              }
            }
            ptx::wgmma_commit();
            ptx::wgmma_wait<1>();
            if (elected && done_filter != 0 && release_filter) ptx::mbarrier_arrive(done_filter);
            if (elected && done_halo != 0) ptx::mbarrier_arrive(done_halo);
            accumulate = 1;
            done_filter = filter.empty();
            done_halo = 0;
            filter.next();
          }
        }
        done_halo = halo.empty();
        halo.next();
      }
    }
    issued();
    ptx::wgmma_wait<0>();
    if (elected && done_filter != 0 && release_filter) ptx::mbarrier_arrive(done_filter);
    if (elected && done_halo != 0) ptx::mbarrier_arrive(done_halo);
  }
};

}  // namespace fastconv
