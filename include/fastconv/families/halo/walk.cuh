// The parts of a tile's halo, in the order in which those who copy, stage and multiply go through them. Plain C++ as
// well as CUDA: the tests run it against brute force.
#pragma once

#include "fastconv/families/halo/scheduler.cuh"
#include "fastconv/tile/float_lead.h"
#include "fastconv/tile/host_device_caller.h"

namespace fastconv {

// Calls f(group, channel block) for every halo of a tile.
FASTCONV_HOST_DEVICE_CALLER void for_each_halo(const HaloParams& params, const Tile& tile, F f) {
  const OutputPhase& phase = params.phase[tile.phase];
  for (int c_block = 0; c_block < params.c_blocks; ++c_block) {
    for (int g = phase.group_begin; g < phase.group_end; ++g) f(params.group[g], c_block);
  }
}

// What a block of the reduction multiplies: channels, and the groups of the tensor maps that hold their parts.
struct HaloBlock {
  int32_t c_block, in_group, filter_group;

  FASTCONV_HOST_DEVICE HaloBlock(const HaloParams& params, const Tile& tile, int32_t index)
      : c_block(index), in_group(tile.group), filter_group(tile.group) {
    if (params.parts > 1) {
      int32_t product;
      params.part_blocks.divmod(index, product, c_block);
      const SplitProduct parts(params.parts, product);
      in_group += parts.first * params.groups, filter_group += parts.second * params.groups;
    }
    c_block += tile.share * static_cast<int32_t>(params.part_blocks.divisor);
  }
};

// The first stage, in steps, of a block of the reduction where the filter stays in shared memory. In parts it does so
// once: stages are those of the products that are the first to need a part; there is one output phase.
FASTCONV_HOST_DEVICE int32_t resident_stage(const HaloParams& params, const OutputPhase& phase, int32_t index) {
  if (params.parts == 1) return phase.first_step + index * phase.taps;
  int32_t product, c_block;
  params.part_blocks.divmod(index, product, c_block);
  const int32_t part = SplitProduct(params.parts, product).second;
  return ((params.parts - 1 - part) * static_cast<int32_t>(params.part_blocks.divisor) + c_block) *
         params.phase[0].taps;
}
// Whether no earlier one has its stages.
FASTCONV_HOST_DEVICE bool fills_stages(const HaloParams& params, int32_t index) {
  return !params.filter_resident || params.parts == 1 ||
         SplitProduct(params.parts, params.part_blocks.div(index)).is_first();
}

// Whether a halo row lies in an image.
FASTCONV_HOST_DEVICE bool exists(const HaloParams& params, const HaloRow& row) {
  return row.h >= 0 && row.h < params.height && row.n < params.n;
}

// HaloStaging::kTransposed: pixels that follow each other in an image and are copied together: what a row of the halo
// reads of it or, in linear tiles, all its rows that the halo reads. No pixels where the rows are padding: the copy
// engine would write zeros for them, but at 1.5 bytes a clock (measured).
struct RawRun {
  int32_t row, rows;  // of the halo
  int32_t n, h, w;    // first pixel
  int32_t count;      // pixels

  FASTCONV_HOST_DEVICE int32_t flat(const HaloParams& params) const { return h * params.width + w; }
};

// Of a rectangular tile all runs are alike: the halo's rows from `begin` up to `end` exist. One is as many copies as
// `pieces` says.
struct RawRows {
  int32_t begin, end;
  int32_t n, h, w;  // first pixel of row 0, even if it does not exist
  int32_t step, count, pieces;

  FASTCONV_HOST_DEVICE RawRows(const HaloParams& params, const Tile& tile, const TapGroup& group)
      : n(tile.n), h(tile.p * params.in_step_h + group.dh), step(params.in_step_h) {
    const int32_t w0 = halo_col(params, tile, group),
                  w_end = w0 + ((params.halo_pitch - 1) << params.raw.step_log2) + 1;
    w = w0 < 0 ? 0 : w0;
    count = (w_end < params.width ? w_end : params.width) - w;
    // Divisions would be what whoever copies spends most time on.
    const int32_t below = h >= 0 ? 0 : step - 1 - h, above = h >= params.height ? 0 : params.height - h + step - 1;
    begin = step == 1 ? below : below / step, end = step == 1 ? above : above / step;
    end = end < params.halo_rows ? end : params.halo_rows;
    if (count <= 0 || begin >= end) count = begin = end = 0;
    pieces = count <= params.raw.advance ? 1 : (count + params.raw.advance - 1) / params.raw.advance;
  }
  FASTCONV_HOST_DEVICE RawRun run(int32_t i) const {
    return {i, 1, n, h + i * step, w, i >= begin && i < end ? count : 0};
  }
};

FASTCONV_HOST_DEVICE_CALLER void for_each_raw_run(const HaloParams& params, const Tile& tile, const TapGroup& group,
                                                  F f) {
  if (!params.linear) {
    const RawRows rows(params, tile, group);
    for (int32_t i = 0; i < params.halo_rows; ++i) f(rows.run(i));
    return;
  }
  for (int32_t i = 0; i < params.halo_rows;) {
    const HaloRow at = halo_row(params, tile, group, i);
    RawRun run{i, 1, at.n, at.h, 0, 0};
    if (exists(params, at)) {
      if (params.in_step_h == 1) {
        // Rows of the image that are left, of the positions that it has, of the halo.
        const int32_t positions = static_cast<int32_t>(params.linear_h.divisor) - (at.h - group.dh);
        run.rows = params.height - at.h < positions ? params.height - at.h : positions;
        if (run.rows > params.halo_rows - i) run.rows = params.halo_rows - i;
      }
      run.count = run.rows * params.width;
    }
    f(run);
    i += run.rows;
  }
}

// Halo columns that lie in the image, from `begin` up to `end`.
struct HaloColumns {
  int32_t begin, end;

  FASTCONV_HOST_DEVICE HaloColumns(const HaloParams& params, int32_t w0) {
    const int32_t step = 1 << params.raw.step_log2, pitch = params.halo_pitch;
    begin = w0 >= 0 ? 0 : (step - 1 - w0) >> params.raw.step_log2;
    end = w0 >= params.width ? 0 : (params.width - w0 + step - 1) >> params.raw.step_log2;
    begin = begin < pitch ? begin : pitch;
    end = end < begin ? begin : end < pitch ? end : pitch;
  }
};

// Pixel of the halo that holds pixel `index` of a run; -1: none.
FASTCONV_HOST_DEVICE int32_t halo_pixel(const HaloParams& params, const RawRun& run, int32_t w0, int32_t index) {
  int32_t row = 0, w = run.w + index;
  if (params.linear) params.raw.width.divmod(index, row, w);
  const int32_t from_w0 = w - w0, column = from_w0 >> params.raw.step_log2;
  const bool skipped = (from_w0 & ((1 << params.raw.step_log2) - 1)) != 0;
  if (skipped || column < 0 || column >= params.halo_pitch) return -1;
  return (run.row + row) * params.halo_pitch + column;
}

// Pixels from where a phase's copy begins to pixel `first` of a run, fewer than `unit`. NOTES: a copy starts at a
// multiple of 16 bytes; anything else is an "illegal instruction" (measured).
FASTCONV_HOST_DEVICE int32_t raw_lead(const HaloParams& params, const RawRun& run, int32_t first, int phase,
                                      int32_t unit) {
  return (run.flat(params) + first + raw_shift(params.in_c, phase, unit)) & (unit - 1);
}

// Where a stage of raw float32 planes, of `channels`, has what would be pixel 0 of a run: of channel i. Those of a
// phase lie side by side.
FASTCONV_HOST_DEVICE int32_t raw_float(const HaloParams& params, const RawRun& run, int32_t first, int32_t channels,
                                       int32_t i) {
  if (params.raw.whole) return i * static_cast<int32_t>(params.in_c) + run.flat(params);
  const int32_t phases_log2 = params.raw.phases_log2, phase = i & ((1 << phases_log2) - 1);
  return ((phase * channels + i) >> phases_log2) * params.raw.box_w +
         raw_lead(params, run, first, phase, raw_unit(sizeof(float))) - first;
}
// The same as a first place and the distances from each channel to the next, which repeat.
struct RawFloats {
  static constexpr int kPeriod = raw_unit(sizeof(float));
  int32_t first, next[kPeriod];

  FASTCONV_HOST_DEVICE RawFloats(const HaloParams& params, const RawRun& run, int32_t pixel, int32_t channels) {
    int32_t at[kPeriod + 1];
    for (int i = 0; i < kPeriod; ++i) at[i] = raw_float(params, run, pixel, channels, i);
    at[kPeriod] = at[0] + (params.raw.whole ? kPeriod * static_cast<int32_t>(params.in_c)
                                            : (kPeriod >> params.raw.phases_log2) * params.raw.box_w);
    first = at[0];
    for (int i = 0; i < kPeriod; ++i) next[i] = at[i + 1] - at[i];
  }
};

// HaloStaging::kFloats: a halo row is a copy [channels][box_w] of planes, from a multiple of 16 bytes on.
struct FloatRows {
  int32_t h, w;  // input pixel of the halo's first, which may lie outside
  int32_t width, height;

  FASTCONV_HOST_DEVICE FloatRows(const HaloParams& params, const Tile& tile, const TapGroup& group)
      : h(tile.p + group.dh), w(halo_col(params, tile, group)), width(params.width), height(params.height) {}
  FASTCONV_HOST_DEVICE bool exists(int32_t row) const {
    return static_cast<uint32_t>(h + row) < static_cast<uint32_t>(height);
  }
  // Pixel of the plane that a row's copy begins with, and how many pixels the row begins later.
  FASTCONV_HOST_DEVICE int32_t start(int32_t row) const { return first(row) & ~kMaxFloatLead; }
  FASTCONV_HOST_DEVICE int32_t lead(int32_t row) const { return first(row) & kMaxFloatLead; }

 private:
  FASTCONV_HOST_DEVICE int32_t first(int32_t row) const { return (h + row) * width + w; }
};

// What of such a halo is padding, as far as outputs of the tile read it: f(row, first of its places in each channel's
// pixels, their number). A copy has something of the rows above and below there, or there is none.
FASTCONV_HOST_DEVICE_CALLER void for_each_float_padding(const HaloParams& params, const Tile& tile,
                                                        const FloatRows& rows, F f) {
  const OutputPhase& phase = params.phase[tile.phase];
  const int32_t rows_left = phase.p - tile.p, cols_left = phase.q - tile.q;  // that outputs have
  const int32_t row_end = params.halo_rows - (rows_left < params.tile_p ? params.tile_p - rows_left : 0);
  const int32_t col_end = params.halo_pitch - (cols_left < params.tile_q ? params.tile_q - cols_left : 0);
  const int32_t before = rows.w < 0 ? -rows.w : 0, left = before < col_end ? before : col_end;
  const int32_t right = rows.width - rows.w > left ? rows.width - rows.w : left;
  if (left == 0 && right >= col_end && rows.exists(0) && rows.exists(row_end - 1)) return;
  for (int32_t row = 0; row < row_end; ++row) {
    if (!rows.exists(row)) {
      f(row, 0, params.raw.box_w);
    } else {
      if (left > 0) f(row, rows.lead(row), left);
      if (right < col_end) f(row, rows.lead(row) + right, col_end - right);
    }
  }
}

// Place in such a halo of an M-block's first pixel, for the group's first tap, and of its pixel m from there.
struct FloatPlace {
  int32_t row, column;
};
FASTCONV_HOST_DEVICE FloatPlace float_block(const HaloParams& params, int32_t block) {
  return {(block >> params.blocks_q_log2) * params.block_p,
          (block & ((1 << params.blocks_q_log2) - 1)) * params.block_q};
}
FASTCONV_HOST_DEVICE FloatPlace float_pixel(const HaloParams& params, int32_t m) {
  return {(m >> 3) * params.group_p, (m >> 3) * params.group_q + (m & 7)};
}

// What a lane has of 64 pixels by kDepth channels in registers, of its warp's 16 pixels (PTX ISA, "wgmma", A); kDepth
// is 16 of values of 16 bits, 8 of TF32.
template <int kDepth>
struct FloatFragment {
  static constexpr int kValues = kDepth / 2, kEach = kDepth / 8;  // of a lane; of a register
  int32_t pixel, channel;                                         // of the first value

  FASTCONV_HOST_DEVICE FloatFragment(int32_t warp, int32_t lane)
      : pixel(warp * 16 + lane / 4), channel(lane % 4 * kEach) {}
  // The others: so many pixels and channels further.
  static FASTCONV_HOST_DEVICE constexpr int pixels(int value) { return value / kEach % 2 * 8; }
  static FASTCONV_HOST_DEVICE constexpr int channels(int value) {
    return value / (2 * kEach) * (kDepth / 2) + value % kEach;
  }
};

}  // namespace fastconv
