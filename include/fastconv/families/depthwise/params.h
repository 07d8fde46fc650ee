// Parameters of the depthwise kernels, and what follows from them for a block and a thread.
#pragma once

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"
#include "fastconv/families/depthwise/config.h"
#include "fastconv/families/depthwise/tensors.h"

namespace fastconv {

FASTCONV_HOST_DEVICE int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }

// Rows or columns. A dilated convolution is several that are not, interleaved: outputs `strands` apart see source rows
// `source_step` apart, and no others. A tile belongs to one strand.
struct DepthwiseAxis {
  int32_t source_extent, target_extent;
  int32_t source_step;
  int32_t stride;      // source rows from a target row to the next one; 1 if transposed
  FastDivmod up;       // target rows to a source row; 1 unless transposed
  int32_t first;       // source row at the window's begin, where the tile's first output is row 0
  int32_t tile;        // outputs
  FastDivmod strands;  // the divisor is their number
  int32_t tiles;       // of all strands

  FASTCONV_HOST_DEVICE int32_t target(int32_t tile_index) const {
    int32_t along, strand;
    strands.divmod(tile_index, along, strand);
    return strand + static_cast<int32_t>(strands.divisor) * tile * along;
  }
  // Of a tile's outputs, those that exist.
  FASTCONV_HOST_DEVICE int32_t outputs(int32_t first_target) const {
    return min32(tile, strands.div(target_extent - first_target + target_step() - 1));
  }
  FASTCONV_HOST_DEVICE int32_t target_step() const { return static_cast<int32_t>(strands.divisor); }
  FASTCONV_HOST_DEVICE int32_t source(int32_t target) const { return up.div(target) * stride + first; }
};

struct DepthwiseParams : DepthwiseTensors {
  DepthwiseAxis h, w;
  int32_t channels;       // of the target; wgrad: filters
  FastDivmod by_filters;  // target channels to a source channel
  DepthwiseTiling tiling;
  DepthwiseStages stages, target_stages;  // wgrad: the latter of dy
  // Of a block's number, fastest first; and of a thread's.
  FastDivmod by_chunks, by_patches_w, by_patches_h;
  FastDivmod by_channels, by_columns, by_runs;
  // wgrad: a slice is so many tiles of all images.
  int64_t tiles, slice_tiles;
  // Staged: tiles are patches of all rows, which a block reads together, in so many boxes. A step has a row of dy; the
  // first ones have no row of x.
  int32_t patch_boxes, patch_steps, steps_before;
  FastDivmod by_tiles_w, by_tiles_h;
};

// wgrad: floats of a block's sums for a tap; where lanes are channels with one between the parts, so that neither
// neighbouring channels nor taps share a bank.
FASTCONV_HOST_DEVICE constexpr int32_t depthwise_block_sums(const DepthwiseConfig& config,
                                                            const DepthwiseTiling& tiling) {
  if (config.lanes == Lanes::kColumns) return kDepthwiseThreads / 32;
  return kDepthwiseThreads / tiling.channels * (tiling.channels * config.channels() + 1);
}

// The tile of a thread.
struct DepthwisePlace {
  int32_t image, channel;  // the first of its channels
  int32_t row, column;     // the first of its targets
  bool exists;
};

FASTCONV_HOST_DEVICE DepthwisePlace depthwise_place(const DepthwiseConfig& config, const DepthwiseParams& params,
                                                    int32_t block, int32_t thread) {
  int32_t chunk, patch_w, patch_h, image, c, w, h;
  if (config.lanes == Lanes::kChannels) {
    params.by_chunks.divmod(block, block, chunk);
    params.by_patches_w.divmod(block, block, patch_w);
    params.by_patches_h.divmod(block, image, patch_h);
    params.by_channels.divmod(thread, thread, c);
    params.by_columns.divmod(thread, h, w);
  } else {
    params.by_patches_w.divmod(block, block, patch_w);
    params.by_patches_h.divmod(block, block, patch_h);
    params.by_chunks.divmod(block, image, chunk);
    params.by_columns.divmod(thread, thread, w);
    params.by_runs.divmod(thread, c, h);
  }
  const DepthwiseTiling& tiling = params.tiling;
  const int32_t tile_w = patch_w * tiling.columns + w, tile_h = patch_h * tiling.runs + h;
  const int32_t channel = (chunk * tiling.channels + c) * config.channels();
  return {image, channel, params.h.target(tile_h), params.w.target(tile_w),
          h < tiling.runs && c < tiling.channels && channel < params.channels && tile_h < params.h.tiles &&
              tile_w < params.w.tiles};
}

// Bytes from a staged column to the next, of elements of so many bytes.
FASTCONV_HOST_DEVICE constexpr int32_t staged_column_bytes(const DepthwiseConfig& config, int32_t size) {
  return size * (config.lanes == Lanes::kColumns ? 1 : kStagedLanes * config.vector);
}
// The first source column of a block, whose first thread is at `block`. NOTES: TMA begins at multiples of
// 16 bytes alone.
FASTCONV_HOST_DEVICE int32_t staged_column(const DepthwiseConfig& config, const DepthwiseParams& params, int32_t size,
                                           const DepthwisePlace& block) {
  const int32_t column = params.w.source(block.column);
  return config.lanes == Lanes::kColumns ? column & -(16 / size) : column;
}
// Bytes from the stage's begin to a thread's first channel and column.
FASTCONV_HOST_DEVICE int32_t staged_offset(const DepthwiseConfig& config, const DepthwiseParams& params, int32_t size,
                                           const DepthwisePlace& at, const DepthwisePlace& block) {
  const int32_t columns = params.w.source(at.column) - staged_column(config, params, size, block);
  return (at.channel - block.channel) * params.stages.channel_bytes + columns * staged_column_bytes(config, size);
}

// Of the weight gradient: a patch, and a tile, by its number.
FASTCONV_HOST_DEVICE DepthwisePlace depthwise_patch(const DepthwiseParams& params, int32_t channel, int32_t patch) {
  DepthwisePlace at{0, channel, 0, 0, true};
  params.by_patches_w.divmod(patch, at.image, at.column);
  at.column = params.w.target(at.column * params.tiling.columns);
  return at;
}
FASTCONV_HOST_DEVICE DepthwisePlace depthwise_tile(const DepthwiseParams& params, int32_t channel, int32_t tile) {
  DepthwisePlace at{0, channel, 0, 0, true};
  params.by_tiles_w.divmod(tile, at.image, at.column);
  params.by_tiles_h.divmod(at.image, at.image, at.row);
  at.row = params.h.target(at.row);
  at.column = params.w.target(at.column);
  return at;
}

}  // namespace fastconv
