// TF32 as tensor cores read it: the bits that it lacks are left out, not rounded.
#pragma once

#include <cstdint>

namespace fastconv {

// To the nearest value of TF32, ties away from zero, once tensor cores have left out the bits beyond. An infinity
// remains one, nothing else becomes one, and a NaN remains one if it has any of the bits that are left, as those that
// computations return have. See to_tf32(), which is longer.
__device__ __forceinline__ uint32_t to_truncated_tf32(uint32_t bits) {
  constexpr uint32_t kHalf = 0x1000;
  constexpr float kNotUp = 0x1.ffep127f;  // the first that would become infinite if it were rounded up
  return fabsf(__uint_as_float(bits)) < kNotUp ? bits + kHalf : bits;
}

}  // namespace fastconv
