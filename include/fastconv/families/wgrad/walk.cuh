// What a block of the weight gradient works on, and where its tiles lie. Plain C++ as well as CUDA: the tests run it
// against brute force.
#pragma once

#include "fastconv/families/wgrad/params.h"
#include "fastconv/tile/float_lead.h"
#include "fastconv/tile/host_device_caller.h"

namespace fastconv {

// The part of dW that a block works on.
struct WgradJob {
  int32_t tap_group, c_job, k_job, group;

  FASTCONV_HOST_DEVICE WgradJob(const WgradParams& params, int32_t index) {
    params.tap_groups.divmod(index, c_job, tap_group);
    params.c_jobs.divmod(c_job, k_job, c_job);
    params.k_jobs.divmod(k_job, group, k_job);
  }
};

// Which of the sums a block has: the pixels of a split.
struct WgradShare {
  int32_t rank, partial, split, job_index;
  WgradJob job;

  FASTCONV_HOST_DEVICE WgradShare(const WgradParams& params, int32_t block)
      : WgradShare(params, block, params.cluster.div(block)) {}

 private:
  FASTCONV_HOST_DEVICE WgradShare(const WgradParams& params, int32_t block, int32_t cluster)
      : rank(block - cluster * static_cast<int32_t>(params.cluster.divisor)),
        partial(params.jobs.div(cluster)),
        split(partial * static_cast<int32_t>(params.cluster.divisor) + rank),
        job_index(cluster - partial * static_cast<int32_t>(params.jobs.divisor)),
        job(params, job_index) {}
};

// Element of the weight's convolution group that is filter k, tap (r, s) and channel c of the engine's; -1: none.
FASTCONV_HOST_DEVICE int64_t weight_element(const WgradParams& params, int32_t k, int32_t r, int32_t s, int32_t c) {
  if (k >= params.k || c >= params.c) return -1;
  const Fold& fold = params.x_fold.fold;
  if (fold.channels > 0) {
    const FoldedChannel& channel = fold.channel[c];
    r = fold.h.tap(r, channel.h), s = fold.w.tap(s, channel.w), c = channel.c;
    if (!fold.h.has_tap(r) || !fold.w.has_tap(s)) return -1;
  }
  return k * params.w_k + r * params.w_r + s * params.w_s + c * params.w_c;
}

// First output pixel of a tile; of shifted rows (see WgradRows), the column of the maps.
struct WgradTile {
  int32_t n, p, q;

  FASTCONV_HOST_DEVICE WgradTile(const WgradParams& params, int32_t index) {
    params.tiles_q.divmod(index, p, q);
    params.tiles_p.divmod(p, n, p);
    n *= params.tile_n, p *= params.tile_p, q *= params.tile_q;
  }
};

// What a tile's boxes of x wait for: the last unit of their pixels.
FASTCONV_HOST_DEVICE int32_t last_x_unit(const WgradParams& params, const WgradTapGroup& group, const WgradTile& tile) {
  auto inside = [](int32_t i, int32_t size) { return i < 0 ? 0 : i < size ? i : size - 1; };
  const WgradOperand& x = params.x;
  const auto rows = static_cast<int32_t>(x.box_h.divisor);
  const int32_t n = inside(tile.n + params.tile_n - 1, x.n);
  const int32_t h = inside(tile.p * params.stride_h + group.last_dh + (rows - 1) * x.step_h, x.h);
  const int32_t w = inside(tile.q * params.stride_w + group.last_dw + (x.pitch - 1) * x.step_w, x.w);
  return last_reorder_unit(params.x_order, (n * x.h + h) * x.w + w);
}

// WgradStaging::kFloats: where a tile of dy lies in its planes, and in the blocks of 64 filters of a stage.
struct WgradFloatsTile {
  const WgradFloats& floats;
  int32_t first;  // pixel of the plane
  int32_t width;  // columns that the image has from the tile's first on

  FASTCONV_HOST_DEVICE WgradFloatsTile(const WgradParams& params, const WgradTile& tile)
      : floats(params.floats), first(tile.p * floats.width + tile.q), width(floats.width - tile.q) {}

  // First pixel that copy number i brings. It lies at i * 64 * pitch floats.
  FASTCONV_HOST_DEVICE int32_t copy(int32_t i) const { return (first + i * floats.copy_pixels) & ~kMaxFloatLead; }
  // Of a step's first pixel, of a block's first filter, floats.
  FASTCONV_HOST_DEVICE int32_t place(WgradStep step) const {
    const int32_t row = step.y >> 8;
    return row * floats.row_pitch + ((first + row * floats.copy_pixels) & kMaxFloatLead) + (step.y & 255);
  }
  // As many pixels of a step exist, or more. What is staged behind them belongs to the next row.
  FASTCONV_HOST_DEVICE int32_t pixels(WgradStep step) const { return width - (step.y & 255); }
};

// Value i of the eight of A, 64 filters x 16 pixels, that a thread of a warpgroup has, two a register (PTX ISA,
// "wgmma").
FASTCONV_HOST_DEVICE constexpr int32_t fragment_filter(int32_t thread, int32_t i) {
  return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}
FASTCONV_HOST_DEVICE constexpr int32_t fragment_pixel(int32_t thread, int32_t i) {
  return thread % 4 * 2 + i % 2 + i / 4 * 8;
}
// From a step's place, floats: that of the thread's first value, plus that of the first thread's value i.
FASTCONV_HOST_DEVICE int32_t fragment_place(const WgradFloats& floats, int32_t thread, int32_t i) {
  return fragment_filter(thread, i) * floats.pitch + fragment_pixel(thread, i);
}

// WgradStaging::kTmaRows, the copies of a block of filters of dy. f(map, the copy's first row among those of the
// map, its first filter likewise, its rows' place in shared memory).
FASTCONV_HOST_DEVICE_CALLER void for_each_y_copy(const WgradParams& params, const WgradTile& tile, int32_t block, F f) {
  const WgradRows& rows = params.rows;
  for (int row = 0; row < 1 << rows.row_log2; ++row) {
    f((rows.filter_phase(block) << rows.row_log2) + row, tile.p >> rows.row_log2, (block >> rows.filter_log2) * 64,
      rows.place(row, params.tile_p));
  }
}

}  // namespace fastconv
