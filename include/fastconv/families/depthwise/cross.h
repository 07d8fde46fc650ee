// Weight gradient of a depthwise convolution as matrix products, elements of 16 bits whose channels lie side by side. A
// product multiplies, of one channel, 16 rows of x by 8 rows of dy, whose columns are those that one column of taps
// meets. Of its sums row i of x and row j of dy belong to row i - stride * j of taps; nothing reads the others. Its
// depth are 8 columns.
//
// A warp has 8 channels and half of the columns of taps. With a stride of 2 a half has every second of them: all meet
// the same columns of x, even or odd ones, which lie in a plane of their own. A block has 32 channels, and boxes of a
// few rows and columns of x and of dy, which TMA brings. A box of dy meets some boxes of x; the next has
// some more, without the first ones.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/integers.h"
#include "fastconv/families/depthwise/tensors.h"

namespace fastconv {

inline constexpr int32_t kCrossChunk = 8;  // channels of a warp: 16 bytes
inline constexpr int32_t kCrossChunks = 4, kCrossChannels = kCrossChunk * kCrossChunks;
inline constexpr int32_t kCrossWarps = 2 * kCrossChunks;  // that multiply; of four more one moves boxes
inline constexpr int32_t kCrossThreads = 32 * (kCrossWarps + 4);
inline constexpr int32_t kCrossRegisters = 240, kCrossMoverRegisters = 24;
static_assert(32 * (kCrossWarps * kCrossRegisters + 4 * kCrossMoverRegisters) <= 65536);  // an SM's
inline constexpr int32_t kCrossPixelBytes = 2 * kCrossChannels;
inline constexpr int32_t kCrossBanksBytes = 512;  // until TMA's order of banks repeats
inline constexpr int32_t kCrossSourceRows = 16, kCrossTargetRows = 8, kCrossColumns = 8;  // of a product
inline constexpr int32_t kCrossProductSums = kCrossSourceRows * kCrossTargetRows;

struct DepthwiseCrossConfig {
  int32_t taps;    // the most rows and columns of the filter
  int32_t stride;  // 1 or 2

  // Columns of taps of the first half of the warps; the others have the rest. Shifts go from the half's last column of
  // taps to its first: each meets a column of x with a column of dy one further on.
  FASTCONV_HOST_DEVICE constexpr int32_t shifts() const { return (taps + 1) / 2; }
  FASTCONV_HOST_DEVICE constexpr int32_t shifts(int32_t half) const { return half == 0 ? shifts() : taps - shifts(); }
  FASTCONV_HOST_DEVICE constexpr int32_t tap(int32_t half, int32_t shift) const {
    return taps - 1 - (stride == 1 ? half * shifts() : half) - stride * shift;
  }
  FASTCONV_HOST_DEVICE constexpr int32_t half_of(int32_t tap) const {
    return stride == 1 ? (taps - 1 - tap) / shifts() : (taps - 1 - tap) % 2;
  }
  FASTCONV_HOST_DEVICE constexpr int32_t shift_of(int32_t tap) const {
    return stride == 1 ? (taps - 1 - tap) % shifts() : (taps - 1 - tap) / 2;
  }
  // The plane of x whose columns a half's taps meet, and the column of dy that its first shift meets with the plane's
  // column 0: x's column p of plane p.
  FASTCONV_HOST_DEVICE constexpr int32_t plane(int32_t half, int32_t padding) const {
    return (tap(half, 0) + padding) % stride;
  }
  FASTCONV_HOST_DEVICE constexpr int32_t first_target(int32_t half, int32_t padding) const {
    return (plane(half, padding) + padding - tap(half, 0)) / stride;
  }
  // Columns of dy that a box has more than a plane of x has.
  FASTCONV_HOST_DEVICE constexpr int32_t more_targets() const { return stride == 1 ? taps - 1 : taps / 2; }
  // Rows of dy of a box, at most: rows of x that they meet fit in a product.
  FASTCONV_HOST_DEVICE constexpr int32_t most_rows() const {
    const int32_t rows = (kCrossSourceRows - taps) / stride + 1;
    return rows < kCrossTargetRows ? rows : kCrossTargetRows;
  }
  FASTCONV_HOST_DEVICE constexpr int32_t met_rows(int32_t rows) const { return stride * (rows - 1) + taps; }
  // In shared memory, in floats, products of a channel and of a warp: a tap's of 32 channels lie in few same banks.
  FASTCONV_HOST_DEVICE constexpr int32_t channel_sums() const { return shifts() * kCrossProductSums + 4; }
  FASTCONV_HOST_DEVICE constexpr int32_t warp_sums() const { return kCrossChunk * channel_sums() + 2; }
  FASTCONV_HOST_DEVICE constexpr int32_t sums_bytes() const { return 4 * kCrossWarps * warp_sums(); }
};

struct DepthwiseCrossTiling {
  int32_t rows, source_rows;      // of a box of dy and of x; the latter divide those by which a box of dy goes on
  int32_t columns, images;        // of a box of a plane; columns at least 8, a multiple of 4, all images' of 8
  int32_t stages, source_stages;  // boxes of dy and of x in shared memory
  int32_t slice_boxes;            // of dy, that a block has

  // Boxes of x that one of dy meets, and how many the next has more.
  FASTCONV_HOST_DEVICE constexpr int32_t met_boxes(const DepthwiseCrossConfig& config) const {
    return static_cast<int32_t>(ceil_div(config.met_rows(rows), source_rows));
  }
  FASTCONV_HOST_DEVICE constexpr int32_t new_boxes(const DepthwiseCrossConfig& config) const {
    return config.stride * rows / source_rows;
  }
  FASTCONV_HOST_DEVICE constexpr int32_t steps() const { return images * columns / kCrossColumns; }  // of a box
  // Pixels of a staged row: an odd number, so that of two rows those that eight lanes read lie in different banks, but
  // for rows of two boxes of x, which an odd number of rows has.
  FASTCONV_HOST_DEVICE constexpr int32_t source_pitch() const { return columns | 1; }
  FASTCONV_HOST_DEVICE constexpr int32_t target_pitch(const DepthwiseCrossConfig& config) const {
    return (columns + config.more_targets()) | 1;
  }
  // Of a plane of an image's, which TMA brings at once.
  FASTCONV_HOST_DEVICE constexpr int32_t source_image_bytes() const {
    return source_rows * source_pitch() * kCrossPixelBytes;
  }
  FASTCONV_HOST_DEVICE constexpr int32_t target_image_bytes(const DepthwiseCrossConfig& config) const {
    return rows * target_pitch(config) * kCrossPixelBytes;
  }
  // From an image's to the next's, whose column 0 has the place among banks of this one's column `columns`: what half
  // of the lanes read of the one and half of the other lies in different banks.
  FASTCONV_HOST_DEVICE constexpr int32_t apart(int32_t image_bytes) const {
    const auto whole = static_cast<int32_t>(round_up(image_bytes, kCrossBanksBytes));
    return whole + columns * kCrossPixelBytes % kCrossBanksBytes;
  }
  // Of a box.
  FASTCONV_HOST_DEVICE constexpr int32_t plane_bytes() const { return images * apart(source_image_bytes()); }
  FASTCONV_HOST_DEVICE constexpr int32_t source_bytes(const DepthwiseCrossConfig& config) const {
    return config.stride * plane_bytes();
  }
  FASTCONV_HOST_DEVICE constexpr int32_t target_bytes(const DepthwiseCrossConfig& config) const {
    return images * apart(target_image_bytes(config));
  }
  // In shared memory: boxes of x, then of dy, then their barriers. A block's products take the place of boxes at last.
  FASTCONV_HOST_DEVICE constexpr int32_t targets_offset(const DepthwiseCrossConfig& config) const {
    return source_stages * source_bytes(config);
  }
  FASTCONV_HOST_DEVICE constexpr int32_t barriers_offset(const DepthwiseCrossConfig& config) const {
    const int32_t boxes = targets_offset(config) + stages * target_bytes(config);
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
  // From a plane's column to the column of dy that comes first in its box.
  FASTCONV_HOST_DEVICE int32_t lead(const DepthwiseCrossConfig& config) const {
    const int32_t first = config.first_target(0, padding_w), second = config.first_target(1, padding_w);
    return first < second ? first : second;
  }
  // From there to the column that a half's first shift meets.
  FASTCONV_HOST_DEVICE int32_t first_shift(const DepthwiseCrossConfig& config, int32_t half) const {
    return config.first_target(half, padding_w) - lead(config);
  }
};

// Where a product has a row of x, in one of the boxes that a box of dy meets. Rows that no tap meets are any.
struct CrossSourceRow {
  int32_t box, row;

  FASTCONV_HOST_DEVICE constexpr CrossSourceRow(const DepthwiseCrossConfig& config, const DepthwiseCrossTiling& tiling,
                                                int32_t product_row) {
    const int32_t last = tiling.met_boxes(config) - 1;
    const int32_t rows = tiling.source_rows;
    box = product_row / rows < last ? product_row / rows : last;
    row = product_row - box * rows < rows ? product_row - box * rows : rows - 1;
  }
};

// How a lane goes through the columns of a box, 8 at a step, of one image after the other. Where a step's columns are
// half of one image and half of the next, lanes do not come to the next at once.
struct CrossColumns {
  int32_t left;                    // of this image, from the lane's on
  int32_t columns;                 // of an image
  int32_t source_gap, target_gap;  // in bytes, from an image's last column on to the next's first

  FASTCONV_HOST_DEVICE CrossColumns(const DepthwiseCrossConfig& config, const DepthwiseCrossTiling& tiling,
                                    int32_t column)
      : left(tiling.columns - (column & 4)),
        columns(tiling.columns),
        source_gap(tiling.apart(tiling.source_image_bytes()) - tiling.columns * kCrossPixelBytes),
        target_gap(tiling.apart(tiling.target_image_bytes(config)) - tiling.columns * kCrossPixelBytes) {}
  // From this step's to the next's, in bytes.
  FASTCONV_HOST_DEVICE void next(int32_t& source_step, int32_t& target_step) {
    left -= kCrossColumns;
    const bool next_image = left <= 0;
    left += next_image ? columns : 0;
    source_step = target_step = kCrossColumns * kCrossPixelBytes;
    source_step += next_image ? source_gap : 0, target_step += next_image ? target_gap : 0;
  }
};

// Of a slice's boxes of dy, those of rows that follow each other, and boxes of x from source_row on: those that the
// first of dy meets, then some more with each of the next.
struct CrossRun {
  int32_t box, boxes;          // the first and how many, of dy
  int32_t image, column, row;  // the first; column of a plane, row of dy
  int32_t source_row;

  FASTCONV_HOST_DEVICE CrossRun(const DepthwiseCrossConfig& config, const DepthwiseCrossParams& params, int32_t slice)
      : CrossRun(config, params, slice * params.tiling.slice_boxes, slice) {}
  FASTCONV_HOST_DEVICE bool exists() const { return boxes > 0; }
  FASTCONV_HOST_DEVICE CrossRun next(const DepthwiseCrossConfig& config, const DepthwiseCrossParams& params,
                                     int32_t slice) const {
    return CrossRun(config, params, box + boxes, slice);
  }

 private:
  FASTCONV_HOST_DEVICE CrossRun(const DepthwiseCrossConfig& config, const DepthwiseCrossParams& params, int32_t first,
                                int32_t slice)
      : box(first) {
    const DepthwiseCrossTiling& tiling = params.tiling;
    int32_t end = (slice + 1) * tiling.slice_boxes;
    if (end > params.boxes) end = params.boxes;
    params.by_row_boxes.divmod(box, image, row);
    params.by_column_tiles.divmod(image, image, column);
    boxes = static_cast<int32_t>(params.by_row_boxes.divisor) - row;
    if (boxes > end - box) boxes = end - box;
    image *= tiling.images, column *= tiling.columns, row *= tiling.rows;
    source_row = config.stride * row - params.padding_h;
  }
};

}  // namespace fastconv
