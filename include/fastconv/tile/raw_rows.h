// NCHW pixels on their way to shared-memory pixel rows; see stage_nchw.cuh. Plain data.
#pragma once

#include <cstdint>

namespace fastconv {

// A tensor map wants strides that are multiples of 16 bytes. Rows of another pitch are as far from such an address
// again every few rows, so each of those takes the map of its own.
inline constexpr int kMaxRawMaps = 8;

struct RawRows {
  int32_t box_w;      // pixels of one copy, which brings them for every channel of a stage
  int32_t boxes;      // copies that cover a halo row
  int32_t step_log2;  // of the input columns from one halo pixel to the next
  int32_t row_phases_log2;
  int32_t shift[kMaxRawMaps];  // column of a map that is the image's first
  int32_t slab;                // HaloStaging::kGathered: channels of a stage
  int32_t stages, stage_bytes;
};

}  // namespace fastconv
