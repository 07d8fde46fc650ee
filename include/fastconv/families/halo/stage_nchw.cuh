// Producers of NCHW input. TMA brings it as it lies, [channel][pixel], into a ring of raw stages, and warps
// turn that into swizzled pixel rows of kChannels values; without taps to shift it, it is multiplied as it lies.
#pragma once

#include <cuda.h>

#include "fastconv/families/halo/transpose_floats.cuh"
#include "fastconv/families/halo/walk.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
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

// One warp, or several that share out its 8x8 blocks: a stage of the ring into pixel rows of the halo, values of 16
// bits.
template <int kChannels>
struct Transposition {
  static constexpr int kUnit = raw_unit(2);
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

  // Pixels of the run from `first` on, as far as a copy goes. This warp takes units number `unit`, `unit` + `units` and
  // so on. `halo` is a multiple of whole swizzle patterns. kGeneral: halo pixels are not simply as far apart as the
  // run's.
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
      const int lead = raw_lead(params, run, first, phase, kUnit), row = chunk * 8 + lane % 8;
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

// HaloStaging::kShifted: the same blocks, first the channels whose planes begin where TMA can, then the
// others, which are copied from kShift pixels earlier on and moved by warps. Behind a plane's last pixel follows what
// lies there, for outputs that do not exist. One warp starts the copies: of what is moved as early as possible.
template <int kChannels>
__device__ __forceinline__ void copy_shifted(const HaloParams& params, const Tile& tile, const TensorMaps& maps,
                                             Ring& raw, Ring& ring, int lane) {
  constexpr int kHalf = kChannels / 2, kBytes = kHalf * 128, kRawBytes = kHalf * kShiftedBox * 2;
  const int q = tile.q + lane * 64;
  for_each_halo(params, tile, [&](const TapGroup&, int c_block) {
    raw.wait_empty();
    if (lane == 0) ptx::mbarrier_arrive_expect(raw.full(), params.loads * kRawBytes);
    __syncwarp();
    if (lane < params.loads) {
      ptx::tma_load(raw.stage() + lane * kRawBytes, &maps.map[1], q + static_cast<int>(params.in_c) - kShift,
                    c_block * kHalf, tile.group, tile.p, tile.n, raw.full());
    }
    ring.wait_empty();
    if (lane == 0) ptx::mbarrier_arrive_expect(ring.full(), params.loads * kBytes);
    __syncwarp();
    if (lane < params.loads) {
      ptx::tma_load(ring.stage() + lane * 2 * kBytes, &maps.map[0], q, c_block * kHalf, tile.group, tile.p, tile.n,
                    ring.full());
    }
    raw.next(), ring.next();
  });
}

// kWarps warps: rows of two channels at once, 16 lanes each, 4 pixels a lane.
template <int kChannels, int kWarps>
__device__ __forceinline__ void move_shifted(const HaloParams& params, const Tile& tile, Ring& raw, Ring& ring,
                                             int warp, int lane) {
  constexpr int kHalf = kChannels / 2, kBytes = kHalf * 128, kUnroll = 4;
  const int column = lane % 16 * 8, rows = kHalf * params.loads;
  for_each_halo(params, tile, [&](const TapGroup&, int) {
    raw.wait_full(), ring.wait_empty();
    const uint32_t from = raw.stage() + kShift * 2 + column, to = ring.stage() + kBytes;
#pragma unroll 1
    for (int first = warp * 2 + lane / 16; first < rows; first += 2 * kWarps * kUnroll) {
      uint2 v[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int row = first + 2 * kWarps * u;
        if (row < rows) v[u] = ptx::load_shared8(from + row * (kShiftedBox * 2));
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int row = first + 2 * kWarps * u;
        if (row < rows) {
          ptx::store_shared8(to + row / kHalf * 2 * kBytes + row % kHalf * 128 + (column ^ (row % 8 * 16)), v[u]);
        }
      }
    }
    ptx::async_proxy_fence();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ring.full()), ptx::mbarrier_arrive(raw.empty());
    raw.next(), ring.next();
  });
}

// HaloStaging::kFloats: a copy for each row of the halo that exists. One warp.
template <int kChannels>
__device__ __forceinline__ void stage_floats(const HaloParams& params, const Tile& tile, const CUtensorMap* map,
                                             Ring& copied, Ring& ring, int lane) {
  const int32_t row_bytes = kChannels * 4 * params.raw.box_w;
  for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
    const FloatRows rows(params, tile, group);
    ring.wait_empty();
    const int32_t begin = max(0, -rows.h), end = min(params.halo_rows, rows.height - rows.h);
    __syncwarp();  // as in RawLoads::copy_image(): there may be nothing to copy
    if (lane == 0) ptx::mbarrier_arrive_expect(copied.full(), max(0, end - begin) * row_bytes);
    for (int i = begin + lane; i < end; i += 32) {
      ptx::tma_load(ring.stage() + i * row_bytes, map, rows.start(i), c_block * kChannels, tile.group, tile.n, 0,
                    copied.full());
    }
    copied.next(), ring.next();
  });
}

// Padding of a halo that has been copied. Another warp.
template <int kChannels>
__device__ __forceinline__ void clear_floats(const HaloParams& params, const Tile& tile, Ring& copied, Ring& ring,
                                             int lane) {
  const int32_t pitch = 4 * params.raw.box_w, channel = lane % kChannels;
  for_each_halo(params, tile, [&](const TapGroup& group, int) {
    copied.wait_full();
    for_each_float_padding(params, tile, FloatRows(params, tile, group), [&](int row, int first, int count) {
      const uint32_t start = ring.stage() + (row * kChannels + channel) * pitch + 4 * first;
      for (int i = lane / kChannels; i < count; i += 32 / kChannels) ptx::store_shared4(start + 4 * i, 0);
    });
    ptx::async_proxy_fence();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ring.full());
    copied.next(), ring.next();
  });
}

// HaloStaging::kTransposed. One warp starts the copies, a lane for each tensor map. NOTES: that is a few instructions a
// copy or its latency, not TMA, limits staging. Value is the tensor's.
template <typename Value, int kChannels>
struct RawLoads {
  static constexpr int kUnit = raw_unit(sizeof(Value));
  const HaloParams& params;
  const TensorMaps& maps;
  int lane, shift, phases;
  uint32_t phase_bytes;

  __device__ RawLoads(const HaloParams& params, const TensorMaps& maps, int lane)
      : params(params),
        maps(maps),
        lane(lane),
        shift(raw_shift(params.in_c, lane, kUnit)),
        phases(1 << params.raw.phases_log2),
        phase_bytes(params.raw.stage_bytes >> params.raw.phases_log2) {}

  // From `pixel` of image n on.
  __device__ __forceinline__ void copy(Ring& raw, int32_t pixel, int32_t c, int32_t group, int32_t n) const {
    raw.wait_empty();
    if (lane == 0) ptx::mbarrier_arrive_expect(raw.full(), params.raw.stage_bytes);
    __syncwarp();
    if (lane < phases) {
      ptx::tma_load(raw.stage() + lane * phase_bytes, &maps.map[lane], (pixel + shift) & -kUnit, c, group, n, 0,
                    raw.full());
    }
    raw.next();
  }
  __device__ __forceinline__ void copy_image(Ring& raw, int32_t c, int32_t group, int32_t n) const {
    const uint32_t bytes = kChannels * static_cast<int32_t>(params.in_c) * sizeof(Value);
    raw.wait_empty();
    __syncwarp();  // a lane that waits still might find the stage used twice, and take one round's parity for another's
    if (lane == 0) {
      ptx::mbarrier_arrive_expect(raw.full(), bytes);
      ptx::bulk_load(
          raw.stage(),
          static_cast<const Value*>(params.in) + n * params.in_n + (int64_t{group} * params.c + c) * params.in_c, bytes,
          raw.full());
    }
    raw.next();
  }

  // kRows: tiles are rectangular.
  template <bool kRows>
  __device__ __forceinline__ void tile(const Tile& tile, Ring& raw) const {
    for_each_halo(params, tile, [&](const TapGroup& group, int c_block) {
      const int c = c_block * kChannels, phase_c = c >> params.raw.phases_log2, advance = params.raw.advance;
      if (kRows || !params.linear) {
        const RawRows rows(params, tile, group);
        int pixel = rows.run(rows.begin).flat(params);
        for (int i = rows.begin; i < rows.end; ++i, pixel += rows.step * params.width) {
          for (int first = 0; first < rows.count; first += advance)
            copy(raw, pixel + first, phase_c, tile.group, rows.n);
        }
        return;
      }
      for_each_raw_run(params, tile, group, [&](const RawRun& run) {
        for (int first = 0; first < run.count; first += advance) {
          if (params.raw.whole) {
            copy_image(raw, c, tile.group, run.n);
          } else {
            copy(raw, run.flat(params) + first, phase_c, tile.group, run.n);
          }
        }
      });
    });
  }
};

// A halo in any order of runs. The warps share stages where there are a few large ones, or each has stages of its own.
template <int kWarps, typename Turn>
__device__ __forceinline__ void transpose_runs(const HaloParams& params, const Tile& tile, const TapGroup& group,
                                               Ring& raw, uint32_t halo, int warp, const Turn& transposition) {
  const int pitch = params.halo_pitch, w0 = halo_col(params, tile, group);
  const HaloColumns inside(params, w0);
  for_each_raw_run(params, tile, group, [&](const RawRun& run) {
    for (int row = run.row; row < run.row + run.rows; ++row) {  // padding
      if (row % kWarps != warp) continue;
      const int begin = run.count > 0 ? inside.begin : pitch, end = run.count > 0 ? inside.end : pitch;
      transposition.clear(halo, row * pitch, begin);
      transposition.clear(halo, row * pitch + end, pitch - end);
    }
    for (int first = 0; first < run.count; first += params.raw.advance, raw.next()) {
      if (!params.raw.shared && raw.index != warp && raw.index != warp + kWarps) continue;
      raw.wait_full();
      const int unit = params.raw.shared ? warp : 0, units = params.raw.shared ? kWarps : 1;
      transposition.template turn<true>(raw.stage(), run, first, w0, halo, unit, units);
      __syncwarp();
      if (transposition.lane == 0) ptx::mbarrier_arrive(raw.empty());
    }
  });
}

// The halo of a rectangular tile without stride: a warp goes straight to the copies in its own stages.
template <int kWarps, typename Turn>
__device__ __forceinline__ void transpose_rows(const HaloParams& params, const Tile& tile, const TapGroup& group,
                                               Ring& raw, uint32_t halo, int warp, const Turn& transposition) {
  const RawRows rows(params, tile, group);
  const int pitch = params.halo_pitch, w0 = halo_col(params, tile, group);
  const int left = rows.w - w0, right = pitch - left - rows.count;  // padding
  if (left > 0 || right > 0 || rows.begin > 0 || rows.end < params.halo_rows) {
    for (int row = warp; row < params.halo_rows; row += kWarps) {
      const bool some = row >= rows.begin && row < rows.end;
      transposition.clear(halo, row * pitch, some ? left : pitch);
      transposition.clear(halo, row * pitch + pitch - right, some ? right : 0);
    }
  }
  const int copies = (rows.end - rows.begin) * rows.pieces, step = min(raw.stages, kWarps);
  int copy = warp - raw.index;
  while (copy < 0) copy += step;
  Ring mine = raw;
  mine.advance(copy);
  for (copy = warp < step ? copy : copies; copy < copies; copy += step, mine.advance(step)) {
    const int row = rows.pieces == 1 ? copy : copy / rows.pieces;
    const int first = (copy - row * rows.pieces) * params.raw.advance;
    mine.wait_full();
    transposition.template turn<false>(mine.stage(), rows.run(rows.begin + row), first, w0, halo, 0, 1);
    __syncwarp();
    if (transposition.lane == 0) ptx::mbarrier_arrive(mine.empty());
  }
  for (int ahead = copies; ahead > 0; ahead -= raw.stages) raw.advance(min(ahead, raw.stages));
}

// kWarps warps. NOTES: a barrier's parity tells only two rounds apart, so whoever waits for a stage must have seen its
// round before: a stage belongs to one warp, or to all. kPlain: tiles are rectangular, without stride.
// Turn: Transposition or FloatTransposition.
template <int kWarps, bool kPlain, typename Turn>
__device__ __forceinline__ void transpose_halo(const HaloParams& params, const Tile& tile, Ring& raw, Ring& halo,
                                               int warp, const Turn& transposition) {
  const bool plain = kPlain || (!params.linear && params.raw.step_log2 == 0);
  for_each_halo(params, tile, [&](const TapGroup& group, int) {
    halo.wait_empty();
    if (plain) {
      transpose_rows<kWarps>(params, tile, group, raw, halo.stage(), warp, transposition);
    } else {
      transpose_runs<kWarps>(params, tile, group, raw, halo.stage(), warp, transposition);
    }
    ptx::async_proxy_fence();
    __syncwarp();
    if (transposition.lane == 0) ptx::mbarrier_arrive(halo.full());
    halo.next();
  });
}

}  // namespace fastconv
