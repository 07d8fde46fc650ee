// Rows of NCHW images, brought by the copy engine as they lie, [channel][pixel], and turned by warps into swizzled
// pixel rows of kChannels 16-bit values.
#pragma once

#include <cuda.h>

#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/raw_rows.h"
#include "fastconv/tile/ring.cuh"

namespace fastconv {

struct RawMaps {
  CUtensorMap map[kMaxRawMaps];  // column, row, channel, group, image
};

// One thread: the next stage of the ring, from column `start` of row h on.
__device__ __forceinline__ void load_raw_row(const RawRows& raw, const RawMaps& maps, const Ring& ring, int start,
                                             int h, int channel, int group, int n) {
  const int phase = h & ((1 << raw.row_phases_log2) - 1);
  ptx::mbarrier_arrive_expect(ring.full(), raw.stage_bytes);
  ptx::tma_load(ring.stage(), &maps.map[phase], start + raw.shift[phase], h >> raw.row_phases_log2, channel, group, n,
                ring.full());
}

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

// One warp: a stage of the ring into the pixel rows of one row of the halo (forward) or box (weight gradient).
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
      turn_blocks<kUnroll>(from, 0, box_w, kUnitPixels, store);
    }
  }
};

}  // namespace fastconv
