// Producers: the input halo of a tile into shared memory as one swizzled row of kChannels 16-bit values a pixel, and
// the packed filter taps. The only code that knows the input's layout.
#pragma once

#include <cuda.h>

#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/ring.cuh"
#include "fastconv/tile/scheduler.cuh"

namespace fastconv {

// Calls f(group, channel block) for every halo of a tile, in the order both sides agree on.
template <typename F>
__device__ __forceinline__ void for_each_halo(const HaloParams& params, const Tile& tile, F f) {
  const OutputPhase& phase = params.phase[tile.phase];
  for (int c_block = 0; c_block < params.c_blocks; ++c_block) {
    for (int g = phase.group_begin; g < phase.group_end; ++g) f(params.group[g], c_block);
  }
}

// One warp. The copy engine fills in zeros for padding, for channels beyond C and for images beyond N.
template <int kChannels>
__device__ __forceinline__ void stage_halo_tma(const HaloParams& params, const Tile& tile, const CUtensorMap* map,
                                               Ring& ring, int lane) {
  for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
    ring.wait_empty();
    const int32_t load_bytes = params.load_rows * params.halo_pitch * kChannels * 2;
    if (lane == 0) ptx::mbarrier_arrive_expect(ring.full(), params.loads * load_bytes);
    __syncwarp();
    for (int i = lane; i < params.loads; i += 32) {
      const HaloRow row = halo_row(params, tile, group, i * params.load_rows);
      ptx::tma_load(ring.stage() + i * load_bytes, map, c_block * kChannels, tile.group, halo_col(params, tile, group),
                    row.h, row.n, ring.full());
    }
    ring.next();
  });
}

// Any layout: a staging thread gathers 8 channels of kVector neighbouring pixels in registers and writes each pixel's
// as one 16-byte chunk.
template <int kChannels, int kVector>
struct HaloUnits {
  static constexpr int kChunks = kChannels / 8;
  static constexpr int kWords = kVector == 8 ? 4 : 1;   // 32-bit registers a load
  static constexpr int kUnroll = kVector == 1 ? 2 : 1;  // units whose loads are in flight together
  // NOTES: lanes side by side take the chunks of one pixel where a thread stores 8 pixels, else neighbouring pixels:
  // either way 8 lanes store to different banks, and loads are whole sectors.
  static constexpr int kLaneChunks = kVector == 8 ? kChunks : 1;
  static constexpr int kWarpUnits = 32 / kLaneChunks;

  struct Unit {
    int32_t pixel, chunk;  // halo pixel of the first value; chunk < 0: nothing to do
    int32_t column;        // of that pixel in the halo row; may be negative
    uint32_t value[8][kWords];
  };

  static __device__ __forceinline__ void load(const HaloParams& params, const Tile& tile, const TapGroup& group,
                                              int c_block, int index, int lane, Unit& unit) {
    const int chunk = kLaneChunks == 1 ? index % kChunks : lane % kChunks;
    const int position = (kLaneChunks == 1 ? index / kChunks : index) * kWarpUnits + lane / kLaneChunks;
    int row, col;
    params.stage_row_units.divmod(position, row, col);
    const bool live = row < params.halo_rows;
    const HaloRow at = halo_row(params, tile, group, row);
    const int w0 = halo_col(params, tile, group);
    const int w = kVector == 1 ? w0 + col * params.in_step_w : (w0 & -kVector) + col * kVector;
    unit.column = kVector == 1 ? col : w - w0;
    unit.pixel = row * params.halo_pitch + unit.column;
    unit.chunk = live ? chunk : -1;
    const int c0 = c_block * kChannels + chunk * 8;
    const bool inside = live && at.n < params.n && at.h >= 0 && at.h < params.height && w >= 0 && w < params.width &&
                        unit.column < params.halo_pitch;
    const uint16_t* source = static_cast<const uint16_t*>(params.in) + at.n * params.in_n + at.h * params.in_h +
                             w * params.in_w + (int64_t{tile.group} * params.c + c0) * params.in_c;
#pragma unroll
    for (int c = 0; c < 8; ++c, source += params.in_c) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) unit.value[c][i] = 0;
      if (inside && c0 + c < params.c) {
        if constexpr (kVector == 8) {
          const uint4 v = __ldg(reinterpret_cast<const uint4*>(source));
          unit.value[c][0] = v.x, unit.value[c][1] = v.y, unit.value[c][2] = v.z, unit.value[c][3] = v.w;
        } else if constexpr (kVector == 2) {
          unit.value[c][0] = __ldg(reinterpret_cast<const uint32_t*>(source));
        } else {
          unit.value[c][0] = __ldg(source);
        }
      }
    }
  }

  static __device__ __forceinline__ void write(uint32_t stage, int pixel, int chunk, const uint32_t (&value)[8][kWords],
                                               int word, uint32_t select) {
    const uint32_t offset = pixel * (kChannels * 2) + chunk * 16;
    const uint32_t address = stage + (offset ^ (((offset >> 7) & (kChunks - 1)) << 4));
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(__byte_perm(value[0][word], value[1][word], select)),
                 "r"(__byte_perm(value[2][word], value[3][word], select)),
                 "r"(__byte_perm(value[4][word], value[5][word], select)),
                 "r"(__byte_perm(value[6][word], value[7][word], select))
                 : "memory");
  }

  static __device__ __forceinline__ void store(const HaloParams& params, uint32_t stage, int lane, const Unit& unit) {
    if (unit.chunk < 0) return;
    if constexpr (kVector == 8) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int column = unit.column + i;
        if (column >= 0 && column < params.halo_pitch) {
          write(stage, unit.pixel + i, unit.chunk, unit.value, i / 2, i % 2 ? 0x7632 : 0x5410);
        }
      }
    } else if constexpr (kVector == 2) {
      // Every other group of four lanes starts with its second pixel: eight lanes then meet eight different banks.
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = half ^ ((lane >> 2) & 1), column = unit.column + i;
        if (column >= 0 && column < params.halo_pitch) {
          write(stage, unit.pixel + i, unit.chunk, unit.value, 0, i ? 0x7632 : 0x5410);
        }
      }
    } else {
      write(stage, unit.pixel, unit.chunk, unit.value, 0, 0x5410);
    }
  }

  static __device__ __forceinline__ void stage(const HaloParams& params, const Tile& tile, const TapGroup& group,
                                               int c_block, const Ring& ring, int warp, int warps, int lane) {
    const int units = params.halo_rows * static_cast<int>(params.stage_row_units.divisor);
    const int count = (units + kWarpUnits - 1) / kWarpUnits * (kLaneChunks == 1 ? kChunks : 1);
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
      for (int u = 0; u < kUnroll; ++u) store(params, ring.stage(), lane, unit[u]);
    }
    if (!waited) ring.wait_empty();
  }
};

// `warps` warps together; the ring's full barrier expects every one of their threads.
template <int kChannels, HaloStaging kStaging>
__device__ __forceinline__ void stage_halo_warps(const HaloParams& params, const Tile& tile, Ring& ring, int warp,
                                                 int warps, int lane) {
  for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
    HaloUnits<kChannels, staging_pixels(kStaging)>::stage(params, tile, group, c_block, ring, warp, warps, lane);
    ptx::async_proxy_fence();
    ptx::mbarrier_arrive(ring.full());
    ring.next();
  });
}

// One thread. Packed filter tiles lie in memory in the order in which they are used, already swizzled.
template <int kStepBytes>
__device__ __forceinline__ void stage_filter(const HaloParams& params, int64_t first_step, int steps, Ring& ring) {
  const auto* source = static_cast<const uint8_t*>(params.packed_filter) + first_step * kStepBytes;
  for (int i = 0; i < steps; ++i, source += kStepBytes) {
    ring.wait_empty();
    ptx::mbarrier_arrive_expect(ring.full(), kStepBytes);
    ptx::bulk_load(ring.stage(), source, kStepBytes, ring.full());
    ring.next();
  }
}

// The same tiles straight from a filter whose channels are contiguous (KRSC); for dgrad those are the tile's filters.
// One thread.
template <int kBlockK, int kChannels, bool kNMajor>
__device__ __forceinline__ void stage_filter_direct(const HaloParams& params, const Tile& tile, const CUtensorMap* map,
                                                    Ring& ring) {
  for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
    for (int i = 0; i < group.rows; ++i) {
      for (int j = 0; j < group.cols; ++j) {
        const int r = group.r0 + i * group.dr, s = group.s0 + j * group.ds;
        ring.wait_empty();
        ptx::mbarrier_arrive_expect(ring.full(), kBlockK * kChannels * 2);
        if constexpr (kNMajor) {
#pragma unroll
          for (int k = 0; k < kBlockK; k += 64) {
            ptx::tma_load(ring.stage() + k * kChannels * 2, map, tile.k_tile * kBlockK + k, s, r, c_block * kChannels,
                          tile.group, ring.full());
          }
        } else {
          ptx::tma_load(ring.stage(), map, c_block * kChannels, s, r, tile.k_tile * kBlockK, tile.group, ring.full());
        }
        ring.next();
      }
    }
  });
}

}  // namespace fastconv
