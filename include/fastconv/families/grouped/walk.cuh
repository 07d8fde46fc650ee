// Narrow groups: what a block stages, multiplies and stores. Plain data and its index maths; the tests run them against
// brute force.
//
// A block has tile_p x tile_q pixels of one image, and some groups. Of the tensor that the filter slides over it stages
// the pixels that these need, with their halo, as rows of 16 bytes, [chunk of channels][pixel]: a tap is then the same
// distance for every pixel, and a row whatever its neighbours are, zeros where there is no pixel. The reduction goes
// over the rows that an output needs, one for each tap and chunk.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/families/grouped/config.h"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {

// Pixels of rows of some width, every so many: where they are, by one division for the first.
struct GroupedPixels {
  FastDivmod by_width;
  int32_t rows, columns;  // from one to the next past the end of its row: columns are negative

  GroupedPixels() = default;
  GroupedPixels(int64_t width, int64_t step)
      : by_width(width),
        rows(static_cast<int32_t>(step / width + 1)),
        columns(static_cast<int32_t>(step % width - width)) {}

  FASTCONV_HOST_DEVICE void find(int32_t pixel, int32_t& row, int32_t& column) const {
    by_width.divmod(pixel, row, column);
  }
  FASTCONV_HOST_DEVICE void advance(int32_t& row, int32_t& column) const {
    const int32_t past = column + columns;  // negative if the row does not end before it
    row += rows + (past >> 31);
    // The smaller one, without signs: no branch.
    const auto beyond = static_cast<uint32_t>(past), within = beyond + by_width.divisor;
    column = static_cast<int32_t>(within < beyond ? within : beyond);
  }
};

// How pixels of a tensor become rows.
struct GroupedRows {
  Strides stride;
  int32_t extent_h, extent_w;  // of an image
  int32_t channels, chunks;    // of a group; of its channels
  int32_t tile_h, tile_w;      // pixels staged
  int32_t plane_bytes;         // from one chunk to the next
  // Contiguous channels are copied by 16, 8 or 4 bytes. Others (0) go through registers, pixels of a channel one by one
  // or in pairs.
  int32_t copy_bytes;
  int32_t lanes_log2;  // copies: neighbouring threads that have a pixel's chunks
  bool pairs;
  bool channels_inner;   // neighbouring threads have chunks, not pixels
  int32_t columns;       // that are loaded of a row, in pairs if they come so
  int32_t units;         // of a chunk and a pixel or two
  GroupedPixels copied;  // by a thread
  FastDivmod by_columns;
  FastDivmod by_chunks, by_inner;  // chunks; of the units, planes or pixels, whichever is inner
};

enum class GroupedStore : int8_t { kPixels, kChannels };  // what lies side by side in the output

// What all passes have in common.
struct GroupedWalk {
  Axis h, w;
  GroupedRows rows;         // of the tensor that the filter slides over
  Strides filter;           // n: produced channel, c: reduced channel
  int64_t filter_group;     // from one group's filters to the next one's
  int32_t groups, filters;  // of the problem; produced channels of a group
  int32_t chunk;            // channels
  int32_t tile_p, tile_q, tile_g;
  FastDivmod by_group_blocks, by_tiles_w, by_tiles_h, by_phases_w, by_phases_h;
  GroupedPixels named;                        // those of a tile that a lane has rows of
  int32_t row_bytes, column_bytes, last_row;  // from one to the next below, or beside it; to the tile's last
};

// Forward pass and input gradient.
struct GroupedParams : GroupedWalk {
  Strides target;
  int32_t sets;  // of a group
  int32_t run;
  FastDivmod by_sets, by_runs;
  // A warp's results on their way to memory: [channel][pixel] or [pixel][channel] of unit_pixels and a run's channels.
  GroupedStore store;
  bool joined;                        // rows of a tile follow each other in memory
  int32_t store_bytes;                // of an access
  int32_t target_row, target_column;  // elements from a pixel to the next below, or beside it
  GroupedPixels stored;               // by a lane
  int32_t vectors_log2;               // kChannels: neighbouring lanes that store a pixel's channels
  int32_t chain;                      // kFloat: rows of a sum that is not put aside
  // Places in shared memory, which begins with the pixels: filters, a set's bytes of all taps; the taps' GroupedTap,
  // row apart from the rest; epilogues; the buffers of the warps.
  int32_t filter_at, set_bytes, table_at, taps_at, epilogue_at, buffer_at, buffer_bytes;
};

// Entries of the table of rows: groups of four, and one of them that is read ahead.
FASTCONV_HOST_DEVICE constexpr int32_t grouped_table_entries(int32_t reduction) { return (reduction + 3) / 4 * 4 + 4; }

// The reduction of a phase has a row for each tap and chunk.
struct GroupedTap {
  int32_t row;       // bytes from the row of an output's first tap
  int32_t filter;    // elements from the group's first
  int32_t channels;  // of the chunk that exist
};

struct GroupedTile {
  AxisPhase h, w;
  int32_t image, first_group, groups;  // as many as exist
  int32_t p, q, rows, columns;         // first pixel; pixels that exist
  int32_t halo_h, halo_w;              // first pixel staged

  FASTCONV_HOST_DEVICE GroupedTile(const GroupedWalk& params, int32_t block) {
    int32_t rest, phase_h, phase_w;
    params.by_group_blocks.divmod(block, rest, first_group);
    params.by_tiles_w.divmod(rest, rest, q);
    params.by_tiles_h.divmod(rest, rest, p);
    params.by_phases_w.divmod(rest, rest, phase_w);
    params.by_phases_h.divmod(rest, image, phase_h);
    h = params.h.phase(phase_h), w = params.w.phase(phase_w);
    first_group *= params.tile_g, p *= params.tile_p, q *= params.tile_q;
    groups = smaller(params.tile_g, params.groups - first_group);
    rows = smaller(params.tile_p, count(params.h, h) - p);
    columns = smaller(params.tile_q, count(params.w, w) - q);
    halo_h = first_source(params.h, h, p), halo_w = first_source(params.w, w, q);
  }

  FASTCONV_HOST_DEVICE int32_t reduction(const GroupedWalk& params) const {
    return h.taps * w.taps * params.rows.chunks;
  }
  FASTCONV_HOST_DEVICE GroupedTap tap(const GroupedWalk& params, int32_t index) const {
    const GroupedRows& rows = params.rows;
    const int32_t at = index / rows.chunks, chunk = index - at * rows.chunks;
    const int32_t r = at / w.taps, s = at - r * w.taps;
    const int32_t row = staged_tap(params.h, h, r) * rows.tile_w + staged_tap(params.w, w, s);
    const int64_t filter = (h.first_tap + r * params.h.tap_step) * params.filter.h +
                           (w.first_tap + s * params.w.tap_step) * params.filter.w +
                           chunk * params.chunk * params.filter.c;
    return {chunk * rows.plane_bytes + row * kGroupedRowBytes, static_cast<int32_t>(filter),
            smaller(params.chunk, rows.channels - chunk * params.chunk)};
  }
  // Where a pixel of the tile has its first tap, bytes; there may be fewer pixels than are asked for.
  FASTCONV_HOST_DEVICE static int32_t row_of(const GroupedWalk& params, int32_t row, int32_t column) {
    return smaller(row * params.row_bytes + column * params.column_bytes, params.last_row);
  }
  FASTCONV_HOST_DEVICE int64_t first_target(const GroupedParams& params) const {
    return image * params.target.n + int64_t{first_group} * params.filters * params.target.c +
           (h.index + p * params.h.target_step) * params.target.h +
           (w.index + q * params.w.target_step) * params.target.w;
  }

 private:
  FASTCONV_HOST_DEVICE static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
  FASTCONV_HOST_DEVICE static int32_t count(const Axis& axis, const AxisPhase& phase) {
    if (axis.target_step == 1) return axis.target_extent;
    return (axis.target_extent - phase.index + axis.target_step - 1) / axis.target_step;
  }
  // Input gradients go backwards: their last tap is the first pixel.
  FASTCONV_HOST_DEVICE static int32_t backwards(const Axis& axis, const AxisPhase& phase) {
    return axis.tap_source_step < 0 && phase.taps > 0 ? (phase.taps - 1) * axis.tap_source_step : 0;
  }
  FASTCONV_HOST_DEVICE static int32_t first_source(const Axis& axis, const AxisPhase& phase, int32_t pixel) {
    return phase.offset + pixel * axis.source_step + backwards(axis, phase);
  }
  FASTCONV_HOST_DEVICE static int32_t staged_tap(const Axis& axis, const AxisPhase& phase, int32_t tap) {
    return tap * axis.tap_source_step - backwards(axis, phase);
  }
};

// A tile's pixels as they are stored, those of joined rows as one row.
struct GroupedTargets {
  int32_t rows, columns;  // that exist

  FASTCONV_HOST_DEVICE GroupedTargets(const GroupedParams& params, const GroupedTile& tile)
      : rows(params.joined ? 1 : tile.rows), columns(params.joined ? tile.rows * params.tile_q : tile.columns) {}

  FASTCONV_HOST_DEVICE bool exists(int32_t row, int32_t column) const { return row < rows && column < columns; }
  // Elements from the tile's first pixel.
  FASTCONV_HOST_DEVICE static int32_t offset(const GroupedParams& params, int32_t row, int32_t column) {
    return row * params.target_row + column * params.target_column;
  }
};

// A chunk of channels of one pixel, or two, on its way through registers.
struct GroupedUnit {
  int32_t plane, chunk, group;  // plane: counted over the groups of the tile
  int32_t row, column;          // of the pixels staged; of a pair it may lie before the first

  FASTCONV_HOST_DEVICE GroupedUnit(const GroupedRows& rows, int32_t unit, int32_t first_column) {
    int32_t pixel;
    if (rows.channels_inner) {
      rows.by_inner.divmod(unit, pixel, plane);
    } else {
      rows.by_inner.divmod(unit, plane, pixel);
    }
    rows.by_chunks.divmod(plane, group, chunk);
    rows.by_columns.divmod(pixel, row, column);
    // Pairs begin at even columns of the image.
    if (rows.pairs) column = 2 * column - (first_column & 1);
  }
};

}  // namespace fastconv
