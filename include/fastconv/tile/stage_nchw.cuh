// Producers of NCHW input. The copy engine brings it as it lies, [channel][pixel], into a ring of raw stages, and warps
// turn that into swizzled pixel rows of kChannels 16-bit values; without taps to shift it, it is multiplied as it lies.
#pragma once

#include <cuda.h>

#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/halo_walk.cuh"
#include "fastconv/tile/ring.cuh"

namespace fastconv {

struct RawMaps {
  CUtensorMap map[kMaxRawMaps];  // column, row, channel, group, image
};

// One thread: the next stage of the ring, from column `start` of row h on. `channel` is a multiple of kChannels.
template <int kChannels>
__device__ __forceinline__ void load_raw_row(const RawRows& raw, const RawMaps& maps, const Ring& ring, int start,
                                             int h, int channel, int group, int n) {
  const int phase = h & ((1 << raw.row_phases_log2) - 1);
  ptx::mbarrier_arrive_expect(ring.full(), raw.stage_bytes);
  ptx::tma_load(ring.stage(), &maps.map[phase], start + raw.shift[phase], h >> raw.row_phases_log2, channel, group, n,
                ring.full());
}

// One warp: a stage of the ring into the pixel rows of one row of the halo.
template <int kChannels>
struct TransposeRow {
  static constexpr int kRowBytes = kChannels * 2, kChunks = kChannels / 8;  // of a pixel; chunks of 16 bytes
  static constexpr int kUnitChunks = kChunks < 4 ? kChunks : 4, kUnitPixels = 32 / kUnitChunks;  // of four matrices

  const RawRows& raw;
  uint32_t waste;  // 16 bytes for columns that the halo has not
  int lane;

  // A row of zeros.
  __device__ __forceinline__ void clear(uint32_t halo, int pixel, int cols) const {
    for (int i = pixel * kChunks + lane; i < (pixel + cols) * kChunks; i += 32) {
      ptx::store_shared16(halo + i * 16, {0, 0, 0, 0});
    }
  }

  // The stage at `source` begins at column `start` of the image, the halo at column `w`. The halo is at `halo`, a
  // multiple of 1024, and has `cols` pixels in this row, from pixel number `pixel` on.
  __device__ __forceinline__ void run(uint32_t source, int start, int w, uint32_t halo, int pixel, int cols) const {
    if (raw.step_log2 == 0 && start >= 0) {
      turn<false>(source, start, w, halo, pixel, in_register(cols));
    } else {
      turn<true>(source, start, w, halo, pixel, cols);
    }
  }

 private:
  // NOTES: a value that the compiler can see to be a kernel parameter is read again from constant memory in every round
  // of the loop, and the round waits for it.
  static __device__ __forceinline__ int in_register(int value) {
    asm volatile("" : "+r"(value));
    return value;
  }

  // kGeneral: with a step between columns, or with columns before the image's first.
  template <bool kGeneral>
  __device__ __forceinline__ void turn(uint32_t source, int start, int w, uint32_t halo, int pixel, int cols) const {
    constexpr int kUnroll = kGeneral || kUnitPixels > 8 ? 2 : 4;  // units whose loads are in flight together
    const int box_w = in_register(raw.box_w), step_log2 = kGeneral ? in_register(raw.step_log2) : 0;
    // A lane addresses one channel of its matrix when it loads, one pixel when it stores.
    const int matrix = lane / 8, mine = matrix / kUnitChunks * 8 + lane % 8, first = start - w + mine;
#pragma unroll
    for (int part = 0; part < kChunks; part += kUnitChunks) {
      const int chunk = part + matrix % kUnitChunks;
      const uint32_t from = source + (chunk * 8 + lane % 8) * box_w * 2 + matrix / kUnitChunks * 16;
      auto swizzled = [&](int column) {
        const uint32_t offset = (pixel + column) * kRowBytes + chunk * 16;
        return halo + (offset ^ (((offset >> 7) & (kChunks - 1)) << 4));
      };
      const uint32_t to = swizzled(first);  // a unit further is whole swizzle patterns further
      auto store = [&](int unit, uint32_t (&v)[4]) {
        int column = first + unit;
        uint32_t address = to + unit * kRowBytes;
        bool wanted = kUnitPixels == 8 || unit < box_w - mine;
        if constexpr (kGeneral) {
          // A map whose columns begin before the image's has the row before there, not zeros.
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (start + unit + i / kUnitChunks * 8 + lane / 4 < 0) v[i] = 0;
          }
          wanted = wanted && (column & ((1 << step_log2) - 1)) == 0;
          column >>= step_log2;
          address = swizzled(column);
        }
        wanted = wanted && static_cast<uint32_t>(column) < static_cast<uint32_t>(cols);
        ptx::stmatrix4<false>(wanted ? address : waste, v);
      };
      int unit = 0;
      for (; unit <= box_w - kUnroll * kUnitPixels; unit += kUnroll * kUnitPixels) {
        uint32_t v[kUnroll][4];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) ptx::ldmatrix4<true>(from + (unit + u * kUnitPixels) * 2, v[u]);
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) store(unit + u * kUnitPixels, v[u]);
      }
#pragma unroll 1
      for (; unit < box_w; unit += kUnitPixels) {
        uint32_t v[4];
        ptx::ldmatrix4<true>(from + unit * 2, v);
        store(unit, v);
      }
    }
  }
};

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
      load_raw_row<kChannels>(params.raw, maps, raw, start, row.h, c_block * kChannels, tile.group, row.n);
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
