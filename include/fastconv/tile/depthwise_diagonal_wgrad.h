// Weight gradient of a depthwise convolution, channels side by side, 16 bits, as matrix products: pixels are what is
// summed over, 16 of dy at a time. Eight channels of x at two neighbouring taps, transposed, are the rows, the same
// channels of dy the columns. Of a product only each channel with itself is of use: the taps of its two copies.
//
// Columns of a tile are those of all images side by side, so that narrow rows fill products too. A row of dy is staged
// as it is: a position for each column of the tile. A row of x has a part for each phase of the stride; there neighbours
// of a tap are neighbours, and after each image's columns come those that only its last taps see.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"
#include "fastconv/tile/depthwise_config.h"
#include "fastconv/tile/depthwise_tensors.h"

namespace fastconv {

inline constexpr int32_t kDiagonalChannels = 8;      // of a warp: 16 bytes
inline constexpr int32_t kDiagonalWgradWarps = 4;    // of a block, which has a pixel's 64 bytes: whole sectors
inline constexpr int32_t kDiagonalWgradPixels = 16;  // of a product
inline constexpr int32_t kDiagonalWgradThreads = 32 * kDiagonalWgradWarps;
inline constexpr int32_t kStagedPixelBytes = 2 * kDiagonalChannels * kDiagonalWgradWarps;

struct DiagonalWgradConfig {
  int32_t taps;    // rows and columns of the filter at most
  int32_t stride;  // in both dimensions
  int32_t units;   // products side by side: of 16 columns of dy each, an even number
  int32_t ahead;   // rows of dy, and those of x that come with them, on their way
  int32_t blocks;  // that a multiprocessor has registers for

  // Rows pass one by one, as in the kernels of multiply-adds.
  constexpr DepthwiseConfig rows() const {
    return {DepthwiseKind::kWeights, taps, stride, Lanes::kChannels, 1, 1, ahead, 1};
  }
  constexpr int32_t columns() const { return units * kDiagonalWgradPixels; }
  constexpr int32_t pairs() const { return (taps + 1) / 2; }  // of taps of a filter row: products
  // Positions of a phase after an image's columns.
  constexpr int32_t gap() const { return (taps - 1) / stride; }
  // A thread's share of a staged row: 16 bytes of every 32nd pixel.
  constexpr int32_t source_copies() const { return stride * units / 2 + 1; }
  constexpr int32_t target_copies() const { return units / 2; }
  constexpr int32_t most_positions() const { return kDiagonalWgradThreads / kDiagonalWgradWarps * source_copies(); }
};

struct DiagonalWgradTiling {
  int32_t columns;  // of a tile
};

struct DiagonalWgradParams : DepthwiseTensors {
  int32_t source_h, source_w, target_h, target_w;
  int32_t padding_h, padding_w, taps_h, taps_w;
  int32_t channels, images;
  int32_t columns, all_columns;  // of dy: of a tile, and of all images
  int32_t phase;                 // positions of each phase of a row of x
  int32_t rows, slice_rows;      // of dy, of all tiles
  int32_t stage_bytes;
  FastDivmod by_chunks;                 // of channels, a block each
  FastDivmod by_rows, by_columns;       // of a tile; of an image
  FastDivmod by_phases, by_positions;  // of a row of x: a phase, an image's part of it

  FASTCONV_HOST_DEVICE int32_t source_positions(const DiagonalWgradConfig& config) const {
    return config.stride * phase;
  }
};

// What a slice goes through, step by step: each brings a row of dy and so many of x as the stride. Rows of dy of one
// tile that follow each other are a run: then come steps that bring rows of x alone.
struct DiagonalWgradWalk {
  int32_t next_row, end;  // of all tiles
  int32_t tile, row;      // of the run: its first row of dy
  int32_t outputs, steps, step = 0;

  FASTCONV_HOST_DEVICE DiagonalWgradWalk(const DiagonalWgradConfig& config, const DiagonalWgradParams& params,
                                         int32_t slice)
      : next_row(slice * params.slice_rows) {
    end = next_row + params.slice_rows < params.rows ? next_row + params.slice_rows : params.rows;
    start_run(config, params);
  }
  FASTCONV_HOST_DEVICE bool exists() const { return step < steps; }
  FASTCONV_HOST_DEVICE void next(const DiagonalWgradConfig& config, const DiagonalWgradParams& params) {
    if (++step == steps) start_run(config, params);
  }
  FASTCONV_HOST_DEVICE bool has_target() const { return step < outputs; }
  // Row of x number `a` of the step; it may not exist.
  FASTCONV_HOST_DEVICE int32_t source_row(const DiagonalWgradConfig& config, const DiagonalWgradParams& params,
                                          int32_t a) const {
    return (row + step) * config.stride - params.padding_h + a;
  }

 private:
  FASTCONV_HOST_DEVICE void start_run(const DiagonalWgradConfig& config, const DiagonalWgradParams& params) {
    step = steps = 0;
    if (next_row >= end) return;
    params.by_rows.divmod(next_row, tile, row);
    outputs = end - next_row < params.target_h - row ? end - next_row : params.target_h - row;
    next_row += outputs;
    // Rows of padding are left out, so that a run's last rows of x are all that exist.
    const int32_t seen = outputs + (params.taps_h - 1) / config.stride;
    const int32_t left = (params.source_h - source_row(config, params, 0) + config.stride - 1) / config.stride;
    steps = seen < left ? seen : left;
  }
};

// Where a tile's columns begin.
struct DiagonalWgradTile {
  int32_t image, column;  // the first of its columns
  int32_t columns;        // that exist

  FASTCONV_HOST_DEVICE DiagonalWgradTile(const DiagonalWgradParams& params, int32_t index) {
    const int32_t first = index * params.columns, left = params.all_columns - first;
    params.by_columns.divmod(first, image, column);
    columns = left < params.columns ? left : params.columns;
  }
};

// Of one of the tensors; image 0 is the tile's first.
struct DiagonalPixel {
  int32_t image, column;
  bool exists;
};
FASTCONV_HOST_DEVICE DiagonalPixel diagonal_target(const DiagonalWgradParams& params, const DiagonalWgradTile& tile,
                                                   int32_t position) {
  DiagonalPixel at{};
  params.by_columns.divmod(tile.column + position, at.image, at.column);
  at.exists = position < tile.columns;
  return at;
}
FASTCONV_HOST_DEVICE DiagonalPixel diagonal_source(const DiagonalWgradConfig& config, const DiagonalWgradParams& params,
                                                   const DiagonalWgradTile& tile, int32_t position) {
  DiagonalPixel at{};
  int32_t phase;
  params.by_phases.divmod(position, phase, position);
  params.by_positions.divmod(tile.column + position, at.image, at.column);
  at.column = at.column * config.stride + phase - params.padding_w;
  at.exists = tile.image + at.image < params.images && at.column >= 0 && at.column < params.source_w;
  return at;
}
// Position of x that a column of dy meets at tap 0. Columns that do not exist are zeros in dy, and any pixel does.
FASTCONV_HOST_DEVICE int32_t diagonal_position(const DiagonalWgradConfig& config, const DiagonalWgradParams& params,
                                               const DiagonalWgradTile& tile, int32_t column) {
  return column < tile.columns ? column + config.gap() * params.by_columns.div(tile.column + column) : 0;
}
// From there to a tap's.
FASTCONV_HOST_DEVICE int32_t diagonal_step(const DiagonalWgradConfig& config, const DiagonalWgradParams& params,
                                           int32_t tap) {
  return tap / config.stride + tap % config.stride * params.phase;
}

// Where shared memory has what would lie at `address` if a pixel's chunks of eight channels were in order: chunks of
// neighbours change places, so that eight neighbours have one chunk in different banks. Pixels begin at multiples of
// their size.
FASTCONV_HOST_DEVICE uint32_t staged_address(uint32_t address) {
  constexpr uint32_t kChunkBytes = 2 * kDiagonalChannels, kLine = 128;
  return address ^ address / kLine % kDiagonalWgradWarps * kChunkBytes;
}

}  // namespace fastconv
