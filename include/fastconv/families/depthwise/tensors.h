// The tensors of a depthwise kernel whose rows pass through threads: what fprop, dgrad and wgrad have in common.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"
#include "fastconv/tile/epilogue.h"

namespace fastconv {

// Where byte `offset` lies of pixels that TMA moves, of so many bytes each, at most 128: its order of
// banks, which goes by absolute address.
FASTCONV_HOST_DEVICE constexpr uint32_t swizzled_pixels(uint32_t offset, int32_t pixel_bytes) {
  return offset ^ (offset >> 3 & static_cast<uint32_t>(pixel_bytes - 16));
}

// fprop: from x to y. dgrad: from dy to dx. wgrad: x is the source and dy the target, which is read.
struct DepthwiseTensors {
  const void* source;
  const void* filter;
  EpilogueParams epilogue;
  void* target;
  float* sums;  // wgrad: of slices, as SliceReduction has them, or null where a block writes `dw` itself
  void* dw;     // wgrad
  Strides source_strides, target_strides;
  Strides filter_strides;  // dgrad of stride 1: from the last tap backwards
};

// And where windows lie, for kernels that can compute a target by definition.
struct DepthwiseWindows : DepthwiseTensors {
  int32_t source_h, source_w, target_h, target_w;
  int32_t padding_h, padding_w;  // as a window sees them that slides over the filter, or of a transposed one
  int32_t taps_h, taps_w;

  // From a filter's begin to the tap that comes first, which may be the last.
  FASTCONV_HOST_DEVICE int64_t first_tap_offset() const {
    return (filter_strides.h < 0 ? (1 - taps_h) * filter_strides.h : 0) +
           (filter_strides.w < 0 ? (1 - taps_w) * filter_strides.w : 0);
  }
};

}  // namespace fastconv
