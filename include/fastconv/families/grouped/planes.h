// Weight gradient of 3x3 convolutions whose groups have few channels, of tensors whose rows lie side by side: pixels of
// a row are what products sum over, and lie in memory as tensor cores want them. One operand are 8 channels of x at two
// taps, the other the same 8 channels of dy; of their products those of a channel and a filter of one group are of use.
// Groups of 16 have four such squares, of which a warp has one.
//
// A block has 8 channels, or 16, and a slice of the tiles: a run of rows of dy of some images, which TMA
// brings with the rows of x that they see, plane by plane, while the tile before is multiplied. A warp has 16 columns
// of one of the tile's images, marches down their rows, and keeps the three rows of x that one of dy meets in
// registers.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"

namespace fastconv {

inline constexpr int32_t kPlanes = 8;                        // of x, and of dy, that a block has
inline constexpr int32_t kPlanesTaps = 3;                    // rows and columns of the filter
inline constexpr int32_t kPlanesColumns = 16;                // of a warp
inline constexpr int32_t kPlanesMostWarps = 8;               // of a block
inline constexpr int32_t kPlanesBarrierBytes = 128;          // of all, before the stages
inline constexpr int32_t kPlanesProducts = 2 * kPlanesTaps;  // of two columns of a row of the filter, and of the third

struct GroupedPlanesConfig {
  int32_t stride;  // in both dimensions
  int32_t warps;   // that an SM has registers for

  bool operator==(const GroupedPlanesConfig&) const = default;
};

struct GroupedPlanesTiling {
  int32_t images;    // of a tile
  int32_t run_rows;  // of dy
};

// One of both tensors, of which rows of a plane follow each other.
struct GroupedPlanesTensor {
  const void* data;
  int64_t image_bytes, plane_bytes;  // from one to the next
  int32_t row_bytes, rows, columns;
  int32_t pitch;  // in shared memory, from one plane's rows to the next one's

  FASTCONV_HOST_DEVICE int32_t staged_bytes(int32_t planes) const { return planes * pitch; }  // of an image
};

struct GroupedPlanesParams {
  GroupedPlanesTensor x, y;
  void* dw;
  float* sums;  // of slices, [slice][filter][channel][tap], or null where a block writes `dw` itself
  Strides filter_strides;
  int32_t channels, group_log2;  // all; of a group
  int32_t halves_log2;           // of a block's channels: kPlanes each
  int32_t padding_h;
  int32_t images, tile_images, run_rows;
  int32_t tiles, slice_tiles;
  int32_t image_bytes, stage_bytes;  // in shared memory
  FastDivmod by_chunks, by_runs, by_blocks;

  FASTCONV_HOST_DEVICE int32_t planes() const { return kPlanes << halves_log2; }
  FASTCONV_HOST_DEVICE int32_t squares() const { return 1 << 2 * halves_log2; }
  // The square of a channel and a filter of a block's.
  FASTCONV_HOST_DEVICE int32_t square(int32_t channel, int32_t filter) const {
    return channel / kPlanes + (filter / kPlanes << halves_log2);
  }
};

// Rows of x that so many of dy see.
FASTCONV_HOST_DEVICE constexpr int64_t planes_seen_rows(int64_t rows, int64_t stride) {
  return (rows - 1) * stride + kPlanesTaps;
}

// What a block has at a time.
struct GroupedPlanesTile {
  int32_t image, row, rows;  // the first; of dy

  FASTCONV_HOST_DEVICE GroupedPlanesTile(const GroupedPlanesParams& params, int32_t index) {
    params.by_runs.divmod(index, image, row);
    image *= params.tile_images, row *= params.run_rows;
    rows = params.y.rows - row < params.run_rows ? params.y.rows - row : params.run_rows;
  }
};

// Where the sum of a square's channel of 8 and filter of 8 is at a tap, one of four of a product as it leaves them
// (ptx/mma.cuh).
struct GroupedPlanesSum {
  int32_t product, lane, index;

  FASTCONV_HOST_DEVICE GroupedPlanesSum(int32_t channel, int32_t filter, int32_t tap)
      : product(tap / kPlanesTaps * 2 + tap % kPlanesTaps / 2),
        lane(channel * 4 + filter / 2),
        index(tap % kPlanesTaps % 2 * 2 + filter % 2) {}
};

}  // namespace fastconv
