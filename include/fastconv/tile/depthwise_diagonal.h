// Depthwise convolution as matrix products, 16-bit elements whose channels lie side by side. One row of the filter is
// an operand of 16 rows, 8 channels of two neighbouring targets (a pair), and of as many columns, 8 channels of each
// position: a column of the source that the pair may see. All that it holds are diagonals, one for each target and
// position, so that half of every four elements are zero for sure and the product takes half the time (PTX ISA,
// "mma.sp"). The other operand are pixels as they lie: 16 bytes a pixel, the positions of 8 pairs.
//
// A warp has 8 channels, a chunk, of 8 pairs. Rows of the source pass through shared memory, where a block's warps,
// some chunks times some groups of 16 columns, share them: a stage of rows at a time. The filter's operands take long
// to make, so a block goes through runs of rows of several images, and stages those of the next while it ends one.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/integers.h"
#include "fastconv/core/problem.h"
#include "fastconv/tile/depthwise_config.h"
#include "fastconv/tile/depthwise_tensors.h"

namespace fastconv {

inline constexpr int32_t kChunk = 8;  // channels
inline constexpr int32_t kChunkBytes = 16;
inline constexpr int32_t kPairs = 8;              // of a warp
inline constexpr int32_t kPairColumns = 2;        // targets of a pair
inline constexpr int32_t kProductPositions = 4;   // of a product
inline constexpr int32_t kMostDiagonalWarps = 8;  // of a block
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
  int32_t shifts;  // of a stage: so often its products move the sums up; rows of the source follow from it
  int32_t ahead;   // stages that are on their way while one is multiplied
  int32_t warps;   // that a multiprocessor has registers for

  // Rows pass one by one, as in the kernels of multiply-adds.
  constexpr DepthwiseConfig rows() const { return {kind, taps, stride, Lanes::kChannels, kChunk, 1, ahead, shifts}; }
  constexpr bool transposed() const { return kind == DepthwiseKind::kTransposed; }
  constexpr bool computes(Pass pass) const { return rows().computes(pass); }
  // Columns of the source from a pair's first position to the next pair's, and the positions of a pair.
  constexpr int32_t advance() const { return transposed() ? kPairColumns / stride : kPairColumns * stride; }
  constexpr int32_t positions() const {
    return transposed() ? (taps - 1) / stride + 1 : (kPairColumns - 1) * stride + taps;
  }
  constexpr int32_t products() const { return (positions() + kProductPositions - 1) / kProductPositions; }
  // For `groups` warps side by side. Positions that products have beyond a pair's are read as well.
  constexpr StagedRow staged(int32_t chunks, int32_t groups) const {
    return {advance(), advance() * (kPairs * groups - 1) + kProductPositions * products(), chunks};
  }
  // Columns that each thread of a block copies, at most.
  constexpr int32_t copies() const { return static_cast<int32_t>(ceil_div(staged(1, 1).columns, 32)); }
  constexpr int32_t stage_rows() const { return rows().rows_a_shift() * shifts; }
};

struct DepthwiseDiagonalTiling {
  int32_t chunks, groups;  // of a block: warps of other channels, and of other columns
  int32_t run_rows;        // of targets
  int32_t runs;            // that pass through one block
  int32_t columns = 0;     // wgrad: of a tile
};

struct DepthwiseDiagonalParams : DepthwiseWindows {
  int32_t first_h, first_w;  // of the source: row at the begin of target row 0's window, position 0 of pair 0
  int32_t first_tap;         // transposed: of target 0 at position 0; may be no tap
  int32_t first_output;      // target row, counted from a run's first, that is done when the first row it sees is
  int32_t chunks;            // of the tensors' channels
  StagedRow staged;
  int32_t run_rows, runs, block_runs;  // of targets; of all images; of a block
  FastDivmod by_staged_chunks;
  FastDivmod by_chunk_blocks, by_column_blocks;
  FastDivmod by_runs;  // of an image
};

// Where a block begins, and its runs.
struct DiagonalBlock {
  int32_t column, chunk;  // of the target
  int32_t run, runs_end;
};
FASTCONV_HOST_DEVICE DiagonalBlock diagonal_block(const DepthwiseDiagonalParams& params, int32_t block,
                                                  int32_t groups) {
  DiagonalBlock at{};
  params.by_chunk_blocks.divmod(block, block, at.chunk);
  params.by_column_blocks.divmod(block, block, at.column);
  at.chunk *= params.staged.chunks, at.column *= kDiagonalColumns * groups, at.run = block * params.block_runs;
  at.runs_end = params.runs - at.run < params.block_runs ? params.runs : at.run + params.block_runs;
  return at;
}

// Rows of targets of one image, and the rows of the source that they see, as far as these exist: rows of padding are
// left out, as if the filter were finite.
struct DiagonalRun {
  int32_t image, row, outputs;     // of the target
  int32_t source_row, source_end;  // may lie before the image where a stride does not begin at its first row
  int32_t stages;                  // may be none
  int32_t output;                  // counted from `row`, that is done with the first shift of the first stage

  FASTCONV_HOST_DEVICE DiagonalRun(const DepthwiseDiagonalConfig& config, const DepthwiseDiagonalParams& params,
                                   int32_t index) {
    const DepthwiseConfig rows = config.rows();
    params.by_runs.divmod(index, image, row);
    row *= params.run_rows;
    outputs = params.target_h - row < params.run_rows ? params.target_h - row : params.run_rows;
    const int32_t first = params.first_h + (config.transposed() ? row / config.stride : row * config.stride);
    const int32_t shifts = (outputs - 1 - params.first_output) / rows.shift() + 1;  // until the last target is done
    const int32_t before = first < 0 ? -first / rows.rows_a_shift() : 0;            // of them, without rows that exist
    source_row = first + before * rows.rows_a_shift();
    source_end = first + (config.transposed() ? shifts : (outputs - 1) * config.stride + config.taps);
    if (source_end > params.source_h) source_end = params.source_h;
    stages = source_end > source_row ? (source_end - source_row - 1) / config.stage_rows() + 1 : 0;
    output = params.first_output + before * rows.shift();
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
