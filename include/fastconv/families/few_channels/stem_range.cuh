// Images of few channels: a tile that is staged, and a block's filters, scaled to fp16 by their largest number, if one
// power of two fits them all. A block looks at what it has at hand, which takes no pass of its own over the tensors;
// where numbers do not fit it multiplies bf16 parts.
#pragma once

#include <cstdint>

#include "fastconv/core/operand_range.h"
#include "fastconv/families/few_channels/stem_walk.cuh"
#include "fastconv/ptx/minimum.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/warpgroup.cuh"

namespace fastconv {

// The largest number becomes 2^14 or more, and no number more than fp16 holds. One part then holds numbers down to
// 2^-27 of the largest as TF32 does, two hold them with 23 bits (split.h); smaller ones to the same absolute error, so
// that numbers do not fit that have smaller ones among them.
inline constexpr uint32_t kLeastExponent = 27;

// Magnitudes in order, but for zeros, which come last.
__device__ __forceinline__ uint32_t magnitude_order(float value) { return 2 * __float_as_uint(value) - 1; }

// Of a lane's numbers: the largest magnitude, NaN if there is one; then how many fours have small ones.
__device__ __forceinline__ void add_largest(const float (&v)[4], float& most) {
  const float first = ptx::max_or_nan(fabsf(v[0]), fabsf(v[1])), second = ptx::max_or_nan(fabsf(v[2]), fabsf(v[3]));
  most = ptx::max_or_nan(most, ptx::max_or_nan(first, second));
}
__device__ __forceinline__ uint32_t least_magnitude(const float (&v)[4]) {
  const uint32_t first = min(magnitude_order(v[0]), magnitude_order(v[1]));
  return min(first, min(magnitude_order(v[2]), magnitude_order(v[3])));
}
__device__ __forceinline__ void add_small(const float (&v)[4], uint32_t least, uint32_t& small) {
  small += least_magnitude(v) < least;
}

// Beside a number of such bits, those of a smaller order are small.
__device__ __forceinline__ uint32_t least_order(uint32_t most) {
  const uint32_t down = kLeastExponent << 24, order = 2 * most;
  return order < down ? 0 : order - down;
}

// All that is staged of a box, f(four): what lies between rows and channels is zeros, see clear_stages().
template <typename F>
__device__ __forceinline__ void for_staged(const StemBox& box, uint32_t smem, F&& f) {
#pragma unroll 4
  for (auto i = static_cast<int32_t>(threadIdx.x) * 4; i < box.words; i += kStemThreads * 4) {
    const uint4 four = ptx::load_shared16(smem + i * 4);
    f({__uint_as_float(four.x), __uint_as_float(four.y), __uint_as_float(four.z), __uint_as_float(four.w)});
  }
}

__device__ __forceinline__ void clear_stages(const StemWalk& params, uint32_t smem) {
#pragma unroll 4
  for (auto i = static_cast<int32_t>(threadIdx.x) * 16; i < params.stages * params.stage_bytes;
       i += kStemThreads * 16) {
    ptx::store_shared16(smem + i, make_uint4(0, 0, 0, 0));
  }
}

// What a block's warps, no more than kWarps, have found of some numbers, in range_bytes(): each the largest magnitude's
// bits and how many fours are small, once by a guess. A barrier lies between writing and reading.
template <int kWarps>
struct WarpRange {
  enum Found { kMost, kSmallByGuess, kSmall };
  uint32_t smem;

  __device__ __forceinline__ void write(Found what, uint32_t warp) const {
    if (threadIdx.x % 32 == 0) ptx::store_shared4(smem + (what * kWarps + threadIdx.x / 32) * 4, warp);
  }
  __device__ __forceinline__ uint32_t read(Found what) const {
    const uint32_t warp = threadIdx.x % 32;
    return warp < blockDim.x / 32 ? ptx::load_shared4(smem + (what * kWarps + warp) * 4) : 0;
  }
  __device__ __forceinline__ void write_most(float lane) const { write(kMost, ptx::reduce_max(__float_as_uint(lane))); }
  __device__ __forceinline__ void write_small(uint32_t lane, Found what = kSmall) const {
    write(what, ptx::reduce_add(lane));
  }
  __device__ __forceinline__ uint32_t most() const { return ptx::reduce_max(read(kMost)); }
  __device__ __forceinline__ uint32_t small(Found what = kSmall) const { return ptx::reduce_add(read(what)); }
};

using StemRange = WarpRange<kStemWarps>;

// The range of one box of each tile. What is small shows once the largest number is known; the largest so far is a good
// guess, so that most tiles are looked at once.
struct StemBoxRange {
  static constexpr uint32_t kInfinity = 0x7f800000;
  const StemBox& box;
  uint32_t most_small;  // fours that may have small numbers
  uint32_t most = 0, guess = 0;
  bool fits = true;

  // All threads call these one after the other, with a barrier after each; the second one if any box needs it.
  __device__ __forceinline__ void look(uint32_t staged, const StemRange& range) {
    const uint32_t least = least_order(guess);
    float largest = 0;
    uint32_t small = 0;
    for_staged(box, staged, [&](const float (&four)[4]) {
      add_largest(four, largest);
      add_small(four, least, small);
    });
    range.write_most(largest);
    range.write_small(small, StemRange::kSmallByGuess);
  }
  __device__ __forceinline__ bool needs_second_look(const StemRange& range) {
    most = range.most();
    fits = most <= guess && range.small(StemRange::kSmallByGuess) <= most_small;
    if (most < kInfinity) guess = max(guess, most);
    return !fits;
  }
  __device__ __forceinline__ void look_again(uint32_t staged, const StemRange& range) const {
    const uint32_t least = least_order(most);
    uint32_t small = 0;
    for_staged(box, staged, [&](const float (&four)[4]) { add_small(four, least, small); });
    range.write_small(small);
  }
  __device__ __forceinline__ void finish(const StemRange& range) { fits = range.small() <= most_small; }
};

// What the two factors are multiplied by, and the sums of their products.
struct StemScale {
  float first = 1, second = 1, back = 1;
  bool fits = true;

  StemScale() = default;
  __device__ __forceinline__ StemScale(uint32_t first_most, uint32_t second_most) {
    const Fp16Shift a(first_most), b(second_most);
    const int32_t exponent = -(a.exponent + b.exponent);
    fits = a.fits && b.fits && exponent >= -126 && exponent <= 127;
    first = power_of_two(a.exponent), second = power_of_two(b.exponent), back = power_of_two(exponent);
  }
};

}  // namespace fastconv
