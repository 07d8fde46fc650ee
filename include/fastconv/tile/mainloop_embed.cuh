// Patch embeddings: chunks of values in registers as operands of products, and how these are multiplied; see embed.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "fastconv/ptx/mma.cuh"
#include "fastconv/tile/element.cuh"
#include "fastconv/tile/embed.h"
#include "fastconv/tile/mainloop_stem.cuh"

namespace fastconv {

template <typename T>
using EmbedChunk = Words<kEmbedChunk * sizeof(T)>;

template <typename T, int kParts>
inline constexpr int kEmbedPieces = EmbedConfig{kParts}.pieces(std::is_same_v<T, float>);

// A lane's chunks of some rows, which are filters or pixels, as operands.
template <typename T, int kParts, int kRows>
struct PlainFragment {
  uint32_t part[kEmbedPieces<T, kParts>][2 * kRows];
};
template <typename T, int kParts, int kRows>
using EmbedFragment =
    std::conditional_t<(kParts > 1), StemFragment<kParts, kRows, Operand::kBf16>, PlainFragment<T, kParts, kRows>>;

template <typename T, int kParts, int kRows>
__device__ __forceinline__ void make_fragment(const EmbedChunk<T> (&rows)[kRows],
                                              EmbedFragment<T, kParts, kRows>& fragment) {
  if constexpr (kParts > 1) {
    StemValues<kRows> values;
#pragma unroll
    for (int i = 0; i < kEmbedChunk; ++i) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) values.at(i, row) = __uint_as_float(rows[row].data[i]);
    }
    fragment.split(values, 1.f);
  } else {
#pragma unroll
    for (int i = 0; i < 2 * kEmbedPieces<T, kParts>; ++i) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const uint32_t word = rows[row].data[i];
        fragment.part[i / 2][i % 2 * kRows + row] = sizeof(T) == 2 ? word : to_tf32(__uint_as_float(word));
      }
    }
  }
}

// From values of some rows side by side, four times, to four of each row.
template <typename T, int kRows>
__device__ __forceinline__ void transpose(const Words<kRows* static_cast<int>(sizeof(T))> (&from)[kEmbedChunk],
                                          EmbedChunk<T> (&to)[kRows]) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < kEmbedChunk; ++i) to[row].data[i] = from[i].data[row];
    } else {
#pragma unroll
      for (int i = 0; i < kEmbedChunk / 2; ++i) {
        to[row].data[i] =
            __byte_perm(from[2 * i].data[row / 2], from[2 * i + 1].data[row / 2], row % 2 == 0 ? 0x5410 : 0x7632);
      }
    }
  }
}

// Four values at offset(index), those that `exists(index)` says.
template <typename T, typename Offset, typename Exists>
__device__ __forceinline__ EmbedChunk<T> load_each(const T* from, Offset&& offset, Exists&& exists) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  uint32_t values[kEmbedChunk];
#pragma unroll
  for (int i = 0; i < kEmbedChunk; ++i) values[i] = exists(i) ? reinterpret_cast<const Bits*>(from)[offset(i)] : 0;
  EmbedChunk<T> chunk;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < kEmbedChunk; ++i) chunk.data[i] = values[i];
  } else {
    chunk.data[0] = values[0] | values[1] << 16, chunk.data[1] = values[2] | values[3] << 16;
  }
  return chunk;
}

// Products of parts have as many orders of worth, each a sum of its own; the first is the largest.
template <int kParts>
inline constexpr int kEmbedOrders = kParts;

// Adds the products of a step, from number kIndex on.
template <typename T, int kParts, int kIndex = 0, int kLeft, int kRight>
__device__ __forceinline__ void multiply_embed(const EmbedFragment<T, kParts, 2> (&left)[kLeft],
                                               const EmbedFragment<T, kParts, 1> (&right)[kRight],
                                               float (&sums)[kEmbedOrders<kParts>][kLeft][kRight][4]) {
  if constexpr (kIndex < (kParts > 1 ? split_products(kParts) : kEmbedPieces<T, kParts>)) {
    constexpr SplitProduct kProduct(kParts, kParts > 1 ? kIndex : 0);
    constexpr int kFirst = kParts > 1 ? kProduct.first : kIndex, kSecond = kParts > 1 ? kProduct.second : kIndex;
    constexpr int kOrder = kParts > 1 ? kFirst + kSecond : 0;
    using Value = std::conditional_t<(kParts > 1), __nv_bfloat16, T>;
#pragma unroll
    for (int i = 0; i < kLeft; ++i) {
#pragma unroll
      for (int j = 0; j < kRight; ++j) {
        const uint32_t (&b)[2] = right[j].part[kSecond];
        ptx::mma(Value{}, sums[kOrder][i][j], left[i].part[kFirst], b[0], b[1]);
      }
    }
    multiply_embed<T, kParts, kIndex + 1>(left, right, sums);
  }
}

// One sum from the sums of(order) of all orders. What the large products are added to is finite, see make_finite().
template <int kParts, typename Of>
__device__ __forceinline__ float join_orders(Of&& of) {
  constexpr float kShrink = 1 / split_scale(kParts);
  float sum = of(kEmbedOrders<kParts> - 1);
#pragma unroll
  for (int order = kEmbedOrders<kParts> - 2; order >= 0; --order) {
    if (order == 0 && kShrink != 1) make_finite(sum);
    sum = __fmaf_rn(sum, kShrink, of(order));
  }
  return sum;
}

}  // namespace fastconv
