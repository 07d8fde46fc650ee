// Storage types of the CPU kernels, and the type each of them is accumulated in.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace fastconv {

using Half = _Float16;

struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit BFloat16(float value) {
    uint32_t word;
    std::memcpy(&word, &value, sizeof(word));
    // To nearest, ties to even. The carry would turn a NaN with a long mantissa into infinity.
    bits = std::isnan(value) ? uint16_t{0x7fc0} : static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
  }
  operator float() const {
    const uint32_t word = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return value;
  }
};

template <class T>
struct AccumulatorOf {
  using Type = float;
};
template <>
struct AccumulatorOf<double> {
  using Type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::Type;

}  // namespace fastconv
