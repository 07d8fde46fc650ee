// Targets of a depthwise convolution, or of narrow groups, by definition, slowly: where products with zeros, or without
// rows of padding, may have gone wrong because a value was not finite.
#pragma once

#include "fastconv/families/depthwise/tensors.h"
#include "fastconv/tile/epilogue.cuh"

namespace fastconv {

// What a channel of the target is summed over: channels of the source from `first` on, and elements of the filter, the
// first one's first tap and from one to the next.
struct ReducedChannels {
  int32_t first, count;
  int64_t filter, filter_step;
};

// Rows [row, last) of one column, if it exists.
template <typename T, bool kTransposed, int kStride>
__device__ void convolve_column_by_definition(const DepthwiseWindows& params, int32_t image,
                                              const ReducedChannels& channels, int32_t channel, int32_t row,
                                              int32_t last, int32_t column) {
  if (column >= params.target_w) return;
  const Strides &from = params.source_strides, &to = params.target_strides, &tap = params.filter_strides;
  const T* filter = static_cast<const T*>(params.filter) + channels.filter;
  const T* source = static_cast<const T*>(params.source) + image * from.n + channels.first * from.c;
  T* target = static_cast<T*>(params.target) + image * to.n + channel * to.c + column * to.w;
  const FilterEpilogue<float> finish = Epilogue<T>(params.epilogue).of(channel);
  // The source's row or column that a tap meets, if any.
  auto meets = [&](int32_t target, int32_t tap, int32_t padding, int32_t& at) {
    at = kTransposed ? target + padding - tap : target * kStride - padding + tap;
    if (!kTransposed) return true;
    const bool met = at % kStride == 0;
    at /= kStride;
    return met;
  };
  for (; row < last; ++row) {
    float sum = 0;
    for (int32_t i = 0; i < params.taps_h * params.taps_w; ++i) {
      const int32_t r = i / params.taps_w, s = i - r * params.taps_w;
      int32_t h, w;
      if (!meets(row, r, params.padding_h, h) || !meets(column, s, params.padding_w, w)) continue;
      const bool exists = h >= 0 && h < params.source_h && w >= 0 && w < params.source_w;
      for (int32_t c = 0; c < channels.count; ++c) {
        const float value = exists ? widen(source[c * from.c + h * from.h + w * from.w]) : 0.f;
        sum += value * widen(filter[c * channels.filter_step + r * tap.h + s * tap.w]);
      }
    }
    target[row * to.h] = narrow<T>(finish(sum));
  }
}

}  // namespace fastconv
