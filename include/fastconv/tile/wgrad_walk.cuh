// What a block of the weight gradient works on, and where its tiles lie. Plain C++ as well as CUDA: the tests run it
// against brute force.
#pragma once

#include "fastconv/tile/wgrad_params.h"

// What is called back may be a function of one side only.
#if defined(__CUDACC__)
#define FASTCONV_HOST_DEVICE_CALLER                      \
  _Pragma("nv_exec_check_disable") template <typename F> \
  FASTCONV_HOST_DEVICE
#else
#define FASTCONV_HOST_DEVICE_CALLER \
  template <typename F>             \
  FASTCONV_HOST_DEVICE
#endif

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

}  // namespace fastconv

#undef FASTCONV_HOST_DEVICE_CALLER
