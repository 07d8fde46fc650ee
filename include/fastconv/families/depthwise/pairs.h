// Depthwise convolution without a stride as matrix products, elements of 16 bits whose channels lie side by side, for
// wide filters: of one row of the filter an operand has, for two channels, all taps of a run of up to 8 neighbouring
// targets. Its 16 rows are the run's targets of the one channel and of the other, its depth two channels of 16
// positions, the columns of the source that the run sees. Half of every four elements, two channels of two positions,
// are of the other channel and zero for sure (PTX ISA, "mma.sp"). The other operand are pixels as they lie, of 8 runs:
// parts of a row, or of the rows of a few images.
//
// A warp has four channels, two such operands, which lie side by side in a pixel. A block has 32 channels, and boxes of
// rows of them, which TMA brings; it stores rows of targets, too.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/families/depthwise/tensors.h"

namespace fastconv {

inline constexpr int32_t kPairsWarps = 8;  // that multiply; of four more one moves rows, for the others' registers
inline constexpr int32_t kPairsThreads = 32 * (kPairsWarps + 4);
inline constexpr int32_t kPairsRegisters = 240, kPairsMoverRegisters = 24;
static_assert(32 * (kPairsWarps * kPairsRegisters + 4 * kPairsMoverRegisters) <= 65536);  // an SM's
inline constexpr int32_t kPairsWarpChannels = 4, kPairsChannels = kPairsWarps * kPairsWarpChannels;
inline constexpr int32_t kPairsPixelBytes = 2 * kPairsChannels;
inline constexpr int32_t kRuns = 8;  // of a block
inline constexpr int32_t kRunTargets = 8, kRunPositions = 16;

struct DepthwisePairsConfig {
  int32_t taps;  // the most rows and columns of the filter

  // Of the source; as many rows of targets are done after each, and sums are in the same registers again.
  FASTCONV_HOST_DEVICE constexpr int32_t box_rows() const { return taps; }
};

struct DepthwisePairsTiling {
  int32_t targets;       // of a run: 8, or 7 where these fill rows, and lie in different banks
  int32_t runs, images;  // of a block: of a row, of so many images
  int32_t unit_rows;     // of targets, that pass through a block one after the other
  int32_t stages;        // boxes of the source on their way, and as many of targets
  int32_t shares;        // blocks that share all units of their channels and columns

  constexpr int32_t columns() const { return runs * targets; }
  // Of the source as it is staged: those that all positions of all runs read, in whole patterns of banks.
  constexpr int32_t pitch() const { return (columns() - targets + kRunPositions + 7) / 8 * 8; }
};

// The position of a run that word `word` of lane `lane` holds, of the four that a lane of a row has.
FASTCONV_HOST_DEVICE constexpr int32_t run_position(int32_t lane, int32_t word) { return 4 * (lane % 4) + word; }
// The position that value `value` of word `word` of a lane's row of the operand meets: two words for each row.
FASTCONV_HOST_DEVICE constexpr int32_t operand_position(int32_t lane, int32_t word, int32_t value) {
  return run_position(lane % 2 * 2 + value, lane % 4 / 2 + 2 * word);
}

struct DepthwisePairsParams : DepthwiseWindows {
  DepthwisePairsTiling tiling;
  int32_t images, channels;
  int32_t units;         // of all images, for the same channels and columns
  int32_t filter_bytes;  // of a channel
  FastDivmod by_channel_blocks, by_column_blocks, by_units_h, by_runs;

  FASTCONV_HOST_DEVICE int32_t source_row_bytes() const { return tiling.pitch() * kPairsPixelBytes; }
  FASTCONV_HOST_DEVICE int32_t box_bytes(int32_t box_rows) const {
    return tiling.images * box_rows * source_row_bytes();
  }
  // Swizzling goes by absolute address, in patterns of 1,024 bytes at most.
  FASTCONV_HOST_DEVICE int32_t stage_bytes(int32_t box_rows) const {
    return (box_bytes(box_rows) + 1023) / 1024 * 1024;
  }
  // Whole patterns of banks.
  FASTCONV_HOST_DEVICE int32_t target_row_bytes() const {
    return (tiling.images * tiling.columns() + 7) / 8 * 8 * kPairsPixelBytes;
  }
  // Of run `run` of a block: pixels from the first one of its staged box, and of a row of targets.
  FASTCONV_HOST_DEVICE int32_t source_pixel(int32_t run, int32_t box_rows) const {
    int32_t image, part;
    by_runs.divmod(run, image, part);
    return image * box_rows * tiling.pitch() + part * tiling.targets;
  }
  FASTCONV_HOST_DEVICE int32_t target_pixel(int32_t run) const {
    return run * tiling.targets;  // images follow each other
  }
  // Where a byte of pixels lies, in the source's boxes and the targets'.
  FASTCONV_HOST_DEVICE static constexpr uint32_t swizzled(uint32_t offset) {
    return swizzled_pixels(offset, kPairsPixelBytes);
  }
};

// What a block works on.
struct PairsShare {
  int32_t channel, column;  // of the target, its first
  int32_t first_unit;

  FASTCONV_HOST_DEVICE PairsShare(const DepthwisePairsParams& params, int32_t block) {
    params.by_channel_blocks.divmod(block, first_unit, channel);
    params.by_column_blocks.divmod(first_unit, first_unit, column);
    channel *= kPairsChannels, column *= params.tiling.columns();
  }
};

// Some rows of targets of a few images, box by box: box i has rows of the source from source_row + i * box_rows on, and
// the targets that they complete, from `output` + i * box_rows on, counted from the unit's first; not all exist.
struct PairsUnit {
  int32_t image, row, outputs;
  int32_t source_row, output;
  int32_t row_boxes, boxes;  // with rows of the source that exist, which come first; all

  FASTCONV_HOST_DEVICE PairsUnit(const DepthwisePairsConfig& config, const DepthwisePairsParams& params, int32_t unit) {
    params.by_units_h.divmod(unit, image, row);
    image *= params.tiling.images, row *= params.tiling.unit_rows;
    outputs = params.target_h - row;
    if (outputs > params.tiling.unit_rows) outputs = params.tiling.unit_rows;
    source_row = row - params.padding_h, output = 1 - config.taps;
    int32_t end = source_row + outputs - 1 + config.taps;
    if (end > params.source_h) end = params.source_h;
    // Rows of padding above that complete no target are left out, as if the filter were finite.
    const int32_t above = source_row < output ? -output : -source_row;
    if (above > 0) source_row += above, output += above;
    const int32_t rows = end - source_row;
    row_boxes = rows > 0 ? (rows + config.box_rows() - 1) / config.box_rows() : 0;
    boxes = (outputs - output + config.box_rows() - 1) / config.box_rows();
  }
};

}  // namespace fastconv
