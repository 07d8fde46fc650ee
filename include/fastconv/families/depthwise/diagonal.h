// Depthwise convolution as matrix products, elements of 16 bits, or float32 rounded to TF32, whose channels lie side by
// side. One row of the filter is an operand of 16 rows, 8 channels of two neighbouring targets (a pair), and of as many
// columns, 8 channels of each position: a column of the source that the pair may see. All that it holds are diagonals,
// one for each target and position, so that half of every four elements are zero for sure and the product takes half
// the time (PTX ISA, "mma.sp"). The other operand are pixels as they lie: 16 bytes a pixel, the positions of 8 pairs.
// Of groups of 2, 4 or 8 channels it holds blocks beside a diagonal, and a product takes them all, of half as many
// positions; of groups of 16 there are two such operands, one for each chunk of the group.
//
// A warp has 8 channels, a chunk, of 8 pairs. Rows of the source pass through shared memory, where a block's warps,
// some chunks times some runs of 16 columns, share them. Threads copy rows one by one or, on sm_90a, TMA
// boxes of a few, and rows of targets back.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/integers.h"
#include "fastconv/core/problem.h"
#include "fastconv/families/depthwise/config.h"
#include "fastconv/families/depthwise/tensors.h"

namespace fastconv {

inline constexpr int32_t kChunk = 8;        // channels
inline constexpr int32_t kPieceBytes = 16;  // of a pixel, that a lane names: a chunk of 16 bits, half of float32's
inline constexpr int32_t kChunkBytes = kPieceBytes;  // of 16 bits
inline constexpr int32_t kPairs = 8;                 // of a warp
inline constexpr int32_t kPairColumns = 2;           // targets of a pair
inline constexpr int32_t kReadPieces = 4;            // that a warp loads of each pair at once
inline constexpr int32_t kMostDiagonalWarps = 8;     // of a block
inline constexpr int32_t kDiagonalColumns = kPairs * kPairColumns;

// Some columns of a row of pixels in shared memory: [chunk][column % advance][column / advance] of a chunk. Pixels that
// lie `advance` columns apart are the rows of one matrix that is loaded, and so lie side by side, in different banks.
struct StagedRow {
  int32_t advance, columns, chunks;

  FASTCONV_HOST_DEVICE constexpr int32_t plane() const { return (columns + advance - 1) / advance; }
  FASTCONV_HOST_DEVICE constexpr int32_t chunk_bytes() const { return advance * plane() * kChunkBytes; }
  FASTCONV_HOST_DEVICE constexpr int32_t bytes() const { return chunks * chunk_bytes(); }
  FASTCONV_HOST_DEVICE constexpr int32_t at(int32_t chunk, int32_t column) const {
    return chunk * chunk_bytes() + (column % advance * plane() + column / advance) * kChunkBytes;
  }
};

struct DepthwiseDiagonalConfig {
  DepthwiseKind kind;
  int32_t taps;    // the most rows and columns of the filter
  int32_t stride;  // in both dimensions
  int32_t ahead;   // stages that are on their way while one is multiplied: as many rows of the source as a shift takes
  int32_t warps;   // that an SM has registers for
  int32_t box_rows = 0;  // of a stage, if TMA brings them; `ahead` is then the number of all stages
  // Chunks of the source that one of the target sees: where groups have several channels, 1 or 2; otherwise 0, as of
  // most weight gradients, which have the sums of all channels of a chunk in any case.
  int32_t group_chunks = 0;
  int32_t element_bytes = 2;  // 4: float32, of groups and in boxes alone

  // 16 bytes of a pixel's chunk, and positions that are loaded at once.
  constexpr int32_t pieces() const { return element_bytes / 2; }
  constexpr int32_t chunk_bytes() const { return pieces() * kPieceBytes; }
  constexpr int32_t read_positions() const { return kReadPieces / pieces(); }
  // Rows pass one by one, as in the kernels of multiply-adds.
  constexpr DepthwiseConfig rows() const { return {kind, taps, stride, Lanes::kChannels, kChunk, 1, ahead, 1}; }
  constexpr bool transposed() const { return kind == DepthwiseKind::kTransposed; }
  constexpr bool computes(Pass pass) const { return rows().computes(pass); }
  // Columns of the source from a pair's first position to the next pair's, and the positions of a pair.
  constexpr int32_t advance() const { return transposed() ? kPairColumns / stride : kPairColumns * stride; }
  constexpr int32_t positions() const {
    return transposed() ? (taps - 1) / stride + 1 : (kPairColumns - 1) * stride + taps;
  }
  constexpr int32_t reads() const { return (positions() + read_positions() - 1) / read_positions(); }
  constexpr bool groups() const { return group_chunks > 0; }
  constexpr int32_t sources() const { return groups() ? group_chunks : 1; }  // chunks
  // Of a source. A product takes two pieces of each pair; diagonals are half zeros for sure, so that it takes all that
  // is loaded at once.
  constexpr int32_t products() const { return groups() ? (positions() * pieces() + 1) / 2 : reads(); }
  constexpr int32_t operands() const { return sources() * products(); }  // of a row of the filter
  // Of groups: an odd number of positions leaves the last product one, and half of an operand's words.
  constexpr bool is_half(int32_t operand) const {
    return groups() && positions() * pieces() % 2 != 0 && operand % products() == products() - 1;
  }
  constexpr bool takes_groups_of(int64_t channels) const {
    if (group_chunks == 2) return channels == 2 * kChunk;
    if (kind != DepthwiseKind::kWeights && (channels > 1) != groups()) return false;
    return channels >= 1 && kChunk % channels == 0;
  }
  // For `groups` warps side by side. Positions that products have beyond a pair's are read as well.
  constexpr StagedRow staged(int32_t chunks, int32_t groups) const {
    return {advance(), advance() * (kPairs * groups - 1) + read_positions() * reads(), chunks};
  }
  // Columns that each thread of a block copies, at most.
  constexpr int32_t copies() const { return static_cast<int32_t>(ceil_div(staged(1, 1).columns, 32)); }
  constexpr int32_t stage_rows() const { return rows().rows_a_shift(); }
  constexpr bool boxed() const { return box_rows > 0; }
  // Of a box's columns, column % planes() each. Without a stride two pixels of a loaded matrix share banks of shared
  // memory, which costs less than copies of twice as many, shorter rows.
  constexpr int32_t planes() const { return stride == 1 ? 1 : advance(); }
  // Of a box: stages of rows of the source, and the rows of targets that they complete.
  constexpr int32_t box_stages() const { return box_rows / stage_rows(); }
  constexpr int32_t box_targets() const { return box_stages() * rows().shift(); }
  // Of output and input gradient: whether warps do not meet at a box's end, but store it, and ask for another one, when
  // they are at work with the next. Float32 leaves no registers for that, and stages of two chunks, of which few fit
  // shared memory, would be asked for too late.
  constexpr bool stores_late() const { return boxed() && element_bytes == 2 && sources() == 1; }
};

// What TMA moves for a block, as it lies in shared memory: pixels of the block's channels, of the source in
// planes, whose rows repeat the engine's pattern of banks.
struct DiagonalBoxes {
  int32_t pixel_bytes, plane_pixels;  // pixels of a row of a plane
  int32_t plane_bytes, stage_bytes;
  int32_t target_row_bytes;
  int32_t filter_bytes;   // of a chunk
  int32_t targets_bytes;  // where targets wait to be stored, and the block's filters to be read before

  FASTCONV_HOST_DEVICE constexpr int32_t row_bytes() const { return plane_pixels * pixel_bytes; }
  FASTCONV_HOST_DEVICE constexpr uint32_t swizzled(uint32_t offset) const {
    return swizzled_pixels(offset, pixel_bytes);
  }
};
inline constexpr int32_t kDiagonalTargetBoxes = 3;  // being written, and being stored

struct DepthwiseDiagonalTiling {
  int32_t chunks, groups;  // of a block: warps of other channels, and of other columns
  int32_t run_rows;        // of targets, that pass through one block
  int32_t columns = 0;     // wgrad: of a tile
  int32_t shares = 1;      // boxed: of the runs of all images
};

struct DepthwiseDiagonalParams : DepthwiseWindows {
  int32_t first_h, first_w;  // of the source: row at the begin of target row 0's window, position 0 of pair 0
  int32_t first_tap;         // transposed: of target 0 at position 0; may be no tap
  int32_t first_output;      // target row, counted from a run's first, that is done when its first stage is
  int32_t chunks;            // of the tensors' channels
  int32_t group_channels;    // a power of two
  // Of the filter, from one channel of a group to the next, of the target and of the source.
  int64_t target_channel_step, source_channel_step;
  StagedRow staged;
  int32_t run_rows;
  FastDivmod by_staged_chunks;
  FastDivmod by_chunk_blocks, by_column_blocks, by_runs;
  DiagonalBoxes boxes;    // if TMA brings rows; then a block has
  int32_t units, shares;  // every so manieth run of rows of all images

  FASTCONV_HOST_DEVICE int32_t first_of_group(int32_t channel) const { return channel & -group_channels; }
  // The first that a run sees.
  FASTCONV_HOST_DEVICE int32_t first_row(const DepthwiseDiagonalConfig& config, int32_t target_row) const {
    return first_h + (config.transposed() ? target_row / config.stride : target_row * config.stride);
  }
  // Rows that a run sees, where the filter has all rows that it may have.
  FASTCONV_HOST_DEVICE int32_t seen(const DepthwiseDiagonalConfig& config, int32_t outputs) const {
    return config.transposed() ? stages(config, outputs) : (outputs - 1) * config.stride + config.taps;
  }
  // Stages until the last of a run's targets is done.
  FASTCONV_HOST_DEVICE int32_t stages(const DepthwiseDiagonalConfig& config, int32_t outputs) const {
    const int32_t shift = config.transposed() ? config.stride : 1;
    return (outputs - 1 - first_output) / shift + 1;
  }
};

// Where a block begins.
struct DiagonalBlock {
  int32_t image, row, column, chunk;  // row and column of the target
};
FASTCONV_HOST_DEVICE DiagonalBlock diagonal_block(const DepthwiseDiagonalParams& params, int32_t block,
                                                  int32_t groups) {
  DiagonalBlock at{};
  params.by_chunk_blocks.divmod(block, block, at.chunk);
  params.by_column_blocks.divmod(block, block, at.column);
  params.by_runs.divmod(block, at.image, at.row);
  at.chunk *= params.staged.chunks, at.column *= kDiagonalColumns * groups, at.row *= params.run_rows;
  return at;
}
// A run of rows of an image, box by box: box i has rows of the source from source_row + i * box_rows on, and the target
// rows that they complete, from `output` + i * box_targets() on, counted from the run's first; not all of these exist.
struct DiagonalUnit {
  int32_t image, row, outputs;
  int32_t source_row, output;
  int32_t row_boxes, boxes;  // with rows of the source that exist, which come first; all

  FASTCONV_HOST_DEVICE DiagonalUnit(const DepthwiseDiagonalConfig& config, const DepthwiseDiagonalParams& params,
                                    int32_t unit) {
    params.by_runs.divmod(unit, image, row);
    row *= params.run_rows;
    outputs = params.target_h - row;
    if (outputs > params.run_rows) outputs = params.run_rows;
    source_row = params.first_row(config, row), output = params.first_output;
    int32_t end = source_row + params.seen(config, outputs);
    if (end > params.source_h) end = params.source_h;
    // Rows of padding above that complete no target are left out, as if the filter were finite.
    const int32_t stage_rows = config.stage_rows(), shift = config.rows().shift();
    while (source_row + stage_rows <= 0 && output + shift <= 0) source_row += stage_rows, output += shift;
    const int32_t rows = end - source_row;
    row_boxes = rows > 0 ? (rows + config.box_rows - 1) / config.box_rows : 0;
    boxes = (outputs - output + config.box_targets() - 1) / config.box_targets();
  }
};

// The column of the source that a block has staged first.
FASTCONV_HOST_DEVICE int32_t diagonal_source_column(const DepthwiseDiagonalConfig& config,
                                                    const DepthwiseDiagonalParams& params, const DiagonalBlock& block) {
  return params.first_w + block.column / kPairColumns * config.advance();
}

// The tap at which target `target` of a pair meets a position; less than 0 or beyond the filter if it does not.
FASTCONV_HOST_DEVICE int32_t diagonal_tap(const DepthwiseDiagonalConfig& config, const DepthwiseDiagonalParams& params,
                                          int32_t position, int32_t target) {
  return config.transposed() ? params.first_tap + target - config.stride * position : position - config.stride * target;
}

}  // namespace fastconv
