// Patch embeddings: chunks of values in registers as operands of products, and how these are multiplied; see embed.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "fastconv/families/few_channels/embed.h"
#include "fastconv/families/few_channels/stem_mainloop.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {

template <typename T>
using EmbedWords = Words<kEmbedChunk* static_cast<int>(sizeof(T))>;

// A lane's chunks of some rows, which are filters or pixels, as operands: those of 16 bits as they are.
template <int kRows>
struct PlainFragment {
  uint32_t part[1][2 * kRows];
};
template <int kParts, int kRows>
using EmbedFragment =
    std::conditional_t<(kParts > 1), StemFragment<kParts, kRows, Operand::kBf16>, PlainFragment<kRows>>;

template <typename T, int kParts, int kRows>
__device__ __forceinline__ void make_fragment(const EmbedWords<T> (&rows)[kRows],
                                              EmbedFragment<kParts, kRows>& fragment) {
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
    for (int row = 0; row < kRows; ++row) {
      fragment.part[0][row] = rows[row].data[0], fragment.part[0][kRows + row] = rows[row].data[1];
    }
  }
}

// Four values at offset(index), those that `exists(index)` says.
template <typename T, typename Offset, typename Exists>
__device__ __forceinline__ EmbedWords<T> load_each(const T* from, Offset&& offset, Exists&& exists) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  uint32_t values[kEmbedChunk];
#pragma unroll
  for (int i = 0; i < kEmbedChunk; ++i) values[i] = exists(i) ? reinterpret_cast<const Bits*>(from)[offset(i)] : 0;
  EmbedWords<T> chunk;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < kEmbedChunk; ++i) chunk.data[i] = values[i];
  } else {
    chunk.data[0] = values[0] | values[1] << 16, chunk.data[1] = values[2] | values[3] << 16;
  }
  return chunk;
}

// Adds the products of a step, from number kIndex on. Those of parts have as many orders of worth as there are parts,
// each a sum of its own; the first is the largest.
template <typename T, int kParts, int kIndex = 0, int kLeft, int kRight>
__device__ __forceinline__ void multiply_embed(const EmbedFragment<kParts, 2> (&left)[kLeft],
                                               const EmbedFragment<kParts, 1> (&right)[kRight],
                                               float (&sums)[kParts][kLeft][kRight][4]) {
  if constexpr (kIndex < split_products(kParts)) {
    constexpr SplitProduct kProduct(kParts, kIndex);
    using Value = std::conditional_t<(kParts > 1), __nv_bfloat16, T>;
#pragma unroll
    for (int i = 0; i < kLeft; ++i) {
#pragma unroll
      for (int j = 0; j < kRight; ++j) {
        const uint32_t (&b)[2] = right[j].part[kProduct.second];
        ptx::mma(Value{}, sums[kProduct.first + kProduct.second][i][j], left[i].part[kProduct.first], b[0], b[1]);
      }
    }
    multiply_embed<T, kParts, kIndex + 1>(left, right, sums);
  }
}

// One sum from the sums of(order) of all orders. Of three parts, what the large products are added to is finite, see
// make_finite().
template <int kParts, typename Of>
__device__ __forceinline__ float join_orders(Of&& of) {
  constexpr float kShrink = 1 / split_scale(kParts);
  float sum = of(kParts - 1);
#pragma unroll
  for (int order = kParts - 2; order >= 0; --order) {
    if (order == 0 && kShrink != 1) make_finite(sum);
    sum = __fmaf_rn(sum, kShrink, of(order));
  }
  return sum;
}

}  // namespace fastconv
