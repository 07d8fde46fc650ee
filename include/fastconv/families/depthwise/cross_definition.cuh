// What a slice of families/depthwise/cross.h adds up, by definition.
#pragma once

#include "fastconv/families/depthwise/cross.h"
#include "fastconv/tile/element.cuh"

namespace fastconv {

// For one tap, slowly: where a product with a zero beside an image has met an infinity or NaN.
template <typename T, DepthwiseCrossConfig kConfig>
__device__ float cross_tap_by_definition(const DepthwiseCrossParams& params, int32_t slice, int32_t channel, int32_t r,
                                         int32_t s) {
  constexpr int32_t kStride = kConfig.stride;
  const Strides &from = params.source_strides, &to = params.target_strides;
  const auto* x = static_cast<const T*>(params.source) + channel * from.c;
  const auto* dy = static_cast<const T*>(params.target) + channel * to.c;
  // Columns of x's plane that the tap meets, and from each to that of dy.
  const int32_t half = kConfig.half_of(s), plane = kConfig.plane(half, params.padding_w);
  const int32_t more = kConfig.first_target(half, params.padding_w) + kConfig.shift_of(s);
  float sum = 0;
  for (CrossRun run(kConfig, params, slice); run.exists(); run = run.next(kConfig, params, slice)) {
    const int32_t last_image = min(run.image + params.tiling.images, params.images);
    const int32_t last_p = min(run.row + run.boxes * params.tiling.rows, params.target_h);
    const int32_t last_column = min(run.column + params.tiling.columns, params.target_w - more);
    for (int32_t image = run.image; image < last_image; ++image) {
      for (int32_t p = run.row; p < last_p; ++p) {
        const int32_t h = kStride * p + r - params.padding_h;
        if (h < 0 || h >= params.source_h) continue;
        for (int32_t column = max(run.column, -more); column < last_column; ++column) {
          const int32_t w = kStride * column + plane;
          if (w >= params.source_w) break;
          sum += widen(x[image * from.n + h * from.h + w * from.w]) *
                 widen(dy[image * to.n + p * to.h + (column + more) * to.w]);
        }
      }
    }
  }
  return sum;
}

}  // namespace fastconv
