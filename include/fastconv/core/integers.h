#pragma once

#include <cstdint>

namespace fastconv {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Whether `extent` elements that are `stride` apart all begin at multiples of `elements`, as the first one does.
constexpr bool keeps_multiples(int64_t stride, int64_t extent, int64_t elements) {
  return extent == 1 || stride % elements == 0;
}
// The size of the parts, equal but for the last, that `extent` >= 1 is cut into: none is larger than `most`.
constexpr int32_t even_part(int64_t extent, int32_t most) {
  return static_cast<int32_t>(ceil_div(extent, ceil_div(extent, most)));
}
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace fastconv
