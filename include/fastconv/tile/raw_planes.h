// NCHW pixels on their way to shared-memory pixel rows; see stage_nchw.cuh. Plain data, and the order of channels.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"

namespace fastconv {

// TMA wants addresses and strides that are multiples of 16 bytes. Planes of another size are as far from
// such an address again every few channels, so each of those phases takes a tensor map of its own.
struct RawPlanes {
  int32_t phases_log2;
  bool shared;             // warps share each stage; otherwise each has stages of its own
  bool whole;              // a copy brings the planes of an image as they follow each other, and is a run's only one
  int32_t box_w, advance;  // pixels of one copy, and from one copy of a run of pixels to the next
  int32_t step_log2;       // of the input columns from one halo pixel to the next
  int32_t stages, stage_bytes;
  FastDivmod width;  // of the image
};

// 16-bit pixels from an address that TMA takes to the beginning of every second
// plane, and those of a row that is copied from there.
inline constexpr int kShift = 4, kShiftedBox = 64 + 2 * kShift;

// Pixels of 16 bytes.
FASTCONV_HOST_DEVICE constexpr int32_t raw_unit(int element_bytes) { return 16 / element_bytes; }

// Pixels that a phase's map has before the first of its planes.
FASTCONV_HOST_DEVICE int32_t raw_shift(int64_t plane, int phase, int32_t unit) {
  return static_cast<int32_t>(phase * plane) & (unit - 1);
}

// Channels of a phase lie side by side in a stage: what position `at` of it holds. As 16-bit operands they stay in that
// order, and the filter follows.
FASTCONV_HOST_DEVICE int32_t staged_channel(int phases_log2, int channels_log2, int at) {
  const int each_log2 = channels_log2 - phases_log2;
  return ((at & ((1 << each_log2) - 1)) << phases_log2) + (at >> each_log2);
}

}  // namespace fastconv
