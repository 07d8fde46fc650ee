// Images of few channels: what a block stages, multiplies and stores. Plain data and its index maths; the tests run
// them against brute force.
//
// A convolution is a matrix product whose depth is all taps of all channels, (c, r, s) in one, so that few channels
// waste nothing. A block stages tiles of an image with their halo as they are, as float32; an element of the product
// is found by the sum of two offsets, its pixel's and its tap's, which are the same for all tiles.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/families/few_channels/lane_runs.h"
#include "fastconv/families/few_channels/stem_config.h"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {

// A part of each image, as a block stages it. Channels that lie side by side, in pixels without gaps, count as columns:
// `folded` of them a pixel, otherwise 1. Columns below are those, but for *_words, which go by pixels and channels.
struct StemBox {
  Strides stride;
  int32_t channels, extent_h, extent_w;  // of an image
  int32_t box_h, box_w;                  // staged
  int32_t folded;
  int32_t channel_words, row_words, column_words;  // in shared memory, from one to the next
  int32_t words;                                   // of all
  bool channels_inner;                             // neighbouring threads copy channels, not columns; so do vectors
  int32_t vector;                                  // words copied at once
  int32_t units;                                   // copies
  FastDivmod by_inner, by_middle;                  // of a copy's index: inner fastest, outer slowest
  int32_t next_inner, next_middle, next_outer;     // from one of a thread's copies to its next

  // Vectors of columns begin at whole ones of the image, so many columns before the first that is wanted.
  FASTCONV_HOST_DEVICE int32_t lead(int32_t column) const {
    return channels_inner ? 0 : column * folded & (vector - 1);
  }
  // Of a pixel that is staged.
  FASTCONV_HOST_DEVICE int32_t place(int32_t row, int32_t column) const {
    return row * row_words + column * column_words;
  }
};

// One copy of a thread, which has every kStemThreads-th.
struct StemCopy {
  int32_t inner, middle, outer;

  FASTCONV_HOST_DEVICE StemCopy(const StemBox& box, int32_t unit) {
    box.by_inner.divmod(unit, middle, inner);
    box.by_middle.divmod(middle, outer, middle);
  }
  FASTCONV_HOST_DEVICE void next(const StemBox& box) {
    const auto inners = static_cast<int32_t>(box.by_inner.divisor);
    const auto middles = static_cast<int32_t>(box.by_middle.divisor);
    inner += box.next_inner, middle += box.next_middle, outer += box.next_outer;
    if (inner >= inners) inner -= inners, ++middle;
    if (middle >= middles) middle -= middles, ++outer;
  }

  // Its first word's.
  FASTCONV_HOST_DEVICE int32_t channel(const StemBox& box) const {
    return box.channels_inner ? inner * box.vector : outer;
  }
  FASTCONV_HOST_DEVICE int32_t row(const StemBox& box) const { return box.channels_inner ? outer : middle; }
  FASTCONV_HOST_DEVICE int32_t column(const StemBox& box) const {
    return box.channels_inner ? middle : inner * box.vector;
  }
  // Words from the first one staged.
  FASTCONV_HOST_DEVICE int32_t place(const StemBox& box) const {
    return box.channels_inner ? outer * box.row_words + middle * box.column_words + inner * box.vector
                              : outer * box.channel_words + middle * box.row_words + inner * box.vector;
  }
};

// What all passes have in common.
struct StemWalk {
  Axis h, w;
  StemBox x;
  Strides filter;
  int32_t filters, depth;  // depth: taps of all channels
  int32_t tile_p, tile_q;
  int32_t tiles, walkers;  // every walkers-th tile is a block's
  int32_t stages, stage_bytes;
  int32_t range_at;  // from a stage on: ranges of its boxes, if they are scaled
  FastDivmod by_tiles_w, by_tiles_h, by_tile_q;
  // Of the taps: channels come first or last, as they lie in memory.
  bool channels_last;
  FastDivmod by_outer, by_taps_w;
};

// One index of the depth: words from a pixel's first, and elements of the filter.
struct StemTap {
  int32_t place, filter;

  FASTCONV_HOST_DEVICE StemTap(const StemWalk& params, int32_t index) {
    int32_t outer, inner, r, s;
    params.by_outer.divmod(index, outer, inner);
    const int32_t c = params.channels_last ? inner : outer;
    params.by_taps_w.divmod(params.channels_last ? outer : inner, r, s);
    place = c * params.x.channel_words + params.x.place(r * params.h.tap_source_step, s * params.w.tap_source_step);
    filter = static_cast<int32_t>(c * params.filter.c + r * params.filter.h + s * params.filter.w);
  }
};

struct StemTile {
  int32_t image, p, q, rows, columns;  // first pixel; pixels that exist
  int32_t source_h, source_w;          // of x, the first that is needed

  FASTCONV_HOST_DEVICE StemTile(const StemWalk& params, int32_t index) {
    int32_t rest;
    params.by_tiles_w.divmod(index, rest, q);
    params.by_tiles_h.divmod(rest, image, p);
    p *= params.tile_p, q *= params.tile_q;
    rows = smaller(params.tile_p, params.h.rows - p), columns = smaller(params.tile_q, params.w.rows - q);
    source_h = p * params.h.source_step - params.h.padding, source_w = q * params.w.source_step - params.w.padding;
  }

  // Pixels of a tile count in whole rows of it, those that exist or not.
  FASTCONV_HOST_DEVICE int32_t pixels(const StemWalk& params) const { return rows * params.tile_q; }
  // Where a pixel's first tap is, words.
  FASTCONV_HOST_DEVICE static int32_t source_of(const StemWalk& params, int32_t pixel) {
    int32_t row, column;
    params.by_tile_q.divmod(smaller(pixel, params.tile_p * params.tile_q - 1), row, column);
    return params.x.place(row * params.h.source_step, column * params.w.source_step);
  }
  // Elements from the tile's first pixel, negative where there is no pixel.
  FASTCONV_HOST_DEVICE int32_t target_of(const StemWalk& params, const Strides& target, int32_t pixel) const {
    int32_t row, column;
    params.by_tile_q.divmod(pixel, row, column);
    return row < rows && column < columns ? static_cast<int32_t>(row * target.h + column * target.w) : -1;
  }

 private:
  FASTCONV_HOST_DEVICE static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
};

// The depth in the order of a product's operands: of a step, lanes i and i % 4 have four indices. Neighbours have
// neighbouring ones, which mostly lie in different banks.
FASTCONV_HOST_DEVICE constexpr int32_t stem_depth(int32_t step, int32_t lane, int32_t index) {
  return step * kStemStep + index * 4 + lane % 4;
}

// What a lane stores at once, if it lies side by side: four filters of a pixel, or four pixels of a filter, or two; or
// one sum.
enum class StemStores : int8_t { kFilters, kPixels, kPixelPairs, kSingles };
FASTCONV_HOST_DEVICE constexpr int32_t stem_run(StemStores stores) {  // of pixels
  return stores == StemStores::kPixels ? 4 : stores == StemStores::kPixelPairs ? 2 : 1;
}

// Forward pass. A block has some sets of filters, and its units are some pixels and a set.
struct StemParams : StemWalk {
  Strides target;
  StemStores stores;
  int32_t steps;
  FastDivmod by_set_blocks, by_sets, by_steps;
  // Shared memory begins with the stages: the filter, [set][step][tile of 8][part][lane], and its range; offsets of the
  // taps, of the pixels and of the filter.
  int32_t filter_at, filter_range_at, table_at, filter_table_at;
};

// Of a unit: the pixel that a lane has in row number `row`, of its four, by runs of so many.
FASTCONV_HOST_DEVICE constexpr int32_t stem_pixel(int32_t run, int32_t lane, int32_t row) {
  return row / run * 8 * run + lane / 4 * run + row % run;
}
// Of a set: the filter that is this column of one of its tiles. A lane has four side by side, of two tiles.
FASTCONV_HOST_DEVICE constexpr int32_t stem_filter(int32_t tile, int32_t column) { return run_column(4, tile, column); }

// Weight gradient. A block has a job, some taps of a set of filters, and a unit of it for each warp; the steps of a
// tile are dealt out to slices of the warps.
struct StemWgradParams : StemWalk {
  StemBox y;
  int32_t units, slices;  // of a job
  int32_t job_quads;
  FastDivmod by_jobs, by_tap_blocks, by_slices, by_job_quads, by_job_threads;
  // Shared memory begins with the stages, the gradients' box after the input's, and has the sums at the end: offsets
  // of the pixels in both.
  int32_t y_at, table_at, y_table_at;
};

struct StemJob {
  int32_t index, walker;
  int32_t first_filter, first_tap;

  FASTCONV_HOST_DEVICE StemJob(const StemConfig& config, const StemWgradParams& params, int32_t block) {
    params.by_jobs.divmod(block, walker, index);
    params.by_tap_blocks.divmod(index, first_filter, first_tap);
    first_filter *= config.filters, first_tap *= params.units * config.unit_taps();
  }
};

// One of the four sums of a lane's quad, as products leave them (ptx/mma.cuh): of a unit, its element of dW from the
// tensor's first on; negative if there is none.
FASTCONV_HOST_DEVICE int64_t stem_element(const StemConfig& config, const StemWgradParams& params, const StemJob& job,
                                          int32_t unit, int32_t lane, int32_t quad, int32_t value) {
  const int32_t k = job.first_filter + quad / config.tap_tiles() * 16 + value / 2 * 8 + lane / 4;
  const int32_t tap =
      job.first_tap + unit * config.unit_taps() + quad % config.tap_tiles() * 8 + lane % 4 * 2 + value % 2;
  return k < params.filters && tap < params.depth ? k * params.filter.n + StemTap(params, tap).filter : -1;
}

}  // namespace fastconv
