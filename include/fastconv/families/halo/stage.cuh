// Producers: the input halo of a tile into shared memory as one swizzled row of kChannels values a pixel, and
// the filter taps. With stage_nchw.cuh the only code that knows the input's layout.
#pragma once

#include <cuda.h>

#include "fastconv/families/halo/walk.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/ring.cuh"

namespace fastconv {

// `warp` of params.copy_warps; the first expects what all of them bring, perhaps when some of it is there. Each has a
// copy of every halo, or it could miss a round of the ring: nothing would wait for it. TMA fills in zeros
// for padding, for channels beyond C and for images beyond N. kPieces: of a halo of one row too, see HaloParams::raw.
template <int kChannels, int kPixelBytes, bool kPieces>
__device__ __forceinline__ void stage_halo_tma(const HaloParams& params, const Tile& tile, const CUtensorMap* map,
                                               Ring& ring, int warp, int lane) {
  const int first = warp + lane * params.copy_warps;
  for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
    const HaloBlock block(params, tile, c_block);
    HaloRow row = halo_row(params, tile, group, first * params.load_rows);  // known before the stage is free
    ring.wait_empty();
    const int32_t load_bytes = (kPieces ? params.raw.box_w : params.load_rows * params.halo_pitch) * kPixelBytes;
    if (warp == 0 && lane == 0) ptx::mbarrier_arrive_expect(ring.full(), params.loads * load_bytes);
    __syncwarp();
    for (int i = first; i < params.loads; i += 32 * params.copy_warps) {
      if (i != first) row = halo_row(params, tile, group, i * params.load_rows);
      ptx::tma_load(ring.stage() + i * load_bytes, map, block.c_block * kChannels, block.in_group,
                    halo_col(params, tile, group) + (kPieces ? i * params.raw.advance : 0), row.h, row.n, ring.full());
    }
    ring.next();
  });
}

// Any layout: a staging thread gathers 8 channels of a pixel in registers and writes them as one 16-byte chunk. Lanes
// side by side take neighbouring pixels.
template <int kChannels>
struct HaloUnits {
  static constexpr int kChunks = kChannels / 8;
  static constexpr int kUnroll = 2;  // units whose loads are in flight together

  struct Unit {
    int32_t pixel, chunk;  // of the halo; chunk < 0: nothing to do
    uint16_t value[8];
  };

  static __device__ __forceinline__ void load(const HaloParams& params, const Tile& tile, const TapGroup& group,
                                              int c_block, int index, int lane, Unit& unit) {
    const int chunk = index % kChunks, position = index / kChunks * 32 + lane;
    int row, col;
    params.by_halo_pitch.divmod(position, row, col);
    const bool live = row < params.halo_rows;
    const HaloRow at = halo_row(params, tile, group, row);
    const int w = halo_col(params, tile, group) + col * params.in_step_w;
    unit.pixel = position;
    unit.chunk = live ? chunk : -1;
    const int c0 = c_block * kChannels + chunk * 8;
    const bool inside = live && exists(params, at) && w >= 0 && w < params.width;
    const uint16_t* source = static_cast<const uint16_t*>(params.in) + at.n * params.in_n + at.h * params.in_h +
                             w * params.in_w + (int64_t{tile.group} * params.c + c0) * params.in_c;
#pragma unroll
    for (int c = 0; c < 8; ++c, source += params.in_c) {
      unit.value[c] = inside && c0 + c < params.c ? *source : uint16_t{0};
    }
  }

  static __device__ __forceinline__ void store(uint32_t stage, const Unit& unit) {
    if (unit.chunk < 0) return;
    const uint32_t offset = unit.pixel * (kChannels * 2) + unit.chunk * 16;
    auto pair = [&](int i) { return unit.value[i] | uint32_t{unit.value[i + 1]} << 16; };
    ptx::store_shared16(stage + (offset ^ (((offset >> 7) & (kChunks - 1)) << 4)),
                        {pair(0), pair(2), pair(4), pair(6)});
  }

  // `warps` warps together.
  static __device__ __forceinline__ void stage(const HaloParams& params, const Tile& tile, const TapGroup& group,
                                               int c_block, const Ring& ring, int warp, int warps, int lane) {
    const int count = (params.halo_rows * params.halo_pitch + 31) / 32 * kChunks;
    bool waited = false;
    for (int first = warp; first < count; first += warps * kUnroll) {
      Unit unit[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        unit[u].chunk = -1;
        if (first + u * warps < count) load(params, tile, group, c_block, first + u * warps, lane, unit[u]);
      }
      // The first loads are under way before the stage is free.
      if (!waited) ring.wait_empty();
      waited = true;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) store(ring.stage(), unit[u]);
    }
    if (!waited) ring.wait_empty();
  }
};

template <int kChannels, int kWarps>
__device__ __forceinline__ void stage_halo_units(const HaloParams& params, const Tile& tile, Ring& ring, int warp,
                                                 int lane) {
  for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
    HaloUnits<kChannels>::stage(params, tile, group, c_block, ring, warp, kWarps, lane);
    ptx::async_proxy_fence();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ring.full());
    ring.next();
  });
}

// Of some threads, kMost at most, that fill a ring's stages in turns: one takes some 200 clocks for each. NOTES: a
// barrier's parity tells two rounds apart, and a thread has seen stages free up to kMost before the one that it waits
// for. So a ring has at least as many, and stages become free in their order; where warpgroups take turns, up to the
// few clocks between the products of one's last step and the other's first.
template <int kMost>
struct FilterTurn {
  int threads;
  int left;  // stages until it is this thread's

  template <typename F>
  __device__ __forceinline__ void stage(Ring& ring, F fill) {
    if (kMost == 1 || left == 0) {
      ring.wait_empty();
      fill();
    }
    left = (left == 0 ? threads : left) - 1;
    ring.next();
  }
};

// One thread. Packed filter tiles lie in memory in the order in which they are used, already swizzled.
template <int kStepBytes, int kMost>
__device__ __forceinline__ void stage_filter(const HaloParams& params, int64_t first_step, int steps, Ring& ring,
                                             FilterTurn<kMost>& turn) {
  const auto* source = static_cast<const uint8_t*>(params.packed_filter) + first_step * kStepBytes;
  for (int i = 0; i < steps; ++i, source += kStepBytes) {
    turn.stage(ring, [&] {
      ptx::mbarrier_arrive_expect(ring.full(), kStepBytes);
      ptx::bulk_load(ring.stage(), source, kStepBytes, ring.full());
    });
  }
}

// The same tiles straight from a filter whose channels are contiguous (KRSC, or split); for dgrad those of KRSC are the
// tile's filters. A stage is kColumns taps in kParts parts. One thread.
template <int kBlockK, int kChannels, int kPixelBytes, FilterTile kFilter, int kColumns, int kParts, int kMost>
__device__ __forceinline__ void stage_filter_direct(const HaloParams& params, const Tile& tile, const CUtensorMap* map,
                                                    Ring& ring, FilterTurn<kMost>& turn) {
  for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
    if (!fills_stages(params, c_block)) return;
    const HaloBlock block(params, tile, c_block);
    for (int i = 0; i < group.rows; ++i) {
      for (int j = 0; j < group.cols; j += kColumns) {
        const int r = group.r0 + i * group.dr, s = group.s0 + j * group.ds;
        turn.stage(ring, [&] {
          ptx::mbarrier_arrive_expect(ring.full(), kParts * kColumns * kBlockK * kPixelBytes);
          if constexpr (kFilter == FilterTile::kNMajor) {
#pragma unroll
            for (int k = 0; k < kBlockK; k += 64) {
              ptx::tma_load(ring.stage() + k * kPixelBytes, map, tile.k_tile * kBlockK + k, s, r,
                            block.c_block * kChannels, block.filter_group, ring.full());
            }
          } else {
#pragma unroll
            for (int i = 0; i < kParts * kColumns; ++i) {
              const int part = i / kColumns, column = i % kColumns;
              ptx::tma_load(ring.stage() + i * kBlockK * kPixelBytes, map, block.c_block * kChannels,
                            s + column * group.ds, r, tile.k_tile * (kBlockK / columns_at_once(kFilter)),
                            block.filter_group + part * params.groups, ring.full());
            }
          }
        });
      }
    }
  });
}

}  // namespace fastconv
