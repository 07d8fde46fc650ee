#pragma once

#include <algorithm>
#include <bit>
#include <span>

#include "fastconv/core/operand_range.h"

namespace fastconv {

// Of values that follow each other in memory, as measure_range() does it.
inline TensorRange measure(std::span<const float> values) {
  TensorRange range;
  for (size_t first = 0; first < values.size(); first += kRangeGroup) {
    uint32_t group[kRangeGroup / 4][4] = {}, most = 0;
    for (size_t i = first; i < std::min(first + kRangeGroup, values.size()); ++i) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(values[i]) & kMagnitude;
      group[(i - first) / 4][i % 4] = magnitude;
      most = std::max(most, magnitude);
    }
    for (const auto& quad : group) range.add(quad, most);
  }
  return range;
}

}  // namespace fastconv
