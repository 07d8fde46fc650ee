// Producers of NCHW input. The copy engine brings it as it lies, [channel][pixel], into a ring of raw stages, and warps
// turn that into swizzled pixel rows of kChannels 16-bit values; without taps to shift it, it is multiplied as it lies.
#pragma once

#include <cuda.h>

#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/halo_walk.cuh"
#include "fastconv/tile/ring.cuh"
#include "fastconv/tile/tensor_maps.cuh"

namespace fastconv {

// 8x8 blocks, four at a time, from pixel `at` on, every `step` pixels up to `end`; store(pixel, blocks) puts them in
// their place. kUnroll loads are in flight together.
template <int kUnroll, typename F>
__device__ __forceinline__ void turn_blocks(uint32_t from, int at, int end, int step, F store) {
#pragma unroll 1
  for (; at + (kUnroll - 1) * step < end; at += kUnroll * step) {
    uint32_t v[kUnroll][4];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) ptx::ldmatrix4<true>(from + (at + u * step) * 2, v[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) store(at + u * step, v[u]);
  }
#pragma unroll 1
  for (; at < end; at += step) {
    uint32_t v[4];
    ptx::ldmatrix4<true>(from + at * 2, v);
    store(at, v);
  }
}

// One warp, or several that share out its 8x8 blocks: a stage of the ring into pixel rows of the halo.
template <int kChannels>
struct Transposition {
  static constexpr int kRowBytes = kChannels * 2, kChunks = kChannels / 8;  // of a pixel; chunks of 16 bytes
  static constexpr int kChannelsLog2 = kChannels == 64 ? 6 : kChannels == 32 ? 5 : 4;
  static constexpr int kUnitChunks = kChunks < 4 ? kChunks : 4, kUnitPixels = 32 / kUnitChunks;  // of four blocks

  const HaloParams& params;
  uint32_t waste;  // 16 bytes for pixels that the halo has not
  int lane;

  __device__ __forceinline__ void clear(uint32_t halo, int pixel, int pixels) const {
#pragma unroll 1
    for (int i = pixel * kChunks + lane; i < (pixel + pixels) * kChunks; i += 32) {
      ptx::store_shared16(halo + i * 16, {0, 0, 0, 0});
    }
  }

  // Pixels of the run from `first` on, as far as a copy goes. This warp takes units number `unit`, `unit` + `units` and
  // so on. `halo` is a multiple of 1024.
  __device__ __forceinline__ void run(uint32_t source, const RawRun& run, int first, int w0, uint32_t halo, int unit,
                                      int units) const {
    if (params.linear || params.raw.step_log2 != 0) {
      turn<true>(source, run, first, w0, halo, unit, units);
    } else {
      turn<false>(source, run, first, w0, halo, unit, units);
    }
  }

 private:
  // NOTES: a value that the compiler can see to be a kernel parameter is read again from constant memory in every round
  // of the loop, and the round waits for it.
  static __device__ __forceinline__ int in_register(int value) {
    asm volatile("" : "+r"(value));
    return value;
  }

  static __device__ __forceinline__ uint32_t swizzled(int pixel, int chunk) {
    const uint32_t offset = pixel * kRowBytes + chunk * 16;
    return offset ^ (((offset >> 7) & (kChunks - 1)) << 4);
  }

  // kGeneral: halo pixels are not simply as far apart as the run's.
  template <bool kGeneral>
  __device__ __forceinline__ void turn(uint32_t source, const RawRun& run, int first, int w0, uint32_t halo, int unit,
                                       int units) const {
    constexpr int kUnroll = kGeneral || kUnitPixels > 8 ? 2 : 4;  // units whose loads are in flight together
    const int box_w = in_register(params.raw.box_w), end = min(run.count, first + params.raw.advance);
    const int step = units * kUnitPixels;
    // A lane addresses one channel of its block when it loads, one pixel when it stores.
    const int matrix = lane / 8, mine = matrix / kUnitChunks * 8 + lane % 8;
#pragma unroll
    for (int part = 0; part < kChunks; part += kUnitChunks) {
      const int chunk = part + matrix % kUnitChunks, phase = (chunk << params.raw.phases_log2) / kChunks;
      const int lead = raw_lead(params, run, first, phase), row = chunk * 8 + lane % 8;
      const int start = params.raw.whole ? staged_channel(params.raw.phases_log2, kChannelsLog2, row) *
                                                   static_cast<int>(params.in_c) +
                                               run.flat(params) - lead
                                         : row * box_w;
      const uint32_t from = source + start * 2 + matrix / kUnitChunks * 16;
      const int begin = first - lead + mine;  // what I store of unit 0
      // A unit further is whole swizzle patterns further.
      const uint32_t to = halo + swizzled(run.row * params.halo_pitch + run.w - w0 + begin, chunk);
      auto store = [&](int offset, const uint32_t (&v)[4]) {
        const int index = begin + offset;
        bool wanted = index >= first && index < end;
        uint32_t address = to + offset * kRowBytes;
        if constexpr (kGeneral) {
          const int pixel = wanted ? halo_pixel(params, run, w0, index) : -1;
          wanted = pixel >= 0;
          address = halo + swizzled(pixel, chunk);
        }
        ptx::stmatrix4<false>(wanted ? address : waste, v);
      };
      const int last = min(box_w, end - first + 7);  // of which some phase has something
      turn_blocks<kUnroll>(from, unit * kUnitPixels, last, step, store);
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

// HaloStaging::kTransposed. One thread starts the copies. kRows: of single rows, no stage is shared.
template <int kChannels, bool kRows>
__device__ __forceinline__ void load_raw_planes(const HaloParams& params, const Tile& tile, const TensorMaps& maps,
                                                Ring& raw) {
  const RawPlanes& planes = params.raw;
  const bool shared = !kRows && planes.shared;
  for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
    for_each_raw_run(params, tile, group, shared, [&](const RawRun& run) {
      for (int first = 0; first < run.count; first += planes.advance) {
        raw.wait_empty();
        if (shared && planes.whole) {
          const uint32_t bytes = kChannels * static_cast<int32_t>(params.in_c) * 2;
          ptx::mbarrier_arrive_expect(raw.full(), bytes);
          ptx::bulk_load(raw.stage(),
                         static_cast<const uint16_t*>(params.in) + run.n * params.in_n +
                             (int64_t{tile.group} * params.c + c_block * kChannels) * params.in_c,
                         bytes, raw.full());
          raw.next();
          continue;
        }
        ptx::mbarrier_arrive_expect(raw.full(), planes.stage_bytes);
        for (int phase = 0; phase < 1 << planes.phases_log2; ++phase) {
          const int column =
              run.flat(params) + first + raw_shift(params.in_c, phase) - raw_lead(params, run, first, phase);
          ptx::tma_load(raw.stage() + phase * (planes.stage_bytes >> planes.phases_log2), &maps.map[phase], column,
                        c_block * kChannels >> planes.phases_log2, tile.group, run.n, 0, raw.full());
        }
        raw.next();
      }
    });
  });
}

// kWarps warps. They share stages where there are a few large ones. Otherwise each has stages of its own, and nobody
// waits for a neighbour's row. NOTES: a barrier's parity tells only two rounds apart, so whoever waits for a
// stage must have seen its round before.
template <int kChannels, int kWarps, bool kRows>
__device__ __forceinline__ void transpose_halo(const HaloParams& params, const Tile& tile, Ring& raw, Ring& halo,
                                               int warp, const Transposition<kChannels>& transposition) {
  const int pitch = params.halo_pitch;
  const bool shared = !kRows && params.raw.shared;
  for_each_halo(params, tile, [&](const TapGroup& group, int) {
    halo.wait_empty();
    const int w0 = halo_col(params, tile, group);
    const HaloColumns inside(params, w0);
    for_each_raw_run(params, tile, group, shared, [&](const RawRun& run) {
      for (int row = run.row; row < run.row + run.rows; ++row) {  // padding
        if (row % kWarps != warp) continue;
        const int begin = run.count > 0 ? inside.begin : pitch, end = run.count > 0 ? inside.end : pitch;
        transposition.clear(halo.stage(), row * pitch, begin);
        transposition.clear(halo.stage(), row * pitch + end, pitch - end);
      }
      for (int first = 0; first < run.count; first += params.raw.advance, raw.next()) {
        if (!shared && raw.index % kWarps != warp) continue;
        raw.wait_full();
        const int unit = shared ? warp : 0, units = shared ? kWarps : 1;
        transposition.run(raw.stage(), run, first, w0, halo.stage(), unit, units);
        __syncwarp();
        if (transposition.lane == 0) ptx::mbarrier_arrive(raw.empty());
      }
    });
    ptx::async_proxy_fence();
    __syncwarp();
    if (transposition.lane == 0) ptx::mbarrier_arrive(halo.full());
    halo.next();
  });
}

}  // namespace fastconv
