// How the kernels of the bias gradient walk over grad_output; planner and kernels share it.
#pragma once

#include <cstdint>

namespace fastconv {

// grad_output as rows of `length` units: a whole image where its rows follow each other without gaps, else one row of
// it. A unit is what a thread reads at once: a pixel, or 16 bytes of pixels or of channels.
struct BiasGradParams {
  int64_t channels, units;                         // units: of a channel, or a run of channels
  int64_t rows_per_image, length;                  // units
  int64_t stride_n, stride_c, stride_row, stride;  // elements; the last from unit to unit
  int64_t slices, slice_units;
  int32_t lanes_c;       // of a block's threads: so many have different channels
  bool channels_beside;  // and are neighbours; otherwise those of one channel are
};

inline constexpr int kBiasThreads = 256;
inline constexpr int kBiasUnitBytes = 16;

}  // namespace fastconv
