// Weight gradient of a depthwise convolution, or of groups of 2 to 16 channels, as matrix products, 16-bit elements
// whose channels lie side by side: pixels are what is summed over, 16 columns of dy at a time. Rows of a product are 8
// channels of x at two neighbouring taps, columns the same channels of dy. Of the sums only those of a channel with its
// group's are of use. The others are each for itself, and nothing reads them.
//
// Columns of a tile are those of all images side by side, so that narrow rows, too, fill products. Dy is staged as it
// is, one position a column. In a row of x the columns of an image are followed by those that only its last taps see.
// Where TMA brings rows, tiles are parts of an image instead, or of a few: see DiagonalWgradBoxes.
#pragma once

#include <cstdint>

#include "fastconv/families/depthwise/diagonal.h"

namespace fastconv {

inline constexpr int32_t kDiagonalWgradWarps = 4;    // of a block, a chunk of channels each: whole sectors of a pixel
inline constexpr int32_t kDiagonalWgradPixels = 16;  // of a product
inline constexpr int32_t kDiagonalWgradThreads = 32 * kDiagonalWgradWarps;

struct DiagonalWgradConfig : DepthwiseDiagonalConfig {
  // Products side by side, as registers permit.
  constexpr int32_t units() const { return taps == 3 && stride == 1 && !boxed() ? 4 : 2; }
  constexpr int32_t columns() const { return units() * kDiagonalWgradPixels; }  // of a tile, at most
  constexpr int32_t tap_pairs() const { return (taps + 1) / 2; }
  constexpr int32_t blocks() const { return warps / kDiagonalWgradWarps; }  // of an SM
  // Positions after an image's columns.
  constexpr int32_t gap() const { return (taps - 1) / stride; }
  // Positions of a row that a thread stages: every 32nd.
  constexpr int32_t source_copies() const { return stride * units() / 2 + 1; }
  constexpr int32_t target_copies() const { return units() / 2; }
  constexpr int32_t most_positions() const { return kDiagonalWgradThreads / kDiagonalWgradWarps * source_copies(); }
  // Of a staged row of dy. Twice an odd number lets chunks of a pixel lie in different banks.
  constexpr int32_t target_positions() const { return columns() + 2; }
  // Rows of dy before a box's that meet its rows of x; the box before has them.
  constexpr int32_t earlier_targets() const { return (taps - 1) / stride; }
};

// What TMA moves for a block: a few rows of some columns of an image, or of as many images as make up a
// tile's columns, of x with those that its taps see beside them. In shared memory [image][row][column] of a block's
// channels, first of x, a plane for each phase of the stride's columns, then of dy; rows repeat the engine's pattern of
// banks.
struct DiagonalWgradBoxes {
  static constexpr int32_t kPixelBytes = kDiagonalWgradWarps * kChunkBytes;
  int32_t columns, images;  // of a tile: 32 in all
  int32_t rows, pitch;      // of x: of a box; pixels of a row of a plane
  int32_t stride, targets;  // rows of dy of a box
  int32_t run_rows;         // of dy, that are a unit
  int32_t units, slices;    // a slice has every so manieth unit
  FastDivmod by_tiles, by_runs;

  FASTCONV_HOST_DEVICE int32_t source_row_bytes() const { return pitch * kPixelBytes; }
  FASTCONV_HOST_DEVICE int32_t target_row_bytes() const { return columns * kPixelBytes; }
  FASTCONV_HOST_DEVICE int32_t plane_bytes() const { return images * rows * source_row_bytes(); }
  FASTCONV_HOST_DEVICE int32_t target_offset() const { return stride * plane_bytes(); }
  FASTCONV_HOST_DEVICE int32_t bytes() const { return target_offset() + images * targets * target_row_bytes(); }
  FASTCONV_HOST_DEVICE int32_t stage_bytes() const { return (bytes() + 1023) / 1024 * 1024; }
  // Where column `column` of a tile lies in the first row of x, at its first tap, and of dy; at tap s it is plane
  // s % stride, and s / stride pixels further. One that does not exist is zero in dy and meets what the last that does
  // meets, which may be no number. `left`: columns that dy has from the tile's first one on.
  FASTCONV_HOST_DEVICE int32_t source_pixel(int32_t column, int32_t left) const {
    const int32_t inside = column % columns;
    return column / columns * rows * pitch + (inside < left ? inside : left - 1);
  }
  FASTCONV_HOST_DEVICE int32_t target_pixel(int32_t column) const {
    return column / columns * targets * columns + column % columns;
  }
  FASTCONV_HOST_DEVICE static constexpr uint32_t swizzled(uint32_t offset) {
    return swizzled_pixels(offset, kPixelBytes);
  }
};

struct DiagonalWgradParams : DepthwiseWindows {
  int32_t channels, images;
  int32_t group_log2;                 // channels of a group
  int32_t columns, all_columns;       // of dy: of a tile, and of all images
  int32_t rows, slice_rows;           // of dy: of all tiles, and of a slice of them
  int32_t positions;                  // of a staged row of x: of all phases of the stride
  FastDivmod by_chunks;               // of channels, a block each
  FastDivmod by_rows, by_columns;     // of dy: of a tile, of an image
  FastDivmod by_plane, by_positions;  // of x: of a phase, and an image's of it
  DiagonalWgradBoxes boxes;           // if TMA brings rows; then of the above channels, images, by_chunks

  FASTCONV_HOST_DEVICE int32_t stage_bytes(const DiagonalWgradConfig& config) const {
    return (config.stride * positions + config.target_positions()) * kDiagonalWgradWarps * kChunkBytes;
  }
};

// A run of rows of dy, of the columns of one tile. Step i has row source_row + i of x, which row `row` + (i - r) /
// stride of dy meets with row r of taps, where the stride divides i - r.
struct DiagonalWgradUnit {
  int32_t image, column, row;  // of dy: the first
  int32_t outputs, steps;
  int32_t source_row;

  FASTCONV_HOST_DEVICE DiagonalWgradUnit(const DiagonalWgradParams& params, int32_t index) {
    params.boxes.by_tiles.divmod(index, index, column);
    params.boxes.by_runs.divmod(index, image, row);
    column *= params.boxes.columns, image *= params.boxes.images, row *= params.boxes.run_rows;
    outputs = params.target_h - row;
    if (outputs > params.boxes.run_rows) outputs = params.boxes.run_rows;
    source_row = row * params.boxes.stride - params.padding_h;
    steps = (outputs - 1) * params.boxes.stride + params.taps_h;
    const int32_t left = params.source_h - source_row;  // with rows of x, or of padding above
    if (steps > left) steps = left;
    if (steps < 1) steps = 1;
  }
};

// What a slice goes through, step by step: each brings a row of dy and as many of x as the stride. Rows of dy of one
// tile that follow each other are a run; the rows of x that only its last ones see are steps without dy.
struct DiagonalWgradWalk {
  int32_t next_row, end;  // of all tiles
  int32_t row = 0;        // of the run: its first row of dy
  int32_t outputs = 0, steps = 0, step = 0;

  FASTCONV_HOST_DEVICE DiagonalWgradWalk(const DiagonalWgradConfig& config, const DiagonalWgradParams& params,
                                         int32_t slice)
      : next_row(slice * params.slice_rows), end(next_row + params.slice_rows) {
    if (end > params.rows) end = params.rows;
    start_run(config, params);
  }
  FASTCONV_HOST_DEVICE bool exists() const { return step < steps; }
  FASTCONV_HOST_DEVICE void next(const DiagonalWgradConfig& config, const DiagonalWgradParams& params) {
    if (++step == steps) start_run(config, params);
  }
  // Not kept: it is wanted at the begin of a run alone.
  FASTCONV_HOST_DEVICE int32_t tile(const DiagonalWgradParams& params) const {
    return params.by_rows.div(next_row - outputs);
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
    while (steps <= 0 && next_row < end) {
      int32_t tile;
      params.by_rows.divmod(next_row, tile, row);
      outputs = end - next_row;
      if (outputs > params.target_h - row) outputs = params.target_h - row;
      next_row += outputs;
      steps = outputs + (params.taps_h - 1) / config.stride;
      // Rows of padding are left out: of some runs that is all that they see.
      const int32_t left = (params.source_h - source_row(config, params, 0) + config.stride - 1) / config.stride;
      if (steps > left) steps = left;
    }
  }
};

struct DiagonalWgradTile {
  int32_t image, column;  // of dy: the first
  int32_t columns;

  FASTCONV_HOST_DEVICE DiagonalWgradTile(const DiagonalWgradParams& params, int32_t index) : columns(params.columns) {
    const int32_t first = index * params.columns;
    params.by_columns.divmod(first, image, column);
    if (columns > params.all_columns - first) columns = params.all_columns - first;
  }
};

// What lies at a position; images are counted from the tile's first.
struct DiagonalPixel {
  int32_t image, column;
  bool exists;
};
FASTCONV_HOST_DEVICE DiagonalPixel diagonal_wgrad_target(const DiagonalWgradParams& params,
                                                         const DiagonalWgradTile& tile, int32_t position) {
  DiagonalPixel at{};
  params.by_columns.divmod(tile.column + position, at.image, at.column);
  at.exists = position < tile.columns;
  return at;
}
FASTCONV_HOST_DEVICE DiagonalPixel diagonal_wgrad_source(const DiagonalWgradConfig& config,
                                                         const DiagonalWgradParams& params,
                                                         const DiagonalWgradTile& tile, int32_t position) {
  DiagonalPixel at{};
  int32_t phase;
  params.by_plane.divmod(position, phase, position);
  params.by_positions.divmod(tile.column + position, at.image, at.column);
  at.column = at.column * config.stride + phase - params.padding_w;
  at.exists = tile.image + at.image < params.images && at.column >= 0 && at.column < params.source_w;
  return at;
}
// The position of x that a column of the tile meets at tap 0. A column that does not exist is zero in dy and meets any.
FASTCONV_HOST_DEVICE int32_t diagonal_wgrad_position(const DiagonalWgradConfig& config,
                                                     const DiagonalWgradParams& params, const DiagonalWgradTile& tile,
                                                     int32_t column) {
  return column < tile.columns ? column + config.gap() * params.by_columns.div(tile.column + column) : 0;
}
// From there to a tap's.
FASTCONV_HOST_DEVICE int32_t diagonal_wgrad_distance(const DiagonalWgradConfig& config,
                                                     const DiagonalWgradParams& params, int32_t tap) {
  return tap % config.stride * static_cast<int32_t>(params.by_plane.divisor) + tap / config.stride;
}

}  // namespace fastconv
