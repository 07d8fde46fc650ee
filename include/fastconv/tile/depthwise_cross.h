// Weight gradient of a depthwise convolution without a stride as matrix products, elements of 16 bits whose channels
// lie side by side. A product multiplies, of one channel, 16 rows of x by 8 rows of dy, whose columns are those that
// one column of taps meets. Of its sums row i of x and row j of dy belong to row i - j of taps; nothing reads the
// others. Its depth are 8 columns.
//
// A warp has 8 channels and half of the columns of taps. A block has 32 channels, and boxes of 8 rows of x and of dy of
// a few columns, which the copy engine brings, one of x more than of dy for each run of them.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/tile/depthwise_tensors.h"

namespace fastconv {

inline constexpr int32_t kCrossChunk = 8;  // channels of a warp: 16 bytes
inline constexpr int32_t kCrossChunks = 4, kCrossChannels = kCrossChunk * kCrossChunks;
inline constexpr int32_t kCrossWarps = 2 * kCrossChunks;  // that multiply; of four more one moves boxes
inline constexpr int32_t kCrossThreads = 32 * (kCrossWarps + 4);
inline constexpr int32_t kCrossRegisters = 240, kCrossMoverRegisters = 24;
static_assert(32 * (kCrossWarps * kCrossRegisters + 4 * kCrossMoverRegisters) <= 65536);  // a multiprocessor's
inline constexpr int32_t kCrossPixelBytes = 2 * kCrossChannels;
inline constexpr int32_t kCrossRows = 8;     // of a box
inline constexpr int32_t kCrossColumns = 8;  // of a product

inline constexpr int32_t kCrossProductSums = 2 * kCrossRows * kCrossRows + 2;  // not all at the same banks

struct DepthwiseCrossConfig {
  int32_t taps;  // the most rows and columns of the filter

  // Columns of taps of the first half of the warps; the others have the rest.
  FASTCONV_HOST_DEVICE constexpr int32_t shifts() const { return (taps + 1) / 2; }
  // In shared memory, in floats: what belongs to taps, of a block, and then each warp's products.
  FASTCONV_HOST_DEVICE constexpr int32_t tap_sums() const { return taps * taps * kCrossChannels; }
  FASTCONV_HOST_DEVICE constexpr int32_t warp_sums() const { return kCrossChunk * shifts() * kCrossProductSums; }
  FASTCONV_HOST_DEVICE constexpr int32_t sums_bytes() const { return 4 * (tap_sums() + kCrossWarps * warp_sums()); }
};

struct DepthwiseCrossTiling {
  int32_t columns, images;  // of x: of a box, columns a multiple of 8
  int32_t stages;           // boxes of dy in shared memory; of x, two of which a box of dy meets, one more
  int32_t slice_boxes;      // of dy, that a block has

  // Pixels of a staged row. An odd number of fours lets the pixels that eight lanes read lie in different banks.
  FASTCONV_HOST_DEVICE constexpr int32_t source_pitch() const { return columns + 4; }
  // With those that the other columns of taps meet, up to 12 of them.
  FASTCONV_HOST_DEVICE constexpr int32_t target_pitch() const { return columns + 12; }
  // Of a box: whole patterns of banks of the copy engine, 1,024 bytes at most.
  FASTCONV_HOST_DEVICE constexpr int32_t source_bytes() const {
    return images * kCrossRows * source_pitch() * kCrossPixelBytes;
  }
  FASTCONV_HOST_DEVICE constexpr int32_t target_bytes() const {
    return images * kCrossRows * target_pitch() * kCrossPixelBytes;
  }
  // In shared memory: boxes of x, then of dy, then their barriers. A warp's sums take the place of boxes at last.
  FASTCONV_HOST_DEVICE constexpr int32_t targets_offset() const { return (stages + 1) * source_bytes(); }
  FASTCONV_HOST_DEVICE constexpr int32_t barriers_offset(const DepthwiseCrossConfig& config) const {
    const int32_t boxes = targets_offset() + stages * target_bytes();
    return boxes > config.sums_bytes() ? boxes : config.sums_bytes();
  }
  FASTCONV_HOST_DEVICE constexpr int32_t smem_bytes(const DepthwiseCrossConfig& config) const {
    return barriers_offset(config) + 16 * (2 * stages + 1);
  }
};

struct DepthwiseCrossParams : DepthwiseWindows {
  DepthwiseCrossTiling tiling;
  int32_t images, channels;
  int32_t boxes;  // of dy, of all images, for the same channels
  FastDivmod by_channel_blocks, by_row_boxes, by_column_tiles;

  FASTCONV_HOST_DEVICE static constexpr uint32_t swizzled(uint32_t offset) {
    return swizzled_pixels(offset, kCrossPixelBytes);
  }
  // Of dy, the column that staged column 0 is.
  FASTCONV_HOST_DEVICE int32_t target_column(const DepthwiseCrossConfig& config, int32_t column) const {
    return column + padding_w - (config.taps - 1);
  }
};
// The column of taps that meets x at staged column `i` with dy at staged column `i + shift`; it may be none.
FASTCONV_HOST_DEVICE constexpr int32_t cross_tap(const DepthwiseCrossConfig& config, int32_t shift) {
  return config.taps - 1 - shift;
}

// Of a slice's boxes of dy, those of rows that follow each other. A run of n boxes of dy has n + 1 boxes of x, of rows
// from source_row on, 8 by 8; each but for the first comes with the box of dy that meets it and the one before.
struct CrossRun {
  int32_t box, boxes;          // the first and how many, of dy
  int32_t image, column, row;  // the first, of x and, row, of dy
  int32_t source_row;

  FASTCONV_HOST_DEVICE CrossRun(const DepthwiseCrossParams& params, int32_t slice)
      : CrossRun(params, slice * params.tiling.slice_boxes, slice) {}
  FASTCONV_HOST_DEVICE bool exists() const { return boxes > 0; }
  FASTCONV_HOST_DEVICE CrossRun next(const DepthwiseCrossParams& params, int32_t slice) const {
    return CrossRun(params, box + boxes, slice);
  }

 private:
  FASTCONV_HOST_DEVICE CrossRun(const DepthwiseCrossParams& params, int32_t first, int32_t slice) : box(first) {
    int32_t end = (slice + 1) * params.tiling.slice_boxes;
    if (end > params.boxes) end = params.boxes;
    params.by_row_boxes.divmod(box, image, row);
    params.by_column_tiles.divmod(image, image, column);
    boxes = static_cast<int32_t>(params.by_row_boxes.divisor) - row;
    if (boxes > end - box) boxes = end - box;
    image *= params.tiling.images, column *= params.tiling.columns, row *= kCrossRows;
    source_row = row - params.padding_h;
  }
};

}  // namespace fastconv
