// TF32 as tensor cores read it: the bits that it lacks are left out, not rounded.
#pragma once

#include <cstdint>

namespace fastconv {

// The first magnitude that would become infinite if it were rounded up, and what rounds the others.
inline constexpr float kTruncatedTf32NotUp = 0x1.ffep127f;
inline constexpr uint32_t kTruncatedTf32Half = 0x1000;

// To the nearest value of TF32, ties away from zero, once tensor cores have left out the bits beyond. An infinity
// remains one, nothing else becomes one, and a NaN remains one if it has any of the bits that are left, as those that
// computations return have. See to_tf32(), which is longer.
__device__ __forceinline__ uint32_t to_truncated_tf32(uint32_t bits) {
  return bits + (fabsf(__uint_as_float(bits)) < kTruncatedTf32NotUp ? kTruncatedTf32Half : 0);
}
// The same where it is: two instructions, three if the result is to be in another register.
__device__ __forceinline__ void make_truncated_tf32(uint32_t& bits) {
  if (fabsf(__uint_as_float(bits)) < kTruncatedTf32NotUp) bits += kTruncatedTf32Half;
}

}  // namespace fastconv
