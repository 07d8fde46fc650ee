// Pixels along an axis that a tile needs of the tensor that the filter slides over.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "fastconv/core/integers.h"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {

// Taps of the phase that has most.
inline int32_t most_taps(const Axis& axis) { return static_cast<int32_t>(ceil_div(axis.taps, axis.tap_step)); }
inline int64_t source_extent(const Axis& axis, int64_t pixels) {
  return (pixels - 1) * axis.source_step + int64_t{most_taps(axis) - 1} * std::abs(axis.tap_source_step) + 1;
}

}  // namespace fastconv
