// What makes operands of float32 planes on their way to the halo: pixel rows of kChannels values of T, rounded to TF32,
// or of their parts side by side.
#pragma once

#include "fastconv/families/halo/walk.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/split.cuh"

namespace fastconv {

// One warp, or several that share out its pixels: a stage of raw planes into pixel rows of the halo. As Transposition
// does for values of 16 bits.
template <typename T, int kChannels, int kParts>
struct FloatTransposition {
  static constexpr int kRowBytes = kChannels * sizeof(T), kChunks = kRowBytes / 16;  // of a pixel; chunks of 16 bytes
  static constexpr int kEach = 16 / sizeof(T);                                       // channels of a chunk
  static constexpr int kTogether = 2, kValues = kTogether * kEach;                   // chunks that a lane has at once

  const HaloParams& params;
  int lane;
  float scale = kOperandOf<T> == Operand::kFp16 ? params.gate.range->scale[0] : 1;

  __device__ __forceinline__ void clear(uint32_t halo, int pixel, int pixels) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll 1
      for (int i = pixel * kChunks + lane; i < (pixel + pixels) * kChunks; i += 32) {
        ptx::store_shared16(halo + part * params.part_bytes + i * 16, {0, 0, 0, 0});
      }
    }
  }

  // Pixels of the run from `first` on, as far as a copy goes, 32 at a time. This warp takes units number `unit`,
  // `unit` + `units` and so on. kGeneral: halo pixels are not simply as far apart as the run's.
  template <bool kGeneral>
  __device__ __forceinline__ void turn(uint32_t source, const RawRun& run, int first, int w0, uint32_t halo, int unit,
                                       int units) const {
    const RawFloats from(params, run, first, kChannels);
    const int end = min(run.count, first + params.raw.advance);
    int index = first + unit * 32 + lane;
    if constexpr (kGeneral) {
#pragma unroll 1
      for (; index < end; index += units * 32) {
        const int pixel = halo_pixel(params, run, w0, index);
        if (pixel >= 0) move<1>(source, from, index, end, halo, pixel);
      }
    } else {  // one warp
      const int start = run.row * params.halo_pitch + run.w - w0;
      if constexpr (kParts > 1) {  // for 64 at a time there are too few registers
#pragma unroll 1
        for (; index < end; index += 32) move<1>(source, from, index, end, halo, start + index);
      } else {
#pragma unroll 1
        for (; index - lane + 32 < end; index += 64) move<2>(source, from, index, end, halo, start + index);
        if (index < end) move<1>(source, from, index, end, halo, start + index);
      }
    }
  }

 private:
  // Pixel `index` of a run to pixel `pixel` of the halo, and those 32 further, kUnits of them, as far as `end`.
  template <int kUnits>
  __device__ __forceinline__ void move(uint32_t source, const RawFloats& from, int index, int end, uint32_t halo,
                                       int pixel) const {
    uint32_t at = source + 4 * (from.first + index);
    const uint32_t row = pixel * kRowBytes, swizzle = (row >> 7) & (kChunks - 1);  // the same 32 pixels further
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; chunk += kTogether) {
      float v[kUnits][kValues];
#pragma unroll
      for (int i = 0; i < kValues; ++i, at += 4 * from.next[(i - 1) % RawFloats::kPeriod]) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) v[u][i] = __uint_as_float(ptx::load_shared4(at + u * 128));
      }
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        if (u == 0 || index + u * 32 < end) store(halo + row + u * 32 * kRowBytes, chunk, swizzle, v[u]);
      }
    }
  }

  // To chunks of a row of the halo.
  __device__ __forceinline__ void store(uint32_t row, int chunk, uint32_t swizzle, const float (&v)[kValues]) const {
    auto put = [&](int part, const auto& words) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        ptx::store_shared16(row + part * params.part_bytes + (((chunk + i) ^ swizzle) << 4),
                            {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]});
      }
    };
    if constexpr (std::is_same_v<T, float>) {
      uint32_t words[kValues];
#pragma unroll
      for (int i = 0; i < kValues; ++i) words[i] = __float_as_uint(v[i]);  // rounded as it was copied
      put(0, words);
    } else {
      uint32_t words[kValues / 2];
      auto parts = parts_of<kOperandOf<T>>(v, scale);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        parts.take(part, kParts, words);
        put(part, words);
      }
    }
  }
};

}  // namespace fastconv
