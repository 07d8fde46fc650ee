// Producers of folded input, see fold.h: a thread gathers all staged channels of a folded pixel.
#pragma once

#include "fastconv/ptx/async_copy.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/fold.h"
#include "fastconv/tile/halo_walk.cuh"
#include "fastconv/tile/ring.cuh"

namespace fastconv {

// Part of a folded input: `rows` x `cols` folded pixels of one image, kChannels of their channels from c0 on.
template <int kChannels>
struct FoldedBox {
  const Fold& fold;
  const uint16_t* image;
  int32_t h_stride, w_stride;  // elements; an image has less than 2^31
  int32_t h, w;                // the first folded pixel's first pixel
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

  // Pairs of channels go straight to shared memory, and arrive there later.
  __device__ __forceinline__ void copy_pairs(int row, int col, uint32_t to, int pixel) const {
    uint32_t chunk[kChannels / 8];
#pragma unroll
    for (int i = 0; i < kChannels / 8; ++i) chunk[i] = to + swizzled(pixel * (kChannels * 2) + i * 16);
    for_each<2>(row, col, [&](int i, const uint16_t* from) {
      ptx::async_copy4(chunk[i / 8] + i % 8 * 2, from != nullptr ? from : image, from != nullptr);
    });
  }
  __device__ __forceinline__ void copy_elements(int row, int col, uint32_t to, int pixel) const {
    uint32_t value[kChannels];
    for_each<1>(row, col, [&](int i, const uint16_t* from) {
      value[i] = 0;
      if (from != nullptr) value[i] = __ldg(from);
    });
#pragma unroll
    for (int i = 0; i < kChannels; i += 8) {
      auto pair = [&](int j) { return __byte_perm(value[i + j], value[i + j + 1], 0x5410); };
      ptx::store_shared16(to + swizzled(pixel * (kChannels * 2) + i * 2), {pair(0), pair(2), pair(4), pair(6)});
    }
  }
};

// All halos of the block's tiles, by kWarps warps. A stage is given away when the next one's copies are under way.
template <int kChannels, int kWarps>
__device__ __forceinline__ void stage_folded_halos(const HaloParams& params, const Fold& fold, Ring& ring, int warp,
                                                   int lane) {
  uint32_t landing = 0;  // full barrier of the stage before
  auto give_away = [&] {
    ptx::async_proxy_fence();
    __syncwarp();
    if (lane == 0 && landing != 0) ptx::mbarrier_arrive(landing);
  };
  const int pixels = params.halo_rows * params.halo_pitch;
  for (TileWalk walk(params, blockIdx.x, gridDim.x); walk.more(); walk.next()) {
    const Tile tile(params, walk.index);
    for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
      const FoldedBox<kChannels> box{fold,
                                     static_cast<const uint16_t*>(params.in) + tile.n * params.in_n,
                                     static_cast<int32_t>(params.in_h),
                                     static_cast<int32_t>(params.in_w),
                                     fold.h.pixel(tile.p + group.dh, 0),
                                     fold.w.pixel(tile.q + group.dw, 0),
                                     c_block * kChannels};
      ring.wait_empty();
      for (int pixel = warp * 32 + lane; pixel < pixels; pixel += kWarps * 32) {
        int row, col;
        params.stage_row_units.divmod(pixel, row, col);
        if (fold.pairs) {
          box.copy_pairs(row, col, ring.stage(), pixel);
        } else {
          box.copy_elements(row, col, ring.stage(), pixel);
        }
      }
      ptx::async_copy_commit();
      ptx::async_copy_wait<1>();
      give_away();
      landing = ring.full();
      ring.next();
    });
  }
  ptx::async_copy_wait<0>();
  give_away();
}

}  // namespace fastconv
