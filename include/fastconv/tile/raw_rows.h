// NCHW pixels on their way to shared-memory pixel rows; see transpose.cuh. Plain data.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"

namespace fastconv {

// A tensor map wants strides that are multiples of 16 bytes. Rows of another pitch are as far from such an address
// again every few rows, so each of those takes the map of its own.
inline constexpr int kMaxRawMaps = 8;

// WgradStaging::kDense: likewise planes; what are rows and columns here are channels and pixels of a plane.
struct RawRows {
  int32_t box_w;      // pixels of one copy, which brings them for every channel of a stage
  int32_t boxes;      // copies that cover a staged row
  int32_t step_log2;  // of the input columns from one staged pixel to the next
  int32_t row_phases_log2;
  int32_t shift[kMaxRawMaps];  // column of a map that is the image's first
  int32_t stages, stage_bytes;
};

// The column of the image where the copy of box `box` of a staged row begins, up to 7 before `w`, where the row does.
// NOTES: a copy starts at a multiple of 16 bytes; anything else is an "illegal instruction" (measured).
FASTCONV_HOST_DEVICE int32_t raw_row_start(const RawRows& raw, int32_t w, int32_t h, int box) {
  const int32_t shift = raw.shift[h & ((1 << raw.row_phases_log2) - 1)];
  return ((w + shift) & ~7) - shift + box * raw.box_w;
}

}  // namespace fastconv
