// Images of one to four channels. A pixel is staged as a quad: four channels, those that the image lacks zero. The
// reduction of a convolution is then its taps, four of them a step: lane i of a warp multiplies tap i % 4 of each,
// whose four channels it reads at once, in one product of 16 bits (16 deep), or more, of parts. So few channels waste
// at most three quarters of a product, and the end of the taps at most three of them.
//
// A block stages tiles of an image with their halo, and has the filter of some sets of 32 filters in shared memory. Its
// warps take units of 32 or 16 pixels times a set: filters are rows of products, pixels columns. Both are dealt out so
// that a lane's sums are of neighbours in the output, which it stores at once: of four filters of a pixel, or of a run
// of pixels. On Hopper there are also units of 8x8 pixels times two sets, which warpgroups multiply where they are
// staged.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fastconv/core/activation.h"
#include "fastconv/core/fast_divmod.h"
#include "fastconv/families/few_channels/lane_runs.h"
#include "fastconv/families/few_channels/quads_config.h"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {

// Whether rows of the image consist of whole words: of one channel's, or, where channels lie side by side, of all.
enum class QuadsWords : int8_t { kNone, kPlanes, kInner };

// Of an Axis, what these kernels need.
struct QuadsAxis {
  int32_t source_step, tap_source_step, padding, source_extent, rows;
};

// Of images. Offsets of pixels that exist fit 32 bits.
struct QuadsStrides {
  int64_t n;
  int32_t h, w, c;
};

// How a block's filters come to shared memory before they are packed: not at all (they are read where they are), by
// elements, taps side by side, or, if they are one piece of memory, as they are.
enum class QuadsBringing : int8_t { kNone, kElements, kLines };

// Of squares. A tile has one part behind the other, and so has the filter, [part][cell][filter].
struct QuadsCells {
  int32_t steps;       // of two cells; the last may lack one
  int32_t shift;       // columns that are left out before the first one of a row, for cells to be aligned
  int32_t part_bytes;  // of a tile
  FastDivmod by_columns, by_squares_w;
  // Of each step, from a pixel's first cell to that which is multiplied first, and on to the second one, as a matrix
  // descriptor has them. Where the last lacks one, the filter's is zeros, and scaled numbers are finite.
  uint32_t step[kQuadsMostSteps];

  FASTCONV_HOST_DEVICE int32_t filter_part_bytes() const { return steps * 2 * kQuadsCellBlock; }
};

inline constexpr int32_t kQuadsRunBytes = 16;  // see QuadsRun

// In the order in which a block reads them, since it waits for each line of 64 bytes that it is the first to read. On
// Hopper, 48 bytes before those of quads_fprop are in its first line, buffers among them.
struct QuadsParams {
  FastDivmod by_set_blocks;
  int8_t unit_pixels;  // that a thread brings at once, neighbours in a row that begin at a multiple of their number
  int8_t channels;
  QuadsWords words;
  QuadsBringing bringing;

  int16_t sets;             // of a block; by_sets' divisor, which is read later
  bool is_raw_first;        // the filter as it was, see below
  Activation activation;    // of the output
  int32_t filter_elements;  // of each
  int32_t filters;
  FastDivmod by_tiles_w, by_tiles_h, by_units_w;
  int32_t units;  // of a tile with its halo
  int32_t tile_p, tile_q;
  int32_t stage_bytes;

  QuadsStrides source;
  QuadsAxis h, w;

  int32_t taps, steps;
  // Shared memory begins with two tiles, of which one is filled while warps are at work with the other; the filter as
  // it was begins where the second one does, or the first, if there is a barrier before that is filled. Then: the
  // filter, [set][step][product][block][lane]; runs of pixels; a quad of zeros; epilogues of filters; offsets of taps,
  // of two steps more than there are.
  int32_t table_at, epilogue_at, runs_at;
  int32_t runs;  // of units of a tile, of which the last may lack some
  int32_t run;   // pixels of each: see QuadsRun
  FastDivmod by_tile_q, by_taps_w;
  int32_t quad_bytes;
  int32_t halo_w;   // columns of a tile with its halo, as they are staged
  int32_t row_gap;  // bytes between the end of a row of those and the next one

  QuadsStrides target;
  int32_t tiles, walkers;  // every walkers-th tile is a block's
  int32_t filter_at;
  FastDivmod by_steps;
  int32_t raw_tap, raw_channel;  // of the filter as it was, from a tap and a channel to the next one, elements
  // If quads are scaled, ranges (families/few_channels/stem_range.cuh): after the pixels of a tile, and after all else
  // the filter's and the first tile's.
  int32_t range_at;
  bool whole_runs;  // of the output: stored at once

  FastDivmod by_sets;
  int32_t filter_range_at, first_range_at;
  Strides filter;  // where its elements are, if it is not one piece of memory
  FastDivmod by_elements, by_taps;
  QuadsCells cells;  // if units are squares

  // Of a step of a set's filter.
  FASTCONV_HOST_DEVICE int32_t step_bytes() const { return kQuadsSet * kQuadsStepTaps * quad_bytes; }
  FASTCONV_HOST_DEVICE int32_t place(int32_t row, int32_t column) const {
    return (row * halo_w + column) * quad_bytes + row * row_gap;
  }
  // The same of a part's, for cells.
  FASTCONV_HOST_DEVICE int32_t cell_place(int32_t row, int32_t column) const {
    return (row * halo_w + column) * (kQuadsCellBytes / kQuadsCellTaps);
  }
  FASTCONV_HOST_DEVICE int32_t raw_at() const { return is_raw_first ? 0 : stage_bytes; }
  FASTCONV_HOST_DEVICE int32_t zeros_at() const { return runs_at + runs * kQuadsRunBytes; }
  // From a pixel's first tap to that of the next one in its row.
  FASTCONV_HOST_DEVICE int32_t place_step() const { return w.source_step * quad_bytes; }
};
static_assert(offsetof(QuadsParams, sets) == 16 && offsetof(QuadsParams, source) == 16 + 64);
static_assert(offsetof(QuadsParams, taps) == 16 + 2 * 64 && offsetof(QuadsParams, target) == 16 + 3 * 64);
static_assert(offsetof(QuadsParams, by_sets) == 16 + 4 * 64);

struct QuadsTile {
  int32_t image, p, q, rows, columns;  // of the output: the first pixel; those that exist
  int32_t source_h, source_w;          // of the image: the first that is staged
  int32_t lead;                        // staged columns before the first tap's

  FASTCONV_HOST_DEVICE QuadsTile(const QuadsParams& params, int32_t index) {
    int32_t rest;
    params.by_tiles_w.divmod(index, rest, q);
    params.by_tiles_h.divmod(rest, image, p);
    p *= params.tile_p, q *= params.tile_q;
    rows = smaller(params.tile_p, params.h.rows - p), columns = smaller(params.tile_q, params.w.rows - q);
    source_h = p * params.h.source_step - params.h.padding, source_w = q * params.w.source_step - params.w.padding;
    lead = source_w & (params.unit_pixels - 1), source_w -= lead;
  }

 private:
  FASTCONV_HOST_DEVICE static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
};

// A run of pixels of a tile, which lie in one row. Those that the tile lacks have others' places.
struct alignas(kQuadsRunBytes) QuadsRun {
  int32_t place;   // where the first one's first tap is staged
  int32_t offset;  // of the output, elements from the tile's first pixel, if the run exists
  int32_t row, column;

  QuadsRun() = default;
  FASTCONV_HOST_DEVICE QuadsRun(const QuadsParams& params, int32_t index) {
    params.by_tile_q.divmod(index * params.run, row, column);
    const int32_t staged = row < params.tile_p ? row : params.tile_p - 1;
    place = params.place(staged * params.h.source_step, column * params.w.source_step);
    offset = static_cast<int32_t>(int64_t{row} * params.target.h + int64_t{column} * params.target.w);
  }
  // Pixels that exist, from the run's first one to the end of its row.
  FASTCONV_HOST_DEVICE int32_t left(const QuadsTile& tile) const { return row < tile.rows ? tile.columns - column : 0; }
};
// Of a set: filter number k of the lane's rows, two of each of two blocks.
FASTCONV_HOST_DEVICE constexpr int32_t quads_filter(bool channels_inner, int32_t lane, int32_t k) {
  return channels_inner ? lane / 4 * 4 + k : k * 8 + lane / 4;
}
// Of a unit: the pixel that is this column of one of its products. Where a pixel's filters fill no line of memory,
// lanes that store at once have neighbours.
FASTCONV_HOST_DEVICE constexpr int32_t quads_pixel(bool channels_inner, int32_t run, int32_t product, int32_t column) {
  if (!channels_inner) return run_column(run, product, column);
  return product * 8 + (run == 8 ? column % 2 * 4 + column / 2 : column);
}
// From the first of a block's filters to what is number `i` in that order.
FASTCONV_HOST_DEVICE int64_t quads_raw_offset(const QuadsParams& params, int32_t i) {
  if (params.bringing == QuadsBringing::kLines) return i;
  int32_t filter, rest, channel, tap, r, s;
  params.by_elements.divmod(i, filter, rest);
  params.by_taps.divmod(rest, channel, tap);
  params.by_taps_w.divmod(tap, r, s);
  return filter * params.filter.n + channel * params.filter.c + r * params.filter.h + s * params.filter.w;
}
// Offsets of taps that a block has.
FASTCONV_HOST_DEVICE int32_t quads_table(const QuadsParams& params) { return (params.steps + 2) * kQuadsStepTaps; }
// From a pixel's first tap to another one; to itself if there is no such tap.
FASTCONV_HOST_DEVICE int32_t quads_tap(const QuadsParams& params, int32_t tap) {
  int32_t r, s;
  params.by_taps_w.divmod(tap, r, s);
  return tap < params.taps ? params.place(r * params.h.tap_source_step, s * params.w.tap_source_step) : 0;
}

// Of 64 filters: that which is column number `column` of the products. Of each 16 a lane has four, side by side if
// they are so in the output.
FASTCONV_HOST_DEVICE constexpr int32_t quads_square_filter(bool channels_inner, int32_t column) {
  if (!channels_inner) return column;
  return column / 16 * 16 + column % 8 / 2 * 4 + column / 8 % 2 * 2 + column % 2;
}
// From a pixel's first cell to another one.
FASTCONV_HOST_DEVICE int32_t quads_cell(const QuadsParams& params, int32_t cell) {
  int32_t r, column;
  params.cells.by_columns.divmod(cell, r, column);
  return params.cell_place(r * params.h.tap_source_step, column * kQuadsCellTaps);
}

}  // namespace fastconv
