// What a thread does of a NormWalk.
#pragma once

#include "fastconv/norm/walk.h"
#include "fastconv/tile/element.cuh"

namespace fastconv {

struct NormPlace {
  const NormWalk& walk;
  int32_t slice, group;
  int32_t in_tile;      // of the thread's vector
  int64_t first, step;  // of the slice's items, where a group has one tile

  __device__ NormPlace(const NormWalk& walk, int vector)
      : walk(walk),
        slice(static_cast<int32_t>(blockIdx.x) % walk.slices),
        group(static_cast<int32_t>(blockIdx.x) / walk.slices),
        in_tile(static_cast<int32_t>(threadIdx.x) * vector),
        first(slice * walk.row_stride + of_row(in_tile)),
        step(walk.slices * walk.row_stride) {}

  // Within a row, of the group's first tile.
  __device__ __forceinline__ int64_t of_row(int64_t in_tile) const { return group * walk.group_stride + in_tile; }
  // Of an element of the first tile.
  __device__ __forceinline__ int32_t channel(int32_t in_tile) const {
    if (!walk.channels_last) return group * walk.tile_channels + (walk.tiles.divisor == 1 ? walk.run.div(in_tile) : 0);
    int32_t rows, channel;
    walk.run.divmod(static_cast<int32_t>(of_row(in_tile)), rows, channel);
    return channel;
  }
  __device__ __forceinline__ bool works() const {
    return static_cast<int>(threadIdx.x) < walk.threads && of_row(in_tile) < walk.row_extent;
  }
  __device__ __forceinline__ int32_t items() const { return (walk.items - slice + walk.slices - 1) / walk.slices; }
  // Of the slice's item; -1 where there is nothing.
  __device__ __forceinline__ int64_t offset(int32_t item) const {
    int64_t in_group = in_tile, offset = first + item * step;
    if (walk.tiles.divisor > 1) {
      int32_t row, tile;
      walk.tiles.divmod(slice + item * walk.slices, row, tile);
      in_group += tile * walk.tile_stride;
      offset = row * walk.row_stride + of_row(in_group);
    }
    return in_group < walk.group_extent && offset < walk.total ? offset : -1;
  }
};

// use(offset, load(offset)) for the vectors of a thread. Several loads are under way together. kBackwards: what another
// kernel read last comes first, as the cache still has it.
template <int kBatch, bool kBackwards, typename Load, typename Use>
__device__ __forceinline__ void each_vector(const NormPlace& place, Load&& load, Use&& use) {
  if (!place.works()) return;
  const int32_t items = place.items();
#pragma unroll 1
  for (int32_t first = 0; first < items; first += kBatch) {
    int64_t offsets[kBatch];
    decltype(load(int64_t{})) batch[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int32_t item = first + k;
      offsets[k] = item < items ? place.offset(kBackwards ? items - 1 - item : item) : -1;
      if (offsets[k] >= 0) batch[k] = load(offsets[k]);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (offsets[k] >= 0) use(offsets[k], batch[k]);
    }
  }
}

template <typename T, int kVector>
struct NormVector {
  Words<kVector * sizeof(T)> words;

  __device__ static NormVector load(const void* data, int64_t offset) {
    return *reinterpret_cast<const NormVector*>(static_cast<const T*>(data) + offset);
  }
  __device__ void store(void* data, int64_t offset) const {
    *reinterpret_cast<NormVector*>(static_cast<T*>(data) + offset) = *this;
  }
  __device__ __forceinline__ Accumulator<T> operator[](int i) const {
    return widen(reinterpret_cast<const T*>(&words)[i]);
  }
  __device__ __forceinline__ void set(int i, Accumulator<T> value) {
    reinterpret_cast<T*>(&words)[i] = narrow<T>(value);
  }
};

// Adds up what a block's threads have of each channel, `mine` of each element of their vectors, and stores that to
// partial[field][part][channel]. Sums of a channel are added in pairs.
template <typename Sums, int kVector>
__device__ __forceinline__ void store_sums(const NormPlace& place, const Sums (&mine)[kVector],
                                           typename Sums::Value* partial) {
  __shared__ Sums sums[kNormThreads * kVector];
  const NormWalk& walk = place.walk;
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int j = 0; j < kVector; ++j) sums[thread * kVector + j] = mine[j];
  __syncthreads();
  for (int32_t left = walk.fold; left > 1;) {
    const int32_t half = (left + 1) / 2;
    for (int32_t i = thread; i < (left - half) * walk.tile_channels; i += kNormThreads) {
      const int32_t at = i % walk.tile_channels * walk.step_c + i / walk.tile_channels * walk.step;
      sums[at].add(sums[at + half * walk.step]);
    }
    left = half;
    __syncthreads();
  }
  const int64_t parts = walk.parts();
  for (int32_t c = thread; c < walk.tile_channels; c += kNormThreads) {
    const int64_t of_row = place.of_row(int64_t{c} * walk.step_c);
    if (of_row >= walk.row_extent) return;
    const int64_t part = place.slice * int64_t{walk.row_parts} + (walk.row_parts > 1 ? of_row / walk.channels : 0);
    const int32_t channel = place.channel(c * walk.step_c);
    sums[c * walk.step_c].store(partial + part * walk.channels + channel, parts * walk.channels);
  }
}

inline constexpr int kFinishLanes = 32, kFinishStrands = 16;  // channels, and threads that share one

// The sums of a channel, for the first of its threads. All threads of a block of these call it.
template <typename Sums>
__device__ __forceinline__ Sums total_of(const typename Sums::Value* partial, int64_t channel, int64_t channels,
                                         int64_t parts) {
  __shared__ Sums sums[kFinishStrands][kFinishLanes];
  const int lane = static_cast<int>(threadIdx.x) % kFinishLanes, strand = static_cast<int>(threadIdx.x) / kFinishLanes;
  Sums total{};
  if (channel < channels) {
    for (int64_t part = strand; part < parts; part += kFinishStrands) {
      total.add(Sums::load(partial + part * channels + channel, parts * channels));
    }
  }
  sums[strand][lane] = total;
  for (int half = kFinishStrands / 2; half > 0; half /= 2) {
    __syncthreads();
    if (strand < half) sums[strand][lane].add(sums[strand + half][lane]);
  }
  return sums[strand][lane];
}

}  // namespace fastconv
