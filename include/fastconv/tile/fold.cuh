// Folded input, see fold.h, as rows of channels: in shared memory or in the workspace. A thread gathers the channels of
// a folded pixel.
#pragma once

#include "fastconv/ptx/async_copy.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/fold.h"

namespace fastconv {

// Folded pixels of one image, kChannels of their channels from c0 on.
template <int kChannels>
struct FoldedBox {
  const Fold& fold;
  const uint16_t* image;
  int32_t h_stride, w_stride;  // elements; an image has less than 2^31
  int32_t h, w;                // pixel that the first folded pixel begins with
  int32_t c0;

  static __device__ __forceinline__ uint32_t swizzled(uint32_t offset) {
    return offset ^ (((offset >> 7) & (kChannels / 8 - 1)) << 4);
  }

  // Calls f(i, element or null) for every kVector-th channel i of folded pixel (row, col).
  template <int kVector, typename F>
  __device__ __forceinline__ void for_each(int row, int col, F f) const {
    const int y = h + row * fold.h.stride, x = w + col * fold.w.stride;
    const uint16_t* source = image + (y * h_stride + x * w_stride);
    const bool whole = y >= 0 && y <= fold.h.size - fold.h.stride && x >= 0 && x <= fold.w.size - fold.w.stride;
    if (__all_sync(__activemask(), whole)) {
#pragma unroll
      for (int i = 0; i < kChannels; i += kVector) {
        f(i, c0 + i < fold.channels ? source + fold.channel[c0 + i].offset : nullptr);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kChannels; i += kVector) {
        const FoldedChannel channel = fold.channel[c0 + i];
        const bool exists =
            c0 + i < fold.channels && fold.h.has_pixel(y + channel.h) && fold.w.has_pixel(x + channel.w);
        f(i, exists ? source + channel.offset : nullptr);
      }
    }
  }

  // Channels 8i to 8i + 7 at f(i, their 16 bytes).
  template <int kVector, typename F>
  __device__ __forceinline__ void load(int row, int col, F f) const {
    uint32_t value[kChannels / kVector];
    for_each<kVector>(row, col, [&](int i, const uint16_t* from) {
      value[i / kVector] = 0;
      if (from == nullptr) return;
      value[i / kVector] = kVector == 2 ? *reinterpret_cast<const uint32_t*>(from) : uint32_t{*from};
    });
#pragma unroll
    for (int i = 0; i < kChannels / 8; ++i) {
      auto pair = [&](int j) {
        if constexpr (kVector == 2) return value[4 * i + j];
        return __byte_perm(value[(8 * i + 2 * j) / kVector], value[(8 * i + 2 * j + 1) / kVector], 0x5410);
      };
      f(i, uint4{pair(0), pair(1), pair(2), pair(3)});
    }
  }

  // Into a swizzled row of shared memory. Pairs of channels go there straight, and arrive later.
  __device__ __forceinline__ void copy_pairs(int row, int col, uint32_t to, int pixel) const {
    uint32_t chunk[kChannels / 8];
#pragma unroll
    for (int i = 0; i < kChannels / 8; ++i) chunk[i] = to + swizzled(pixel * (kChannels * 2) + i * 16);
    for_each<2>(row, col, [&](int i, const uint16_t* from) {
      ptx::async_copy<4>(chunk[i / 8] + i % 8 * 2, from != nullptr ? from : image, from != nullptr);
    });
  }
  __device__ __forceinline__ void copy_elements(int row, int col, uint32_t to, int pixel) const {
    load<1>(row, col,
            [&](int i, uint4 value) { ptx::store_shared16(to + swizzled(pixel * (kChannels * 2) + i * 16), value); });
  }
};

// This thread's share, of `threads`.
__device__ __forceinline__ void write_folded_rows(const FoldedRows& rows, int thread, int threads) {
  for (int i = thread; i < rows.pixels; i += threads) {
    int n, h, w;
    rows.width.divmod(i, h, w);
    rows.height.divmod(h, n, h);
    const auto* image = static_cast<const uint16_t*>(rows.in) + n * rows.in_n;
    for (int c0 = 0; c0 < rows.row; c0 += 8) {
      const FoldedBox<8> box{rows.fold, image, rows.in_h, rows.in_w, rows.fold.h.begin, rows.fold.w.begin, c0};
      auto* to = reinterpret_cast<uint4*>(static_cast<uint16_t*>(rows.rows) + int64_t{i} * rows.row + c0);
      auto write = [&](int, uint4 value) { *to = value; };
      if (rows.fold.pairs) {
        box.load<2>(h, w, write);
      } else {
        box.load<1>(h, w, write);
      }
    }
  }
}

}  // namespace fastconv
