// What kernels of scaled operands do with a measured range; see operand_range.h.
#pragma once

#include "fastconv/core/buffers.h"
#include "fastconv/core/operand_range.h"

namespace fastconv {

template <int kRows, int kCols>
__device__ __forceinline__ void unscale(float (&sums)[kRows][kCols], const OperandRange& range) {
  const float first = range.unscale[0], second = range.unscale[1];
#pragma unroll
  for (int i = 0; i < kRows * kCols; ++i) sums[i / kCols][i % kCols] = sums[i / kCols][i % kCols] * first * second;
}

// Once the kernel that measures is done.
__device__ __forceinline__ bool is_closed(const RangeGate& gate) {
  return gate.range != nullptr && (gate.range->fits != 0) != gate.fits;
}

}  // namespace fastconv
