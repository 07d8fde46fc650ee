// Images of one to four channels, of 16 bits or as TF32. A pixel is staged as a quad: four channels, those that the
// image lacks zero. The reduction of a convolution is then its taps, four of them a step: lane i of a warp multiplies
// tap i % 4 of each, whose four channels it reads at once, in one product (of 16 bits, 16 deep) or two (of TF32, 8
// deep). So few channels waste at most three quarters of a product, and the end of the taps at most three of them.
//
// A block stages tiles of an image with their halo, and has the filter of some sets of 32 filters in shared memory. Its
// warps take units of 32 pixels times a set. Rows of a unit's products are what lies further apart in the output, of
// pixels and filters, and columns what lies side by side: those are dealt out so that a lane has neighbours of each of
// its rows, runs of 16 bytes, which it stores at once.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/tile/conv_coords.cuh"
#include "fastconv/tile/lane_runs.h"
#include "fastconv/tile/quads_config.h"

namespace fastconv {

// Whether words of the image hold two elements of two neighbouring pixels, which begin at an even column: the same
// channel of both, or, where channels lie side by side, any.
enum class QuadsPairs : int8_t { kNone, kPlanes, kInner };

struct QuadsParams {
  Axis h, w;
  Strides source, filter, target;
  int32_t channels, filters, taps, steps;
  int32_t quad_bytes;
  int32_t tile_p, tile_q, halo_w;  // halo_w: columns of a tile with its halo, as they are staged
  int32_t tiles, walkers;          // every walkers-th tile is a block's
  QuadsPairs pairs;
  int32_t units;      // pixels of a tile with its halo, or pairs
  int32_t word_step;  // of the image, elements: from one word of a unit to the next
  bool whole_runs;    // of the output: stored at once
  FastDivmod by_tiles_w, by_tiles_h, by_tile_q, by_units_w, by_taps_w, by_steps, by_sets, by_set_blocks;
  // Shared memory begins with the tile: the filter, [set][step][half][lane] of two quads; offsets of the taps.
  int32_t filter_at, table_at;

  FASTCONV_HOST_DEVICE int32_t sets() const { return static_cast<int32_t>(by_sets.divisor); }
  // Of a step of a set's filter.
  FASTCONV_HOST_DEVICE int32_t step_bytes() const { return kQuadsUnit * kQuadsStepTaps * quad_bytes; }
  FASTCONV_HOST_DEVICE int32_t place(int32_t row, int32_t column) const { return (row * halo_w + column) * quad_bytes; }
};

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
    lead = params.pairs == QuadsPairs::kNone ? 0 : source_w & 1, source_w -= lead;
  }

 private:
  FASTCONV_HOST_DEVICE static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
};

// A pixel of a tile, by its number: where its first tap is staged. One that the tile lacks has another's place.
FASTCONV_HOST_DEVICE int32_t quads_place(const QuadsParams& params, int32_t pixel) {
  int32_t row, column;
  params.by_tile_q.divmod(pixel, row, column);
  if (row >= params.tile_p) row = params.tile_p - 1;
  return params.place(row * params.h.source_step, column * params.w.source_step);
}
// The same in the output: elements from the tile's first pixel, and how many pixels its row has from there on.
struct QuadsTarget {
  int32_t offset, left;

  FASTCONV_HOST_DEVICE QuadsTarget(const QuadsParams& params, const QuadsTile& tile, int32_t pixel) {
    int32_t row, column;
    params.by_tile_q.divmod(pixel, row, column);
    offset = static_cast<int32_t>(row * params.target.h + column * params.target.w);
    left = row < tile.rows ? tile.columns - column : 0;
  }
};
// From a pixel's first tap to another one; negative if there is no such tap.
FASTCONV_HOST_DEVICE int32_t quads_tap(const QuadsParams& params, int32_t tap) {
  int32_t r, s;
  params.by_taps_w.divmod(tap, r, s);
  return tap < params.taps ? params.place(r * params.h.tap_source_step, s * params.w.tap_source_step) : -1;
}

}  // namespace fastconv
