// Columns and rows of a warp's products with 32 columns or filters, dealt out so that a lane's sums are of neighbours,
// which it stores at once.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"

namespace fastconv {

// Of 32 columns, or of as many as there are products for: the one that column `column` of product `product` is, for its
// operand and its sums. A lane's are runs of so many.
FASTCONV_HOST_DEVICE constexpr int32_t run_column(int32_t run, int32_t product, int32_t column) {
  const int32_t products = run / 2;  // of a run
  return product / products * 4 * run + column / 2 * run + product % products * 2 + column % 2;
}
// Of a set of 32 filters: the one that is number `index`, of two, of a lane's in a half of them. They are columns of
// two products if filters lie side by side in the output, otherwise rows of one.
FASTCONV_HOST_DEVICE constexpr int32_t run_filter(bool channels_inner, int32_t run, int32_t lane, int32_t half,
                                                  int32_t index) {
  return channels_inner ? run_column(run, half * 2 + index, lane / 4) : half * 16 + index * 8 + lane / 4;
}

}  // namespace fastconv
