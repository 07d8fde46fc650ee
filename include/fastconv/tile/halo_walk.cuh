// The parts of a tile's halo, in the order in which those who copy, stage and multiply go through them. Plain C++ as
// well as CUDA: the tests run it against brute force.
#pragma once

#include "fastconv/tile/scheduler.cuh"

// What is called back may be a function of one side only.
#if defined(__CUDACC__)
#define FASTCONV_HOST_DEVICE_CALLER                      \
  _Pragma("nv_exec_check_disable") template <typename F> \
  FASTCONV_HOST_DEVICE
#else
#define FASTCONV_HOST_DEVICE_CALLER \
  template <typename F>             \
  FASTCONV_HOST_DEVICE
#endif

namespace fastconv {

// Calls f(group, channel block) for every halo of a tile.
FASTCONV_HOST_DEVICE_CALLER void for_each_halo(const HaloParams& params, const Tile& tile, F f) {
  const OutputPhase& phase = params.phase[tile.phase];
  for (int c_block = 0; c_block < params.c_blocks; ++c_block) {
    for (int g = phase.group_begin; g < phase.group_end; ++g) f(params.group[g], c_block);
  }
}

// HaloStaging::kTransposed. Rows of padding are not copied: the copy engine writes zeros for them, but at 1.5 bytes a
// clock (measured).
FASTCONV_HOST_DEVICE bool exists(const HaloParams& params, const HaloRow& row) {
  return row.h >= 0 && row.h < params.height && row.n < params.n;
}

// f(halo row, its image and row, column of its first pixel, first column of the copy).
FASTCONV_HOST_DEVICE_CALLER void for_each_raw_row(const HaloParams& params, const Tile& tile, const TapGroup& group,
                                                  F f) {
  const int32_t w = halo_col(params, tile, group);
  for (int i = 0; i < params.halo_rows; ++i) {
    const HaloRow row = halo_row(params, tile, group, i);
    for (int box = 0; box < params.raw.boxes; ++box) f(i, row, w, raw_row_start(params.raw, w, row.h, box));
  }
}

// HaloStaging::kGathered: stages of raw.slab whole channels of one image, which are contiguous. f(image, its first row
// of the halo, the one after its last, first channel in the block, whether there is such an image and channel).
FASTCONV_HOST_DEVICE_CALLER void for_each_slab(const HaloParams& params, const Tile& tile, int c_block, int channels,
                                               F f) {
  int32_t image = tile.n, skipped = 0;
  if (params.linear) params.linear_h.divmod(tile.row, image, skipped);
  const int32_t height = params.linear ? static_cast<int32_t>(params.linear_h.divisor) : params.halo_rows;
  for (int32_t row = 0; row < params.halo_rows; ++image) {
    const int32_t end = row + height - skipped, next = end < params.halo_rows ? end : params.halo_rows;
    for (int c = 0; c < channels; c += params.raw.slab) {
      f(image, row, next, c, image < params.n && c_block * channels + c < params.c);
    }
    row = next, skipped = 0;
  }
}

}  // namespace fastconv

#undef FASTCONV_HOST_DEVICE_CALLER
