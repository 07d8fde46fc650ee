// Division by a run-time constant as a multiplication and a shift.
// Source: Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994, figure 4.1.
#pragma once

#include <bit>
#include <cassert>
#include <cstdint>

#include "fastconv/core/problem.h"

namespace fastconv {

// Exact for every dividend in [0, 2^31) and divisor in [1, 2^31).
struct FastDivmod {
  uint32_t divisor = 1;
  uint32_t shift = 0;  // of the next power of two
  uint32_t multiplier = uint32_t{1} << 31;

  FastDivmod() = default;
  // ceil(2^(31 + shift) / d) < 2^32 because 2^(shift - 1) < d; the dividend has 31 bits, so one extra bit suffices.
  explicit FastDivmod(int64_t d)
      : divisor(static_cast<uint32_t>(d)),
        shift(static_cast<uint32_t>(std::bit_width(divisor - 1))),
        multiplier(static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + divisor - 1) / divisor)) {
    assert(d >= 1 && d < int64_t{1} << 31);
  }

  FASTCONV_HOST_DEVICE int32_t div(int32_t dividend) const {
    if (divisor == 1) return dividend;  // any, the negative ones too
    // NOTES: the upper half of a product of 32 bits, one instruction; the dividend's free bit is shifted out.
    const uint64_t product = uint64_t{2 * static_cast<uint32_t>(dividend)} * multiplier;
    return static_cast<int32_t>(static_cast<uint32_t>(product >> 32) >> shift);
  }
  FASTCONV_HOST_DEVICE void divmod(int32_t dividend, int32_t& quotient, int32_t& remainder) const {
    quotient = div(dividend);
    remainder = dividend - quotient * static_cast<int32_t>(divisor);
  }
};

}  // namespace fastconv
