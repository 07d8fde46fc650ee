// Images of few channels: operands of products, gathered from float32 in shared memory and split into parts in
// registers, and how these are multiplied (docs/precision.md).
#pragma once

#include <cstdint>
#include <type_traits>

#include "fastconv/families/few_channels/stem_walk.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/split.h"

namespace fastconv {

// A lane's values of 16 depths: rows (pixels, filters, taps) eight apart, at four depths each, see stem_depth().
template <int kRows>
struct StemValues {
  float value[4 * kRows];  // as a fragment has them: a pair of depths of each row, then the next pair

  // By addresses of the rows and offsets of the depths, bytes.
  __device__ __forceinline__ void load(const uint32_t (&rows)[kRows], const uint4& depths) {
    const uint32_t offset[4] = {depths.x, depths.y, depths.z, depths.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) at(i, row) = __uint_as_float(ptx::load_shared4(rows[row] + offset[i]));
    }
  }
  // Zeros from depth `end` of the step on, which whatever is in memory must not meet.
  __device__ __forceinline__ void cut(int end) {
    const int lane = ptx::lane();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        if (stem_depth(0, lane, i) >= end) at(i, row) = 0.f;
      }
    }
  }
  __device__ __forceinline__ float& at(int index, int row) { return value[(index / 2 * kRows + row) * 2 + index % 2]; }
};

// The same as operands: of the product's left factor with two rows, of the right one with one.
template <int kParts, int kRows, Operand kOperand>
struct StemFragment {
  uint32_t part[kParts][2 * kRows];

  // `scale`: of fp16.
  __device__ __forceinline__ void split(const StemValues<kRows>& values, float scale) {
    auto parts = parts_of<kOperand>(values.value, scale);
#pragma unroll
    for (int i = 0; i < kParts; ++i) parts.take(i, kParts, part[i]);
  }
};

// Adds products number kIndex and later, of some left factors and some right ones, to sum[left][right]. Unless kFinite,
// a sum of small products that overflowed leaves an infinity or NaN.
template <bool kFinite, int kIndex, int kParts, int kLeft, int kRight, Operand kOperand>
__device__ __forceinline__ void add_stem_products(const StemFragment<kParts, 2, kOperand> (&left)[kLeft],
                                                  const StemFragment<kParts, 1, kOperand> (&right)[kRight],
                                                  float (&sum)[kLeft][kRight][4]) {
  if constexpr (kIndex < split_products(kParts)) {
    constexpr SplitProduct kProduct(kParts, kIndex);
    constexpr float kShrink = kIndex > 0 && kProduct.is_first() ? 1 / split_scale(kParts, kOperand) : 1;
    // What is not finite remains so while smaller products are added; the largest must not meet it.
    constexpr bool kLargest = kIndex + 1 == split_products(kParts);
#pragma unroll
    for (int i = 0; i < kLeft; ++i) {
#pragma unroll
      for (int j = 0; j < kRight; ++j) {
        float (&s)[4] = sum[i][j];
        if constexpr (kShrink != 1) {
#pragma unroll
          for (float& small : s) {
            if constexpr (kFinite && kLargest) make_finite(small);
            small *= kShrink;
          }
        }
        const uint32_t (&b)[2] = right[j].part[kProduct.second];
        using Value = std::conditional_t<kOperand == Operand::kFp16, __half, __nv_bfloat16>;
        ptx::mma(Value{}, s, left[i].part[kProduct.first], b[0], b[1]);
      }
    }
    add_stem_products<kFinite, kIndex + 1>(left, right, sum);
  }
}

// The products of one step, those of fp16 times `back`, added to sum(left, right). Tensor cores truncate what they add
// to, so that they add up no more than a step; the rest is done by ordinary additions.
template <bool kFinite, int kParts, int kLeft, int kRight, Operand kOperand, typename Sum>
__device__ __forceinline__ void multiply_stem(const StemFragment<kParts, 2, kOperand> (&left)[kLeft],
                                              const StemFragment<kParts, 1, kOperand> (&right)[kRight], Sum&& sum,
                                              float back = 1) {
  float step[kLeft][kRight][4] = {};
  add_stem_products<kFinite, 0>(left, right, step);
#pragma unroll
  for (int i = 0; i < kLeft; ++i) {
#pragma unroll
    for (int j = 0; j < kRight; ++j) {
      float (&s)[4] = sum(i, j);
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        if constexpr (kOperand == Operand::kFp16) {
          s[v] = __fmaf_rn(step[i][j][v], back, s[v]);
        } else {
          s[v] += step[i][j][v];
        }
      }
    }
  }
}

// The same of two scaled parts, but for all steps' sums to be scaled yet, and with sums of their own for the small
// products, which are added up by tensor cores over all steps: the large ones need not wait for them. What truncating
// them loses is far below the large ones' own error.
template <int kLeft, int kRight, typename Sum, typename Small>
__device__ __forceinline__ void multiply_stem_apart(const StemFragment<2, 2, Operand::kFp16> (&left)[kLeft],
                                                    const StemFragment<2, 1, Operand::kFp16> (&right)[kRight],
                                                    Sum&& sum, Small&& small) {
  float large[kLeft][kRight][4] = {};
  auto times = [&](int first, int second, auto&& to) {
#pragma unroll
    for (int i = 0; i < kLeft; ++i) {
#pragma unroll
      for (int j = 0; j < kRight; ++j) {
        const auto& b = right[j].part[second];
        ptx::mma(__half{}, to(i, j), left[i].part[first], b[0], b[1]);
      }
    }
  };
  times(0, 0, [&](int i, int j) -> float (&)[4] { return large[i][j]; });
  times(1, 0, small);
  times(0, 1, small);
#pragma unroll
  for (int i = 0; i < kLeft; ++i) {
#pragma unroll
    for (int j = 0; j < kRight; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v) sum(i, j)[v] += large[i][j][v];
    }
  }
}

}  // namespace fastconv
