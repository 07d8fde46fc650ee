// Producers of folded input, see fold.h: threads gather 8 channels of a folded pixel and write them as one chunk of 16
// bytes.
#pragma once

#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/fold.h"
#include "fastconv/tile/halo_walk.cuh"
#include "fastconv/tile/ring.cuh"

namespace fastconv {

// kVector: channels a load.
template <int kVector>
struct FoldedChunk {
  static constexpr int kLoads = 8 / kVector;
  uint32_t value[kLoads];

  // Channels from c0 on of the folded pixel that begins with pixel (h, w), which lies at `source`.
  __device__ __forceinline__ void load(const Fold& fold, const uint16_t* source, int h, int w, int c0) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int c = c0 + i * kVector;
      const FoldedChannel channel = fold.channel[c];
      const bool exists = c < fold.channels && fold.h.has_pixel(h + channel.h) && fold.w.has_pixel(w + channel.w);
      const uint16_t* from = source + channel.offset;
      value[i] = 0;
      if (exists) value[i] = kVector == 2 ? __ldg(reinterpret_cast<const uint32_t*>(from)) : uint32_t{__ldg(from)};
    }
  }

  // As channels of a pixel row of kChannels, `offset` bytes from where a swizzle pattern begins.
  template <int kChannels>
  __device__ __forceinline__ void store(uint32_t to, uint32_t offset) const {
    auto pair = [&](int i) { return kVector == 2 ? value[i] : __byte_perm(value[2 * i], value[2 * i + 1], 0x5410); };
    ptx::store_shared16(to + (offset ^ (((offset >> 7) & (kChannels / 8 - 1)) << 4)),
                        {pair(0), pair(1), pair(2), pair(3)});
  }
};

// kWarps warps, lanes side by side neighbouring pixels.
template <int kChannels, int kVector, int kWarps>
__device__ __forceinline__ void stage_folded_halo(const HaloParams& params, const Fold& fold, const Tile& tile,
                                                  const TapGroup& group, int c_block, const Ring& ring, int warp,
                                                  int lane) {
  constexpr int kChunks = kChannels / 8, kUnroll = 2 * kVector;
  const int pixels = params.halo_rows * params.halo_pitch, count = (pixels + 31) / 32 * kChunks;
  const int first_col = halo_col(params, tile, group);
  bool waited = false;
  for (int first = warp; first < count; first += kWarps * kUnroll) {
    FoldedChunk<kVector> chunk[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int index = first + u * kWarps, pixel = index / kChunks * 32 + lane;
      int row, col;
      params.stage_row_units.divmod(pixel, row, col);
      const HaloRow at = halo_row(params, tile, group, row);
      const int h = fold.h.pixel(at.h, 0), w = fold.w.pixel(first_col + col, 0);
      const auto* source =
          static_cast<const uint16_t*>(params.in) + at.n * params.in_n + h * params.in_h + w * params.in_w;
      const bool live = pixel < pixels && at.n < params.n;
      chunk[u].load(fold, source, live ? h : -kMaxFoldedChannels, w, c_block * kChannels + index % kChunks * 8);
    }
    // The first loads are under way before the stage is free.
    if (!waited) ring.wait_empty();
    waited = true;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int index = first + u * kWarps, pixel = index / kChunks * 32 + lane;
      if (pixel < pixels) {
        chunk[u].template store<kChannels>(ring.stage(), pixel * (kChannels * 2) + index % kChunks * 16);
      }
    }
  }
  if (!waited) ring.wait_empty();
}

template <int kChannels, int kWarps>
__device__ __forceinline__ void stage_folded_halos(const HaloParams& params, const Fold& fold, const Tile& tile,
                                                   Ring& ring, int warp, int lane) {
  for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
    if (fold.pairs) {
      stage_folded_halo<kChannels, 2, kWarps>(params, fold, tile, group, c_block, ring, warp, lane);
    } else {
      stage_folded_halo<kChannels, 1, kWarps>(params, fold, tile, group, c_block, ring, warp, lane);
    }
    ptx::async_proxy_fence();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ring.full());
    ring.next();
  });
}

}  // namespace fastconv
