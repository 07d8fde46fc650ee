// Depthwise convolution as matrix products, 16-bit elements of rows that lie side by side. Eight neighbouring targets
// of a row, a block of columns, see a window of the source's row: multiplied by a banded (Toeplitz) matrix, which holds
// one row of the filter along its diagonals, the window is that row's share of the eight. A product takes the windows
// of 16 blocks, the band has a column for each target.
//
// Lane i of a warp has columns 2 * (i % 4) and the next of blocks i / 4 and i / 4 + 8, in windows, targets and products
// alike: neighbouring lanes read and write neighbouring words, and nothing is exchanged.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"
#include "fastconv/families/depthwise/config.h"
#include "fastconv/families/depthwise/tensors.h"

namespace fastconv {

inline constexpr int32_t kBandedThreads = 128;
inline constexpr int32_t kBandedBlock = 8;      // targets of a block
inline constexpr int32_t kBandedTile = 16;      // blocks of a warp
inline constexpr int32_t kBandedRows = 16;      // of targets, that a warp has where the filter may have any rows
inline constexpr int32_t kBandedGroup = 4;      // of those, that are multiplied at a time
inline constexpr int32_t kBandedUnits = 2;      // blocks of a lane
inline constexpr int32_t kBandedMostWarps = 8;  // of a block of threads, which have rows in shared memory in common
inline constexpr int32_t kBandedBarrierBytes = 16, kBandedBarriersBytes = 128;  // of all, wgrad: before rows and sums
static_assert(kBandedThreads / 32 * kBandedBarrierBytes <= kBandedBarriersBytes);

struct DepthwiseBandedConfig {
  DepthwiseKind kind;
  int32_t taps;    // rows of the filter, or one more; 0: any; kWeights: of a part of the filter
  int32_t stride;  // in both dimensions
  int32_t steps;   // products that a window takes, 16 columns each
  // Elements of an access: a word, or one where rows begin anywhere. 8 is a word and 9 one element of rows that are
  // staged.
  int32_t vector;
  int32_t ahead;  // rows of the source that are on their way while one is multiplied
  int32_t warps;  // that an SM has registers for

  // Rows pass one by one, as in the kernels of multiply-adds.
  constexpr DepthwiseConfig rows() const { return {kind, taps, stride, Lanes::kColumns, 1, 1, ahead, 1}; }
  constexpr bool transposed() const { return kind == DepthwiseKind::kTransposed; }
  constexpr bool computes(Pass pass) const { return rows().computes(pass); }
  constexpr bool any_rows() const { return taps == 0; }
  // Whether TMA brings the rows of a tile to shared memory, of each image all that it sees at once. Images
  // then begin a tile, or share it evenly.
  constexpr bool staged() const { return vector >= 8; }
  constexpr int32_t word() const { return vector % 2 == 1 ? 1 : 2; }  // elements that a lane accesses at once
  // Columns of a filter row in shared memory.
  constexpr int32_t filter_pitch() const { return kBandedBlock + window(); }
  constexpr int64_t filter_bytes(int64_t rows) const {
    return any_rows() ? 4 * filter_pitch() * (rows + 2 * (kBandedGroup - 1)) : 0;
  }
  // Of the sums that a block's warps have of the weight gradient.
  constexpr int64_t sums_bytes() const { return int64_t{kBandedThreads} / 32 * taps * kBandedBlock * window() * 4; }
  // Columns of the source from a block's window to the next one's, and of a window.
  constexpr int32_t advance() const { return transposed() ? kBandedBlock / stride : kBandedBlock * stride; }
  constexpr int32_t window() const { return transposed() ? 8 : 16 * steps; }
  constexpr int32_t words() const { return window() / 8; }  // of a window that a lane has
};

struct DepthwiseBandedTiling {
  int32_t run_rows;  // of targets, that pass through one warp
};

struct DepthwiseBandedParams : DepthwiseWindows {
  int64_t source_row_bytes, target_row_bytes;  // of the strides: what a row adds to addresses
  int32_t first_h;                             // source row at the begin of target row 0's window
  int32_t first_w;                             // column at the begin of block 0's window: even
  int32_t first_tap;                           // of column 0 of the window for target 0 of the block; may be no tap
  int32_t run_rows;
  int32_t channels;      // of the target; wgrad: filters
  int32_t blocks;        // of columns, of all images
  FastDivmod by_blocks;  // of a row
  FastDivmod by_near;    // tiles that lie next to each other: of a row; wgrad: all
  FastDivmod by_runs, by_channels;
  FastDivmod by_filters;           // target channels to a source channel
  int32_t tiles, slice_tiles;      // of a channel; wgrad: and of a slice of them
  FastDivmod by_slices, by_parts;  // wgrad; parts of the filter
  // Staged.
  int32_t images;              // of the batch
  int32_t tile_images;         // at most
  int32_t image_bytes;         // in shared memory, from one image's rows of the source to the next one's
  int32_t target_image_bytes;  // wgrad: the same of dy

  // The first that a tile sees.
  FASTCONV_HOST_DEVICE int32_t first_row(const DepthwiseBandedConfig& config, int32_t target_row) const {
    return first_h + (config.transposed() ? target_row / config.stride : target_row * config.stride);
  }
};

// What a warp has: a run of rows of 16 blocks.
struct BandedTile {
  int32_t channel, row, block;
  int32_t image;  // of its first block
};

// By its number: `near`, the run, and what is left. Its blocks need not exist.
FASTCONV_HOST_DEVICE BandedTile banded_tile(const DepthwiseBandedParams& params, int32_t channel, int32_t near,
                                            int32_t run, int32_t far) {
  const int32_t block = (far * static_cast<int32_t>(params.by_near.divisor) + near) * kBandedTile;
  return {channel, run * params.run_rows, block, params.by_blocks.div(block)};
}
FASTCONV_HOST_DEVICE BandedTile banded_tile(const DepthwiseBandedParams& params, int32_t channel, int32_t index) {
  int32_t near, run, far;
  params.by_near.divmod(index, run, near);
  params.by_runs.divmod(run, far, run);
  return banded_tile(params, channel, near, run, far);
}
// By the number of a warp: those that follow each other have what follows in memory, channel by channel.
FASTCONV_HOST_DEVICE BandedTile banded_tile(const DepthwiseBandedParams& params, int32_t warp) {
  int32_t near, run, channel, far;
  params.by_near.divmod(warp, run, near);
  params.by_runs.divmod(run, channel, run);
  params.by_channels.divmod(channel, far, channel);
  return banded_tile(params, channel, near, run, far);
}

// One of a lane's two blocks: images, and columns of its first word.
struct BandedBlock {
  int32_t image, source, target;
  bool exists;
};
FASTCONV_HOST_DEVICE BandedBlock banded_block(const DepthwiseBandedConfig& config, const DepthwiseBandedParams& params,
                                              const BandedTile& tile, int32_t lane, int32_t unit) {
  const int32_t index = tile.block + unit * kBandedBlock + lane / 4;
  int32_t image, block;
  params.by_blocks.divmod(index, image, block);
  const int32_t column = 2 * (lane % 4);
  return {image, params.first_w + config.advance() * block + column, kBandedBlock * block + column,
          index < params.blocks};
}

// The tap in column `column` of the window that target `target` of the block meets; less than 0 or beyond the filter if
// there is none.
FASTCONV_HOST_DEVICE int32_t banded_tap(const DepthwiseBandedConfig& config, const DepthwiseBandedParams& params,
                                        int32_t column, int32_t target) {
  return config.transposed() ? params.first_tap + target - config.stride * column
                             : params.first_tap + column - config.stride * target;
}

}  // namespace fastconv
