// Producers of NCHW input. The copy engine brings it as it lies, [channel][pixel], into a ring of raw stages, and warps
// turn that into swizzled pixel rows of kChannels 16-bit values; without taps to shift it, it is multiplied as it lies.
#pragma once

#include <cuda.h>

#include "fastconv/tile/halo_walk.cuh"
#include "fastconv/tile/transpose.cuh"

namespace fastconv {

// HaloStaging::kPlanes: blocks of [kChannels][64 pixels]. One warp.
template <int kChannels>
__device__ __forceinline__ void stage_planes(const HaloParams& params, const Tile& tile, const CUtensorMap* map,
                                             Ring& ring, int lane) {
  for_each_halo(params, tile, [&](const TapGroup&, int c_block) {
    ring.wait_empty();
    constexpr int32_t kBytes = kChannels * 128;
    if (lane == 0) ptx::mbarrier_arrive_expect(ring.full(), params.loads * kBytes);
    __syncwarp();
    for (int i = lane; i < params.loads; i += 32) {
      ptx::tma_load(ring.stage() + i * kBytes, map, tile.q + i * 64, c_block * kChannels, tile.group, tile.p, tile.n,
                    ring.full());
    }
    ring.next();
  });
}

// HaloStaging::kTransposed. One thread starts the copies.
template <int kChannels>
__device__ __forceinline__ void load_halo_raw(const HaloParams& params, const Tile& tile, const RawMaps& maps,
                                              Ring& raw) {
  for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
    for_each_raw_row(params, tile, group, [&](int, const HaloRow& row, int, int start) {
      if (!exists(params, row)) return;
      raw.wait_empty();
      load_raw_row(params.raw, maps, raw, start, row.h, c_block * kChannels, tile.group, row.n);
      raw.next();
    });
  });
}
// kWarps warps, each the rows that arrive in its own stages of the ring: a barrier's parity tells only two rounds
// apart, so whoever waits for a stage must have seen its round before.
template <int kChannels, int kWarps>
__device__ __forceinline__ void transpose_halo(const HaloParams& params, const Tile& tile, Ring& raw, Ring& halo,
                                               int warp, const TransposeRow<kChannels>& transpose) {
  for_each_halo(params, tile, [&](const TapGroup& group, int) {
    halo.wait_empty();
    for_each_raw_row(params, tile, group, [&](int i, const HaloRow& row, int w, int start) {
      const bool there = exists(params, row), mine = (there ? raw.index : i) % kWarps == warp;
      if (mine && there) {
        raw.wait_full();
        transpose.run(raw.stage(), start, w, halo.stage(), i * params.halo_pitch, params.halo_pitch);
        __syncwarp();
        if (transpose.lane == 0) ptx::mbarrier_arrive(raw.empty());
      } else if (mine) {
        transpose.clear(halo.stage(), i * params.halo_pitch, params.halo_pitch);
      }
      if (there) raw.next();
    });
    ptx::async_proxy_fence();
    __syncwarp();
    if (transpose.lane == 0) ptx::mbarrier_arrive(halo.full());
    halo.next();
  });
}

// HaloStaging::kGathered: no tensor map takes the rows and planes of such images. One thread starts the copies.
template <int kChannels>
__device__ __forceinline__ void load_slabs(const HaloParams& params, const Tile& tile, Ring& raw) {
  for_each_halo(params, tile, [&](const TapGroup&, int c_block) {
    for_each_slab(params, tile, c_block, kChannels, [&](int image, int, int, int c, bool exists) {
      if (!exists) return;
      raw.wait_empty();
      const int channel = c_block * kChannels + c;
      const uint32_t bytes = min(params.raw.slab, params.c - channel) * static_cast<int32_t>(params.in_c) * 2;
      ptx::mbarrier_arrive_expect(raw.full(), bytes);
      ptx::bulk_load(raw.stage(),
                     static_cast<const uint16_t*>(params.in) + image * params.in_n +
                         (int64_t{tile.group} * params.c + channel) * params.in_c,
                     bytes, raw.full());
      raw.next();
    });
  });
}
// kWarps warps, a thread a pixel.
template <int kChannels, int kWarps>
__device__ __forceinline__ void gather_halo(const HaloParams& params, const Tile& tile, Ring& raw, Ring& halo, int warp,
                                            int lane) {
  constexpr int kSwizzle = kChannels / 8 - 1;
  const int plane = static_cast<int>(params.in_c) * 2, in_row = static_cast<int>(params.in_h) * 2;
  for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
    halo.wait_empty();
    for_each_slab(params, tile, c_block, kChannels, [&](int, int row, int next, int c, bool exists) {
      if (exists) raw.wait_full();
      const int chunks = params.raw.slab / 8, end = next * params.halo_pitch;
      for (int pixel = row * params.halo_pitch + warp * 32 + lane; pixel < end; pixel += kWarps * 32) {
        int i, col;
        params.stage_row_units.divmod(pixel, i, col);
        const int h = halo_row(params, tile, group, i).h, w = halo_col(params, tile, group) + col * params.in_step_w;
        const bool inside = exists && h >= 0 && h < params.height && w >= 0 && w < params.width;
        uint32_t from = raw.stage() + h * in_row + w * 2;
        for (int chunk = 0; chunk < chunks; ++chunk, from += 8 * plane) {
          uint32_t v[8] = {};
          if (inside && c_block * kChannels + c + chunk * 8 < params.c) {
#pragma unroll
            for (int j = 0; j < 8; ++j) v[j] = ptx::load_shared2(from + j * plane);
          }
          auto pair = [&](int j) { return v[j] | v[j + 1] << 16; };
          const uint32_t offset = pixel * (kChannels * 2) + c * 2 + chunk * 16;
          ptx::store_shared16(halo.stage() + (offset ^ (((offset >> 7) & kSwizzle) << 4)),
                              {pair(0), pair(2), pair(4), pair(6)});
        }
      }
      if (!exists) return;
      ptx::mbarrier_arrive(raw.empty());
      raw.next();
    });
    ptx::async_proxy_fence();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(halo.full());
    halo.next();
  });
}

}  // namespace fastconv
