// Narrow groups: a warp's sums to memory, through a buffer in shared memory, so that pixels or channels that lie side
// by side are stored at once. A group has too few channels for that: those of several groups meet in the buffer.
#pragma once

#include <cstdint>
#include <type_traits>

#include "fastconv/families/grouped/walk.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/epilogue.cuh"

namespace fastconv {

// The buffer is [channel][pixel] or [pixel][channel], at distances that are known when it is compiled.
template <typename T, GroupedConfig kConfig>
struct GroupedOutput {
  static constexpr int kSize = sizeof(T), kPixels = kConfig.unit_pixels();
  static constexpr int kRunBytes = kConfig.run_bytes(), kChannelBytes = kConfig.channel_bytes();

  const GroupedParams& params;
  GroupedTargets targets;
  T* target;  // of the tile's first pixel and channel
  uint32_t buffer;
  uint32_t biases;  // of the tile's channels; 0 if there are none
  Bounds<float> bounds;

  // Sums of filters below `limit`, whose channels follow those before `channel` of the run, `first` of the tile. What
  // the buffer has is added if they are `more` of the same, of which the `last` finish them.
  template <typename Sums>
  __device__ __forceinline__ void put(Sums& sums, int channel, int first, int limit, bool more, bool last) const {
    const auto put = [&]<bool kTogether, int kPixelBytes, int kFilterBytes>() {
      this->put<kTogether, kPixelBytes, kFilterBytes>(sums, channel, first + channel, limit, more, last);
    };
    if (params.store == GroupedStore::kPixels) {
      put.template operator()<false, kSize, kChannelBytes>();
    } else if (params.filters % 2 == 0) {
      put.template operator()<true, kRunBytes, kSize>();
    } else {
      put.template operator()<false, kRunBytes, kSize>();
    }
  }

  // The run's channels of pixels from `pixel` of the tile on.
  __device__ __forceinline__ void drain(int pixel, int first, int channels) const {
    switch (params.store_bytes) {
      case 16: return drain<16>(pixel, first, channels);
      case 8: return drain<8>(pixel, first, channels);
      case 4: return drain<4>(pixel, first, channels);
      default:
        if constexpr (kSize == 2) drain<2>(pixel, first, channels);
    }
  }

 private:
  // kTogether: pairs of filters lie side by side, and both or none of them exist.
  template <bool kTogether, int kPixelBytes, int kFilterBytes, typename Sums>
  __device__ __forceinline__ void put(Sums& sums, int channel, int of_tile, int limit, bool more, bool last) const {
    const uint32_t first = buffer + Sums::first_pixel() * kPixelBytes + channel * kFilterBytes;
#pragma unroll
    for (int pair = 0; pair < Sums::kPairs; ++pair) {
      const int filter = Sums::filter(pair);
      if (filter >= limit) continue;
      const bool two = kTogether || filter + 1 < limit;
      const uint32_t to = first + filter * kFilterBytes;
      if constexpr (std::is_same_v<T, float>) {
        if (more) {
          sums.for_pixels(pair, [&](int pixel, float& a, float& b) {
            a += __uint_as_float(ptx::load_shared4(to + pixel * kPixelBytes));
            if (two) b += __uint_as_float(ptx::load_shared4(to + pixel * kPixelBytes + kFilterBytes));
          });
        }
      }
      if (last && (biases != 0 || bounds.cut())) {
        FilterEpilogue<float> of_a{0, bounds}, of_b{0, bounds};
        if (biases != 0) {
          of_a = staged_epilogue(biases, of_tile + filter, bounds);
          of_b = two ? staged_epilogue(biases, of_tile + filter + 1, bounds) : of_a;
        }
        sums.for_pixels(pair, [&](int, float& a, float& b) { a = of_a(a), b = of_b(b); });
      }
      sums.for_pixels(pair, [&](int pixel, float a, float b) {
        store<kTogether>(to + pixel * kPixelBytes, kFilterBytes, a, b, two);
      });
    }
  }
  template <bool kTogether>
  static __device__ __forceinline__ void store(uint32_t to, int distance, float a, float b, bool two) {
    if constexpr (std::is_same_v<T, float>) {
      if constexpr (kTogether) return ptx::store_shared_floats(to, a, b);
      ptx::store_shared_float(to, a);
      if (two) ptx::store_shared_float(to + distance, b);
    } else {
      const uint32_t v = pack2<T>(a, b);
      if constexpr (kTogether) return ptx::store_shared4(to, v);
      ptx::store_shared2(to, static_cast<uint16_t>(v));
      if (two) ptx::store_shared2(to + distance, static_cast<uint16_t>(v >> 16));
    }
  }

  template <int kBytes>
  __device__ __forceinline__ void drain(int pixel, int first, int channels) const {
    if (params.store == GroupedStore::kPixels) {
      drain_pixels<kBytes>(pixel, first, channels);
    } else {
      drain_channels<kBytes>(pixel, first, channels);
    }
  }

  template <int kBytes>
  __device__ __forceinline__ void drain_pixels(int pixel, int first, int channels) const {
    constexpr int kValues = kBytes / kSize, kPieces = kPixels / kValues, kLanes = kPieces < 32 ? kPieces : 32;
    const int lane = ptx::lane(), piece = lane % kLanes, channel = lane / kLanes;
    int32_t row, column;
    params.stored.find(pixel + piece * kValues, row, column);
    uint32_t line = buffer + channel * kChannelBytes + piece * kBytes;
    T* const to_channel = target + (first + channel) * params.target.c;
#pragma unroll 1
    for (int i = 0; i < kPieces; i += kLanes) {
      if (targets.exists(row, column)) {
        T* to = to_channel + targets.offset(params, row, column);
        uint32_t from = line;
#pragma unroll 2
        for (int k = channel; k < channels; k += 32 / kLanes) {
          store(to, load<kBytes>(from));
          to += 32 / kLanes * params.target.c, from += 32 / kLanes * kChannelBytes;
        }
      }
      params.stored.advance(row, column), line += kLanes * kBytes;
    }
  }

  template <int kBytes>
  __device__ __forceinline__ void drain_channels(int pixel, int first, int channels) const {
    constexpr int kValues = kBytes / kSize;
    const int lane = ptx::lane(), vector = lane & ((1 << params.vectors_log2) - 1), at = lane >> params.vectors_log2;
    const int step = 32 >> params.vectors_log2;
    int32_t row, column;
    params.stored.find(pixel + at, row, column);
    if (vector * kValues >= channels) return;
    uint32_t from = buffer + at * kRunBytes + vector * kBytes;
    T* const to = target + (first + vector * kValues);
    // Two at a time, so that the second one's load does not wait for the first one's store.
#pragma unroll 1
    for (int i = 0; i < kPixels; i += 2 * step) {
      const auto v0 = load<kBytes>(from), v1 = load<kBytes>(from + step * kRunBytes);
      if (targets.exists(row, column)) store(to + targets.offset(params, row, column), v0);
      params.stored.advance(row, column);
      if (targets.exists(row, column)) store(to + targets.offset(params, row, column), v1);
      params.stored.advance(row, column);
      from += 2 * step * kRunBytes;
    }
  }

  template <int kBytes>
  static __device__ __forceinline__ auto load(uint32_t from) {
    if constexpr (kBytes == 16)
      return ptx::load_shared16(from);
    else if constexpr (kBytes == 8)
      return ptx::load_shared8(from);
    else if constexpr (kBytes == 4)
      return ptx::load_shared4(from);
    else
      return ptx::load_shared2(from);
  }
  template <typename Word>
  static __device__ __forceinline__ void store(T* to, const Word& v) {
    *reinterpret_cast<Word*>(to) = v;
  }
};

}  // namespace fastconv
