// How far apart the numbers of two float32 tensors lie, which a kernel measures before they are scaled to fp16: each
// tensor by one power of two. fp16 has five bits of exponent, so that this does for tensors whose numbers, group by
// group, are not too far from the largest. Others are left to kernels of another kind; see planner/scaled.h.
#pragma once

#include <cstdint>

#include "fastconv/core/buffers.h"
#include "fastconv/core/problem.h"

namespace fastconv {

// Magnitudes of finite float32 numbers, and of the others, are ordered as their bits are.
inline constexpr uint32_t kMagnitude = 0x7fffffff;

// Neighbours in memory, one cache line of them. The largest is held to 2^-23 of it, or as exactly as TF32 does where
// there is one part; the others of the group to the same absolute error. That is enough where they enter the same sums,
// or others like them do. Numbers that never meet the large ones beside them (a channel of channels_last whose filters
// are as much larger, columns that no filter's tap reads) are a share of all numbers: small ones may be no more than
// one in so many, which is less than a channel of thousands.
inline constexpr int kRangeGroup = 32;
inline constexpr int kSmall = 24;  // log2 of how many times smaller than their group's largest
inline constexpr int kOneIn = 16384;

// Of a tensor, or of some of its groups.
struct TensorRange {
  uint32_t most = 0;            // magnitude of the largest number, bits
  uint32_t least = kMagnitude;  // the least, among groups, of the largest of a group that is not all zeros
  uint64_t numbers = 0;         // that are not zero
  uint64_t small = 0;           // of these

  // Magnitudes of a group's, beside the largest of the whole group.
  FASTCONV_HOST_DEVICE void add(const uint32_t (&magnitude)[4], uint32_t largest) {
    uint32_t count = 0, smaller = 0;
    for (const uint32_t one : magnitude) {
      count += one != 0;
      smaller += one != 0 && one + (kSmall << 23) < largest;
    }
    add({largest, largest == 0 ? kMagnitude : largest, count, smaller});
  }
  FASTCONV_HOST_DEVICE void add(const TensorRange& others) {
    most = others.most > most ? others.most : most;
    least = others.least < least ? others.least : least;
    numbers += others.numbers, small += others.small;
  }
};

struct OperandRange {
  float scale[2];    // powers of two: of the input or x, of the filter or dy
  float unscale[2];  // of their products' sums, one factor after the other: both together may be no float32 number
  uint32_t fits;     // otherwise nothing of the above means anything
};

// How many times smaller than a tensor's largest number a group's may be, log2. One part is as exact as TF32 up to
// 2^26. Two parts have 23 bits up to there, but the farther numbers lie apart, the fewer products make up a sum, and
// the fewer roundings of float32 there are to compare with the bit that two parts lack: of numbers times exp(4 sigma),
// 2^21 apart and more, errors were up to 1.9 times those of cuDNN in strict float32.
FASTCONV_HOST_DEVICE constexpr int32_t widest_range(int32_t parts) { return parts == 1 ? 26 : 16; }

FASTCONV_HOST_DEVICE float power_of_two(int32_t exponent) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(exponent + 127) << 23);
}

// By what power of two numbers become fp16, from the bits of the largest magnitude, and whether that is a float32
// number. Those of the largest exponent become 2^14 and more; rounding brings none of them to fp16's infinity.
struct Fp16Shift {
  int32_t exponent;
  bool fits;

  FASTCONV_HOST_DEVICE explicit Fp16Shift(uint32_t largest) {
    constexpr int32_t kBias = 127, kInfinite = 255, kLargest = 14;
    const auto biased = static_cast<int32_t>(largest >> 23);
    exponent = largest == 0 ? 0 : kLargest - (biased - kBias);
    fits = biased < kInfinite && exponent < kBias;
  }
};

FASTCONV_HOST_DEVICE OperandRange operand_range(const TensorRange& first, const TensorRange& second, int32_t widest) {
  OperandRange range{};
  const Fp16Shift shift[2] = {Fp16Shift(first.most), Fp16Shift(second.most)};
  range.fits = shift[0].fits && shift[1].fits;
  for (int i = 0; i < 2; ++i) {
    const TensorRange& tensor = i == 0 ? first : second;
    const auto most = static_cast<int32_t>(tensor.most >> 23), least = static_cast<int32_t>(tensor.least >> 23);
    if (tensor.most != 0 && (least == 0 || least + widest < most)) range.fits = 0;
    if (tensor.small > 1 + tensor.numbers / kOneIn) range.fits = 0;
  }
  if (range.fits == 0) return range;
  const int32_t back = -(shift[0].exponent + shift[1].exponent), half = back / 2;
  for (int i = 0; i < 2; ++i) {
    range.scale[i] = power_of_two(shift[i].exponent), range.unscale[i] = power_of_two(i == 0 ? half : back - half);
  }
  return range;
}

}  // namespace fastconv
