// What a thread does of a NormWalk.
#pragma once

#include "fastconv/norm/walk.h"
#include "fastconv/ptx/async_copy.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {

struct NormPlace {
  const NormWalk& walk;
  int32_t slice, group;
  int32_t in_tile;      // of the thread's vector
  int64_t first, step;  // of the slice's items, where a group has one tile

  __device__ NormPlace(const NormWalk& walk, int vector, int32_t block)
      : walk(walk),
        slice(block % walk.slices),
        group(block / walk.slices),
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
  // Where a group has one tile. The last row may end within it.
  __device__ __forceinline__ int32_t items_of_thread() const {
    const int32_t all = items();
    return first + (all - 1) * step < walk.total ? all : all - 1;
  }
};

// Goes from one of a slice's items to the next, where an image may have several tiles. kBackwards: from the last one.
template <bool kBackwards>
struct NormCursor {
  const NormPlace& place;
  int32_t row, tile, rows, tiles;  // and how many lie between two items

  __device__ explicit NormCursor(const NormPlace& place) : place(place) {
    const NormWalk& walk = place.walk;
    walk.tiles.divmod(place.slice + (kBackwards ? (place.items() - 1) * walk.slices : 0), row, tile);
    walk.tiles.divmod(walk.slices, rows, tiles);
  }
  // -1 where the thread has nothing of the item.
  __device__ __forceinline__ int64_t offset() const {
    const NormWalk& walk = place.walk;
    const int64_t in_group = place.in_tile + tile * walk.tile_stride;
    const int64_t offset = row * walk.row_stride + place.of_row(in_group);
    return in_group < walk.group_extent && offset < walk.total ? offset : -1;
  }
  __device__ __forceinline__ void next() {
    const auto all = static_cast<int32_t>(place.walk.tiles.divisor);
    row += kBackwards ? -rows : rows, tile += kBackwards ? -tiles : tiles;
    if (kBackwards ? tile < 0 : tile >= all) row += kBackwards ? -1 : 1, tile += kBackwards ? all : -all;
  }
};

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

// Vectors of kOperands tensors on their way to a thread, which has places of its own in its block's shared memory.
template <typename T, int kVector, int kOperands, int kStages>
struct NormRing {
  using Vector = NormVector<T, kVector>;
  static constexpr int kDepth = kStages;
  Vector vectors[kStages][kOperands][kNormThreads];

  __device__ static NormRing& shared() {
    extern __shared__ uint4 norm_smem[];
    return *static_cast<NormRing*>(ptx::block_memory(norm_smem));
  }
  // Its memory for a block's sums, once all threads have what they ordered.
  template <typename Sums>
  __device__ Sums* sums() {
    static_assert(kNormThreads * kVector * sizeof(Sums) <= sizeof(NormRing));
    __syncthreads();
    return reinterpret_cast<Sums*>(this);
  }
  __device__ __forceinline__ void fetch(int stage, int operand, const void* data, int64_t offset) {
    Vector& to = vectors[stage][operand][threadIdx.x];
    if constexpr (sizeof(Vector) >= 4) {
      ptx::async_copy<sizeof(Vector)>(ptx::smem_address(&to), static_cast<const T*>(data) + offset, true);
    } else {
      to = Vector::load(data, offset);
    }
  }
  __device__ __forceinline__ const Vector& operator()(int stage, int operand) const {
    return vectors[stage][operand][threadIdx.x];
  }
};

// use(stage, offset) of a thread's vectors, which fetch(stage, offset) has ordered kStages - 1 vectors before, so that
// many are under way. kBackwards: what another pass read last comes first, as the cache still has it. kOneTile: a group
// is one tile of each row, and vectors lie so far apart that an addition leads from one to the next.
template <int kStages, bool kBackwards, bool kOneTile, typename Fetch, typename Use>
__device__ __forceinline__ void each_vector(const NormPlace& place, Fetch&& fetch, Use&& use) {
  if (!place.works()) return;
  if constexpr (kOneTile) {
    const int32_t items = place.items_of_thread();
    const int64_t step = kBackwards ? -place.step : place.step;
    int64_t next = place.first + (kBackwards ? (items - 1) * place.step : 0), mine = next;
    int32_t ordered = 0;
    const auto order = [&](int stage) {
      if (ordered++ < items) fetch(stage, next);
      next += step;
      ptx::async_copy_commit();
    };
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) order(stage);
#pragma unroll 1
    for (int32_t first = 0; first < items; first += kStages) {
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        ptx::async_copy_wait<kStages - 2>();
        if (first + stage < items) use(stage, mine);
        mine += step;
        order((stage + kStages - 1) % kStages);
      }
    }
  } else {
    const int32_t items = place.items();
    NormCursor<kBackwards> cursor(place);
    int64_t offsets[kStages];
    const auto order = [&](int stage, int32_t item) {
      offsets[stage] = item < items ? cursor.offset() : -1;
      cursor.next();
      if (offsets[stage] >= 0) fetch(stage, offsets[stage]);
      ptx::async_copy_commit();
    };
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) order(stage, stage);
#pragma unroll 1
    for (int32_t first = 0; first < items; first += kStages) {
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        ptx::async_copy_wait<kStages - 2>();
        if (offsets[stage] >= 0) use(stage, offsets[stage]);
        order((stage + kStages - 1) % kStages, first + stage + kStages - 1);
      }
    }
  }
}

// use(place) of the walk's blocks that fall to this one.
template <bool kBackwards, typename Use>
__device__ __forceinline__ void each_place(const NormWalk& walk, int vector, Use&& use) {
  const auto mine = static_cast<int32_t>(blockIdx.x), step = static_cast<int32_t>(gridDim.x);
  const auto count = static_cast<int32_t>((walk.grid() - mine + step - 1) / step);
#pragma unroll 1
  for (int32_t i = 0; i < count; ++i) use(NormPlace(walk, vector, mine + (kBackwards ? count - 1 - i : i) * step));
}

// Adds up what a block's threads have of each channel, `mine` of each element of their vectors, and stores that to
// partial[field][part][channel]. Sums of a channel are added in pairs.
template <typename Sums, typename Ring, int kVector>
__device__ __forceinline__ void store_sums(const NormPlace& place, const Sums (&mine)[kVector], Ring& ring,
                                           typename Sums::Value* partial) {
  Sums* sums = ring.template sums<Sums>();
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
    if (of_row >= walk.row_extent) break;
    const int64_t part = place.slice * int64_t{walk.row_parts} + (walk.row_parts > 1 ? of_row / walk.channels : 0);
    const int32_t channel = place.channel(c * walk.step_c);
    sums[c * walk.step_c].store(partial + part * walk.channels + channel, parts * walk.channels);
  }
  __syncthreads();  // the next vectors come where the sums are
}

inline constexpr int kFinishLanes = 8, kFinishStrands = kNormThreads / kFinishLanes;  // channels, threads of each
inline constexpr int kFinishBatch = 8;  // sums that a thread reads at once

// finish(channel, total) of each channel, by one of the grid's threads. All parts have been stored.
template <typename Sums, typename Ring, typename Finish>
__device__ __forceinline__ void each_total(const NormWalk& walk, Ring& ring, const void* workspace, Finish&& finish) {
  const auto* partial = static_cast<const typename Sums::Value*>(workspace);
  const int lane = static_cast<int>(threadIdx.x) % kFinishLanes, strand = static_cast<int>(threadIdx.x) / kFinishLanes;
  const int64_t channels = walk.channels, parts = walk.parts();
#pragma unroll 1
  for (int64_t from = int64_t{blockIdx.x} * kFinishLanes; from < channels; from += int64_t{gridDim.x} * kFinishLanes) {
    Sums* sums = ring.template sums<Sums>() + lane;
    const int64_t channel = from + lane;
    Sums total{};
    if (channel < channels) {
#pragma unroll 1
      for (int64_t first = strand; first < parts; first += kFinishBatch * kFinishStrands) {
        Sums batch[kFinishBatch] = {};
#pragma unroll
        for (int i = 0; i < kFinishBatch; ++i) {
          const int64_t part = first + i * kFinishStrands;
          if (part < parts) batch[i] = Sums::load(partial + part * channels + channel, parts * channels);
        }
#pragma unroll
        for (int i = 0; i < kFinishBatch; ++i) total.add(batch[i]);
      }
    }
    sums[strand * kFinishLanes] = total;
    for (int half = kFinishStrands / 2; half > 0; half /= 2) {
      __syncthreads();
      if (strand < half) sums[strand * kFinishLanes].add(sums[(strand + half) * kFinishLanes]);
    }
    if (strand == 0 && channel < channels) finish(channel, sums[0]);
  }
}

// Where the sums of whole channels are kept for the grid.
template <typename Sums>
__device__ __forceinline__ typename Sums::Value* sums_behind(const NormWalk& walk, void* workspace) {
  return static_cast<typename Sums::Value*>(workspace) + Sums::kFields * walk.parts() * walk.channels;
}

}  // namespace fastconv
