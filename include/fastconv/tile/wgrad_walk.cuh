// What a block of the weight gradient works on, and where its tiles lie. Plain C++ as well as CUDA: the tests run it
// against brute force.
#pragma once

#include "fastconv/tile/host_device_caller.h"
#include "fastconv/tile/wgrad_params.h"

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

// First output pixel of a tile; of shifted rows (see WgradRows), the column of the maps.
struct WgradTile {
  int32_t n, p, q;

  FASTCONV_HOST_DEVICE WgradTile(const WgradParams& params, int32_t index) {
    params.tiles_q.divmod(index, p, q);
    params.tiles_p.divmod(p, n, p);
    n *= params.tile_n, p *= params.tile_p, q *= params.tile_q;
  }
};

// WgradStaging::kTransposed. Rows of padding and channels that do not exist are not copied: the copy engine writes
// zeros for them, but at 1.5 bytes a clock (measured).
FASTCONV_HOST_DEVICE bool exists(const WgradParams& params, int32_t h, int32_t channel) {
  return h >= 0 && h < params.x.h && channel < params.x.c;
}

// WgradStaging::kTransposed, a part of x. f(row of the box, its row of the image, column of its first pixel, first
// column of the copy).
FASTCONV_HOST_DEVICE_CALLER void for_each_raw_row(const WgradParams& params, const WgradTile& tile,
                                                  const WgradPart& part, F f) {
  const int32_t w = tile.q * params.stride_w + part.dw;
  for (int i = 0; i < params.x.box_rows; ++i) {
    const int32_t h = (tile.p + i) * params.stride_h + part.dh;
    for (int box = 0; box < params.raw.boxes; ++box) f(i, h, w, raw_row_start(params.raw, w, h, box));
  }
}

// WgradStaging::kTransposed, the copies of a block of filters of dy. f(map, the copy's first row among those of the
// map, its first filter likewise, its rows' place in shared memory).
FASTCONV_HOST_DEVICE_CALLER void for_each_y_copy(const WgradParams& params, const WgradTile& tile, int32_t block, F f) {
  const WgradRows& rows = params.rows;
  for (int row = 0; row < 1 << rows.row_log2; ++row) {
    f((rows.filter_phase(block) << rows.row_log2) + row, tile.p >> rows.row_log2, (block >> rows.filter_log2) * 64,
      rows.place(row, params.tile_p));
  }
}

// WgradStaging::kDense, rows of one image and 64 channels of x or dy.
struct WgradSlice {
  bool is_x;
  int32_t block, n;
  int32_t h, w, rows;  // pixel of the image where the box begins; rows of the box
  int32_t first;       // pixel of the box that is the image's first there
  int32_t begin, end;  // pixels of the plane that lie in these rows; none if they do not exist
  uint32_t to;         // where the box begins in the stage, bytes
};

FASTCONV_HOST_DEVICE WgradSlice wgrad_slice(const WgradParams& params, const WgradTile& tile, bool is_x, int32_t block,
                                            int32_t image, int32_t h, int32_t w, uint32_t to) {
  const WgradOperand& from = is_x ? params.x : params.y;
  const int32_t rows = static_cast<int32_t>(from.box_h.divisor), n = tile.n + image;
  const int32_t low = h < 0 ? 0 : h, high = h + rows < from.h ? h + rows : from.h;
  const bool there = n < from.n && block * 64 < from.c && low < high;
  return {is_x, block, n, h, w, rows, image * rows * from.pitch, there ? low * from.w : 0, there ? high * from.w : 0,
          to};
}

FASTCONV_HOST_DEVICE_CALLER void for_each_slice(const WgradParams& params, const WgradJob& job, const WgradTile& tile,
                                                F f) {
  const WgradTapGroup& group = params.tap_group[job.tap_group];
  uint32_t to = 0;
  for (int i = group.part_begin; i < group.part_end; ++i, to += params.x_part_bytes) {
    const WgradPart& part = params.part[i];
    const int32_t block = job.c_job * params.c_blocks_per_job + part.c_block;
    for (int image = 0; image < params.tile_n; ++image) {
      f(wgrad_slice(params, tile, true, block, image, tile.p + part.dh, tile.q + part.dw, to));
    }
  }
  to = params.y_offset;
  for (int m = 0; m < params.m_blocks; ++m, to += params.y_block_bytes) {
    for (int image = 0; image < params.tile_n; ++image) {
      f(wgrad_slice(params, tile, false, job.k_job * params.m_blocks + m, image, tile.p, tile.q, to));
    }
  }
}

// The box's pixel where pixel `at` of the plane belongs, or -1.
FASTCONV_HOST_DEVICE int32_t slice_pixel(const WgradOperand& from, const WgradSlice& slice, int32_t at) {
  int32_t h, w;
  from.plane_w.divmod(at < 0 ? 0 : at, h, w);
  const int32_t column = w - slice.w;
  const bool inside = at >= slice.begin && at < slice.end && column >= 0 && column < from.pitch;
  return inside ? slice.first + (h - slice.h) * from.pitch + column : -1;
}

}  // namespace fastconv
