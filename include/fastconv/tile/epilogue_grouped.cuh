// Narrow groups: a warp's sums to memory, through a buffer in shared memory, so that pixels or channels that lie side
// by side are stored at once. A group has too few channels for that: those of several groups meet in the buffer.
#pragma once

#include <cstdint>
#include <type_traits>

#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/element.cuh"
#include "fastconv/tile/grouped_walk.cuh"

namespace fastconv {

template <typename T, int kPixels>
struct GroupedOutput {
  static constexpr int kSize = sizeof(T);

  const GroupedParams& params;
  const GroupedTile& tile;
  T* target;  // of the tile's first pixel and channel
  uint32_t buffer;
  uint32_t bias;  // as floats, of the tile's channels; 0 if there is none

  // Sums of filters below `limit`, whose channels follow those before `channel` of the run, `first` of the tile. What
  // the buffer has is added if they are `more` of the same.
  template <typename Sums>
  __device__ __forceinline__ void put(Sums& sums, int channel, int first, int limit, bool more) const {
    if (bias != 0 && !more) {
      const int lane_filter = Sums::first_filter(ptx::lane());
      const uint32_t from = bias + (first + channel + lane_filter) * 4;
      sums.for_pairs([&](int, int filter, float& a, float& b) {
        if (lane_filter + filter < limit) a += __uint_as_float(ptx::load_shared4(from + filter * 4));
        if (lane_filter + filter + 1 < limit) b += __uint_as_float(ptx::load_shared4(from + filter * 4 + 4));
      });
    }
    if (params.store == GroupedStore::kPixels) {
      put<false>(sums, channel, limit, kSize, params.buffer_pitch, more);
    } else if (params.filters % 2 == 0) {
      put<true>(sums, channel, limit, params.buffer_pitch, kSize, more);
    } else {
      put<false>(sums, channel, limit, params.buffer_pitch, kSize, more);
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
  // kPairs: of filters, side by side in the buffer; both or none of them exist.
  template <bool kPairs, typename Sums>
  __device__ __forceinline__ void put(Sums& sums, int channel, int limit, uint32_t pixel_bytes, uint32_t filter_bytes,
                                      bool more) const {
    const int lane = ptx::lane(), lane_filter = Sums::first_filter(lane);
    const uint32_t to = buffer + Sums::first_pixel(lane) * pixel_bytes + (channel + lane_filter) * filter_bytes;
    auto place = [&](int pixel, int filter) { return to + pixel * pixel_bytes + filter * filter_bytes; };
    if constexpr (std::is_same_v<T, float>) {
      if (more) {
        sums.for_pairs([&](int pixel, int filter, float& a, float& b) {
          if (lane_filter + filter < limit) a += __uint_as_float(ptx::load_shared4(place(pixel, filter)));
          if (lane_filter + filter + 1 < limit) b += __uint_as_float(ptx::load_shared4(place(pixel, filter + 1)));
        });
      }
    }
    sums.for_pairs([&](int pixel, int filter, float a, float b) {
      const bool exists = lane_filter + filter < limit, two = lane_filter + filter + 1 < limit;
      if constexpr (std::is_same_v<T, float>) {
        if constexpr (kPairs) {
          if (exists) ptx::store_shared_floats(place(pixel, filter), a, b);
        } else {
          if (exists) ptx::store_shared_float(place(pixel, filter), a);
          if (two) ptx::store_shared_float(place(pixel, filter + 1), b);
        }
      } else {
        const uint32_t v = pack2<T>(a, b);
        if constexpr (kPairs) {
          if (exists) ptx::store_shared4(place(pixel, filter), v);
        } else {
          if (exists) ptx::store_shared2(place(pixel, filter), static_cast<uint16_t>(v));
          if (two) ptx::store_shared2(place(pixel, filter + 1), static_cast<uint16_t>(v >> 16));
        }
      }
    });
  }

  template <int kBytes>
  __device__ __forceinline__ void drain(int pixel, int first, int channels) const {
    constexpr int kValues = kBytes / kSize;
    const int lane = ptx::lane();
    if (params.store == GroupedStore::kPixels) {
      constexpr int kPieces = kPixels / kValues, kLanes = kPieces < 32 ? kPieces : 32;
#pragma unroll 1
      for (int piece = lane % kLanes; piece < kPieces; piece += kLanes) {
        const int64_t offset = tile.target_of(params, pixel + piece * kValues);
        if (offset < 0) continue;
        const int k0 = lane / kLanes;
        T* to = target + (offset + (first + k0) * params.target.c);
        uint32_t from = buffer + k0 * params.buffer_pitch + piece * kBytes;
#pragma unroll 2
        for (int k = k0; k < channels; k += 32 / kLanes) {
          move<kBytes>(to, from);
          to += 32 / kLanes * params.target.c, from += 32 / kLanes * params.buffer_pitch;
        }
      }
    } else {
      const int vectors = static_cast<int>(params.by_vectors.divisor);
#pragma unroll 2
      for (int item = lane; item < kPixels * vectors; item += 32) {
        int at, vector;
        params.by_vectors.divmod(item, at, vector);
        const int64_t offset = tile.target_of(params, pixel + at);
        if (offset < 0 || vector * kValues >= channels) continue;
        move<kBytes>(target + (offset + first + vector * kValues), buffer + at * params.buffer_pitch + vector * kBytes);
      }
    }
  }

  template <int kBytes>
  static __device__ __forceinline__ void move(T* to, uint32_t from) {
    if constexpr (kBytes == 16) {
      *reinterpret_cast<uint4*>(to) = ptx::load_shared16(from);
    } else if constexpr (kBytes == 8) {
      *reinterpret_cast<uint2*>(to) = ptx::load_shared8(from);
    } else if constexpr (kBytes == 4) {
      *reinterpret_cast<uint32_t*>(to) = ptx::load_shared4(from);
    } else {
      *reinterpret_cast<uint16_t*>(to) = ptx::load_shared2(from);
    }
  }
};

}  // namespace fastconv
