// Weight gradient of a depthwise convolution without a stride as matrix products, elements of 16 bits whose channels
// lie side by side. A product multiplies, of one channel, 16 rows of x by 8 rows of dy, whose columns are those that
// one column of taps meets. Of its sums row i of x and row j of dy belong to row i - j of taps; nothing reads the
// others. Its depth are 8 columns.
//
// A warp has 8 channels and half of the columns of taps. A block has 32 channels, and boxes of a few rows and columns
// of x and of dy, which the copy engine brings. A box of dy meets some boxes of x; the next has one more, without the
// first.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/integers.h"
#include "fastconv/tile/depthwise_tensors.h"

namespace fastconv {

inline constexpr int32_t kCrossChunk = 8;  // channels of a warp: 16 bytes
inline constexpr int32_t kCrossChunks = 4, kCrossChannels = kCrossChunk * kCrossChunks;
inline constexpr int32_t kCrossWarps = 2 * kCrossChunks;  // that multiply; of four more one moves boxes
inline constexpr int32_t kCrossThreads = 32 * (kCrossWarps + 4);
inline constexpr int32_t kCrossRegisters = 240, kCrossMoverRegisters = 24;
static_assert(32 * (kCrossWarps * kCrossRegisters + 4 * kCrossMoverRegisters) <= 65536);  // a multiprocessor's
inline constexpr int32_t kCrossPixelBytes = 2 * kCrossChannels;
inline constexpr int32_t kCrossBanksBytes = 512;  // until the copy engine's order of banks repeats
inline constexpr int32_t kCrossSourceRows = 16, kCrossTargetRows = 8, kCrossColumns = 8;  // of a product
inline constexpr int32_t kCrossProductSums = kCrossSourceRows * kCrossTargetRows;

struct DepthwiseCrossConfig {
  int32_t taps;  // the most rows and columns of the filter

  // Columns of taps of the first half of the warps; the others have the rest. Shifts go from the last column of taps
  // to the first: one meets x at staged column i with dy at staged column i + shift.
  FASTCONV_HOST_DEVICE constexpr int32_t shifts() const { return (taps + 1) / 2; }
  FASTCONV_HOST_DEVICE constexpr int32_t shifts(int32_t half) const { return half == 0 ? shifts() : taps - shifts(); }
  FASTCONV_HOST_DEVICE constexpr int32_t first_shift(int32_t half) const { return half * shifts(); }
  FASTCONV_HOST_DEVICE constexpr int32_t shift_of(int32_t tap) const { return taps - 1 - tap; }
  // Rows of dy of a box, at most: rows of x that they meet fit in a product.
  FASTCONV_HOST_DEVICE constexpr int32_t most_rows() const {
    const int32_t rows = kCrossSourceRows - taps + 1;
    return rows < kCrossTargetRows ? rows : kCrossTargetRows;
  }
  // In shared memory, in floats, products of a channel and of a warp: a tap's of 32 channels lie in few same banks.
  FASTCONV_HOST_DEVICE constexpr int32_t channel_sums() const { return shifts() * kCrossProductSums + 4; }
  FASTCONV_HOST_DEVICE constexpr int32_t warp_sums() const { return kCrossChunk * channel_sums() + 2; }
  FASTCONV_HOST_DEVICE constexpr int32_t sums_bytes() const { return 4 * kCrossWarps * warp_sums(); }
};

struct DepthwiseCrossTiling {
  int32_t rows;                   // of a box
  int32_t columns, images;        // of a box; columns at least 8, a multiple of 4, all images' of 8
  int32_t stages, source_stages;  // boxes of dy and of x in shared memory
  int32_t slice_boxes;            // of dy, that a block has

  // Boxes of x that one of dy meets.
  FASTCONV_HOST_DEVICE constexpr int32_t met_boxes(const DepthwiseCrossConfig& config) const {
    return static_cast<int32_t>(ceil_div(rows - 1 + config.taps, rows));
  }
  FASTCONV_HOST_DEVICE constexpr int32_t steps() const { return images * columns / kCrossColumns; }  // of a box
  // Pixels of a staged row: an odd number, so that of two rows those that eight lanes read lie in different banks.
  FASTCONV_HOST_DEVICE constexpr int32_t source_pitch() const { return columns | 1; }
  FASTCONV_HOST_DEVICE constexpr int32_t target_pitch(const DepthwiseCrossConfig& config) const {
    return (columns + config.taps - 1) | 1;
  }
  // Of an image, which the copy engine brings at once.
  FASTCONV_HOST_DEVICE constexpr int32_t image_bytes(int32_t pitch) const { return rows * pitch * kCrossPixelBytes; }
  // From an image's to the next's, whose column 0 has the place among banks of this one's column `columns`: what half
  // of the lanes read of the one and half of the other lies in different banks.
  FASTCONV_HOST_DEVICE constexpr int32_t apart(int32_t pitch) const {
    const auto whole = static_cast<int32_t>(round_up(image_bytes(pitch), kCrossBanksBytes));
    return whole + columns * kCrossPixelBytes % kCrossBanksBytes;
  }
  // Of a box.
  FASTCONV_HOST_DEVICE constexpr int32_t source_bytes() const { return images * apart(source_pitch()); }
  FASTCONV_HOST_DEVICE constexpr int32_t target_bytes(const DepthwiseCrossConfig& config) const {
    return images * apart(target_pitch(config));
  }
  // In shared memory: boxes of x, then of dy, then their barriers. A block's products take the place of boxes at last.
  FASTCONV_HOST_DEVICE constexpr int32_t targets_offset() const { return source_stages * source_bytes(); }
  FASTCONV_HOST_DEVICE constexpr int32_t barriers_offset(const DepthwiseCrossConfig& config) const {
    const int32_t boxes = targets_offset() + stages * target_bytes(config);
    return boxes > config.sums_bytes() ? boxes : config.sums_bytes();
  }
  FASTCONV_HOST_DEVICE constexpr int32_t smem_bytes(const DepthwiseCrossConfig& config) const {
    return barriers_offset(config) + 16 * (stages + source_stages);
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

// Where a product has a row of x, in one of the boxes that a box of dy meets. Rows that no tap meets are any.
struct CrossSourceRow {
  int32_t box, row;

  FASTCONV_HOST_DEVICE constexpr CrossSourceRow(const DepthwiseCrossConfig& config, const DepthwiseCrossTiling& tiling,
                                                int32_t product_row) {
    const int32_t last = tiling.met_boxes(config) - 1;
    box = product_row / tiling.rows < last ? product_row / tiling.rows : last;
    row = product_row - box * tiling.rows < tiling.rows ? product_row - box * tiling.rows : tiling.rows - 1;
  }
};

// Of a slice's boxes of dy, those of rows that follow each other, and boxes of x from source_row on: those that the
// first of dy meets, then one with each of the next.
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
    const DepthwiseCrossTiling& tiling = params.tiling;
    int32_t end = (slice + 1) * tiling.slice_boxes;
    if (end > params.boxes) end = params.boxes;
    params.by_row_boxes.divmod(box, image, row);
    params.by_column_tiles.divmod(image, image, column);
    boxes = static_cast<int32_t>(params.by_row_boxes.divisor) - row;
    if (boxes > end - box) boxes = end - box;
    image *= tiling.images, column *= tiling.columns, row *= tiling.rows;
    source_row = row - params.padding_h;
  }
};

}  // namespace fastconv
