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
  int32_t in_tile;      // where the thread reads
  int64_t first, step;  // of the slice's items, where a group has one tile

  // side_by_side: elements that a thread reads at once.
  __device__ NormPlace(const NormWalk& walk, int side_by_side, int32_t block)
      : walk(walk),
        slice(block % walk.slices),
        group(block / walk.slices),
        in_tile(static_cast<int32_t>(threadIdx.x) * side_by_side),
        first(slice * walk.row_stride + of_row(in_tile)),
        step(walk.slices * walk.row_stride) {}

  // Within a row, of the group's first tile.
  __device__ __forceinline__ int64_t of_row(int64_t in_tile) const { return group * walk.group_stride + in_tile; }
  __device__ __forceinline__ int32_t channels_of_tile() const {
    return static_cast<int32_t>(walk.tile_channels.divisor);
  }
  // Of an element of the first tile.
  __device__ __forceinline__ int32_t channel(int32_t in_tile) const {
    if (!walk.channels_last) return group * channels_of_tile() + walk.run.div(in_tile);
    int32_t rows, channel;
    walk.run.divmod(static_cast<int32_t>(of_row(in_tile)), rows, channel);
    return channel;
  }
  __device__ __forceinline__ bool works() const {
    return static_cast<int>(threadIdx.x) < walk.threads && of_row(in_tile) < walk.row_extent;
  }
  __device__ __forceinline__ int32_t items() const {
    return (walk.items - slice) / walk.slices + ((walk.items - slice) % walk.slices != 0);
  }
  // Where a group has one tile. The last row may end within it.
  __device__ __forceinline__ int32_t items_of_thread() const {
    const int32_t all = items();
    return first + (all - 1) * step < walk.total ? all : all - 1;
  }
};

// What a thread reads at once: elements from `offset` on. Of those that lie apart some may not exist.
struct NormItem {
  int64_t offset;
  uint32_t exist;  // bits

  template <NormReads kReads>
  __device__ __forceinline__ bool has(int j) const {
    return kReads != NormReads::kApart || (exist >> j & 1) != 0;
  }
};

// Goes from one of a slice's items to the next, where an image may have several tiles. kBackwards: from the last one.
template <bool kBackwards>
struct NormCursor {
  const NormPlace& place;
  const int32_t all;  // tiles of an image
  bool in_last;       // whether the thread has something of the last of them
  int32_t tile, tiles;
  int64_t offset, step, to_next_row;  // where the thread reads, to the next item, and behind the last tile beside that

  __device__ explicit NormCursor(const NormPlace& place)
      : place(place), all(static_cast<int32_t>(place.walk.tiles.divisor)) {
    const NormWalk& walk = place.walk;
    int32_t row, rows;
    walk.tiles.divmod(place.slice + (kBackwards ? (place.items() - 1) * walk.slices : 0), row, tile);
    walk.tiles.divmod(walk.slices, rows, tiles);
    in_last = place.in_tile + (all - 1) * walk.tile_stride < walk.group_extent;
    offset = row * walk.row_stride + tile * walk.tile_stride + place.of_row(place.in_tile);
    step = rows * walk.row_stride + tiles * walk.tile_stride;
    to_next_row = walk.row_stride - all * walk.tile_stride;
    if (kBackwards) tiles = -tiles, step = -step, to_next_row = -to_next_row;
  }
  // Its offset is -1 where the thread has nothing of it. kElements: that a thread reads at once if they lie apart, else
  // 0.
  template <int kElements>
  __device__ __forceinline__ NormItem item() const {
    const NormWalk& walk = place.walk;
    uint32_t exist = 0;
    if constexpr (kElements > 0) {
      int64_t left =
          walk.apart_in_rows ? walk.total - offset : walk.group_extent - (place.in_tile + tile * walk.tile_stride);
#pragma unroll
      for (int j = 0; j < kElements; ++j, left -= walk.apart) exist |= static_cast<uint32_t>(left > 0) << j;
    }
    return {(tile < all - 1 || in_last) && offset < walk.total ? offset : -1, exist};
  }
  __device__ __forceinline__ void next() {
    offset += step, tile += tiles;
    if (kBackwards ? tile < 0 : tile >= all) offset += to_next_row, tile += kBackwards ? all : -all;
  }
};

template <typename T>
struct NormVector {
  static constexpr int kCount = kNormVectorBytes / sizeof(T);
  Words<kNormVectorBytes> words;

  template <NormReads kReads>
  __device__ __forceinline__ void store(const NormWalk& walk, void* data, const NormItem& item) const {
    T* to = static_cast<T*>(data) + item.offset;
    if constexpr (kReads != NormReads::kApart) {
      *reinterpret_cast<NormVector*>(to) = *this;
    } else {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if (item.template has<kReads>(j)) to[j * walk.apart] = element(j);
      }
    }
  }
  __device__ __forceinline__ const T& element(int i) const { return reinterpret_cast<const T*>(&words)[i]; }
  __device__ __forceinline__ T& element(int i) { return reinterpret_cast<T*>(&words)[i]; }
  __device__ __forceinline__ Accumulator<T> operator[](int i) const { return widen(element(i)); }
  __device__ __forceinline__ void set(int i, Accumulator<T> value) { element(i) = narrow<T>(value); }
};

// A bit of each element: in a byte of each, or of side by side ones in one.
template <typename T, NormReads kReads>
__device__ __forceinline__ void store_bits(const NormWalk& walk, uint8_t* mask, const NormItem& item, uint32_t bits) {
  constexpr int kCount = NormVector<T>::kCount;
  if constexpr (kReads != NormReads::kApart) {
    mask[item.offset / kCount] = static_cast<uint8_t>(bits);
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (item.template has<kReads>(j)) mask[item.offset + j * walk.apart] = static_cast<uint8_t>(bits >> j & 1);
    }
  }
}
template <typename T, NormReads kReads>
__device__ __forceinline__ uint32_t load_bits(const NormWalk& walk, const uint8_t* mask, const NormItem& item) {
  constexpr int kCount = NormVector<T>::kCount;
  if constexpr (kReads != NormReads::kApart) return mask[item.offset / kCount];
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (item.template has<kReads>(j)) bits |= uint32_t{mask[item.offset + j * walk.apart]} << j;
  }
  return bits;
}

// Vectors of kOperands tensors on their way to a thread, which has places of its own in its block's shared memory.
template <typename T, int kOperands, int kStages>
struct NormRing {
  using Vector = NormVector<T>;
  static constexpr int kDepth = kStages;
  Vector vectors[kStages][kOperands][kNormThreads];

  __device__ static NormRing& shared() {
    extern __shared__ uint4 norm_smem[];
    return *static_cast<NormRing*>(ptx::block_memory(norm_smem));
  }
  // Its memory for a block's sums, once all threads have what they ordered.
  template <typename Sums>
  __device__ Sums* sums() {
    static_assert(kNormThreads * Vector::kCount * sizeof(Sums) <= sizeof(NormRing));
    __syncthreads();
    return reinterpret_cast<Sums*>(this);
  }
  template <NormReads kReads>
  __device__ __forceinline__ void fetch(const NormWalk& walk, int stage, int operand, const void* data,
                                        const NormItem& item) {
    Vector& to = vectors[stage][operand][threadIdx.x];
    const T* from = static_cast<const T*>(data) + item.offset;
    if constexpr (kReads != NormReads::kApart) {
      ptx::async_copy<sizeof(Vector)>(ptx::smem_address(&to), from, true);
    } else if constexpr (sizeof(T) >= 4) {
#pragma unroll
      for (int j = 0; j < Vector::kCount; ++j) {
        if (!item.template has<kReads>(j)) continue;
        ptx::async_copy<sizeof(T)>(ptx::smem_address(&to.element(j)), from + j * walk.apart, true);
      }
    } else {
      Vector read{};  // all of it before the first is stored
#pragma unroll
      for (int j = 0; j < Vector::kCount; ++j, from += walk.apart) {
        if (item.template has<kReads>(j)) read.element(j) = *from;
      }
      to = read;
    }
  }
  __device__ __forceinline__ const Vector& operator()(int stage, int operand) const {
    return vectors[stage][operand][threadIdx.x];
  }
};

// use(stage, item) of a thread's vectors, which fetch(stage, item) has ordered kStages - 1 vectors before, so that many
// are under way; start() when the first of them are. kBackwards: what another pass read last comes first, as the cache
// still has it. Of kChannels a group is one tile of each row, and vectors lie so far apart that an addition leads from
// one to the next.
template <typename Ring, bool kBackwards, NormReads kReads, typename Fetch, typename Start, typename Use>
__device__ __forceinline__ void each_vector(const NormPlace& place, Fetch&& fetch, Start&& start, Use&& use) {
  constexpr int kStages = Ring::kDepth;
  if (!place.works()) return;
  if constexpr (kReads == NormReads::kChannels) {
    const int32_t items = place.items_of_thread();
    const int64_t step = kBackwards ? -place.step : place.step;
    int64_t next = place.first + (kBackwards ? (items - 1) * place.step : 0), mine = next;
    int32_t ordered = 0;
    const auto order = [&](int stage) {
      if (ordered++ < items) fetch(stage, NormItem{next});
      next += step;
      ptx::async_copy_commit();
    };
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) order(stage);
    start();
#pragma unroll 1
    for (int32_t first = 0; first < items; first += kStages) {
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        ptx::async_copy_wait<kStages - 2>();
        if (first + stage < items) use(stage, NormItem{mine});
        mine += step;
        order((stage + kStages - 1) % kStages);
      }
    }
  } else {
    const int32_t items = place.items();
    constexpr int kElements = kReads == NormReads::kApart ? Ring::Vector::kCount : 0;
    NormCursor<kBackwards> cursor(place);
    NormItem ordered[kStages];
    const auto order = [&](int stage, int32_t item) {
      ordered[stage] = item < items ? cursor.template item<kElements>() : NormItem{-1};
      cursor.next();
      if (ordered[stage].offset >= 0) fetch(stage, ordered[stage]);
      ptx::async_copy_commit();
    };
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) order(stage, stage);
    start();
#pragma unroll 1
    for (int32_t first = 0; first < items; first += kStages) {
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        ptx::async_copy_wait<kStages - 2>();
        if (ordered[stage].offset >= 0) use(stage, ordered[stage]);
        order((stage + kStages - 1) % kStages, first + stage + kStages - 1);
      }
    }
  }
}

// use(place) of the walk's blocks that fall to this one.
template <typename T, NormReads kReads, bool kBackwards, typename Use>
__device__ __forceinline__ void each_place(const NormWalk& walk, Use&& use) {
  constexpr int kSideBySide = kReads == NormReads::kApart ? 1 : NormVector<T>::kCount;
  const auto mine = static_cast<int32_t>(blockIdx.x), step = static_cast<int32_t>(gridDim.x);
  const auto count = static_cast<int32_t>((walk.grid() - mine + step - 1) / step);
#pragma unroll 1
  for (int32_t i = 0; i < count; ++i) use(NormPlace(walk, kSideBySide, mine + (kBackwards ? count - 1 - i : i) * step));
}

// Adds up what a block's threads have of each channel, `mine` of each of their elements, and stores that to
// partial[field][part][channel]. Sums of a channel are added in pairs.
template <NormReads kReads, typename Sums, typename Ring, int kCount>
__device__ __forceinline__ void store_sums(const NormPlace& place, Sums (&mine)[kCount], Ring& ring,
                                           typename Sums::Value* partial) {
  Sums* sums = ring.template sums<Sums>();
  const NormWalk& walk = place.walk;
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t channels = place.channels_of_tile();
  if constexpr (kReads == NormReads::kChannels) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) sums[thread * kCount + j] = mine[j];
  } else {
#pragma unroll
    for (int half = kCount / 2; half > 0; half /= 2) {
#pragma unroll
      for (int j = 0; j < half; ++j) mine[j].add(mine[j + half]);
    }
    sums[thread] = mine[0];
  }
  __syncthreads();
  for (int32_t left = walk.fold; left > 1;) {
    const int32_t half = (left + 1) / 2;
    for (int32_t i = thread; i < (left - half) * channels; i += kNormThreads) {
      int32_t of_fold, channel;
      walk.tile_channels.divmod(i, of_fold, channel);
      const int32_t at = channel * walk.step_c + of_fold * walk.step;
      sums[at].add(sums[at + half * walk.step]);
    }
    left = half;
    __syncthreads();
  }
  const int64_t parts = walk.parts();
  for (int32_t c = thread; c < channels; c += kNormThreads) {
    int64_t part = place.slice, channel = place.group * channels + c;
    if (walk.channels_last) {
      const int64_t of_row = place.of_row(c);
      if (of_row >= walk.row_extent) break;
      part = part * walk.row_parts + (walk.row_parts > 1 ? of_row / walk.channels : 0);
      channel = place.channel(c);
    }
    if (channel >= walk.channels) break;
    sums[c * walk.step_c].store(partial + part * walk.channels + channel, parts * walk.channels);
  }
  __syncthreads();  // the next vectors come where the sums are
}

inline constexpr int kFinishStrands = 32;  // most threads that share a channel
inline constexpr int kFinishBatch = 8;     // sums that a thread reads at once

// finish(channel, total) of each channel, by one of the grid's threads. All parts have been stored.
template <typename Sums, typename Ring, typename Finish>
__device__ __forceinline__ void each_total(const NormWalk& walk, Ring& ring, const void* workspace, Finish&& finish) {
  const auto* partial = static_cast<const typename Sums::Value*>(workspace);
  const int64_t channels = walk.channels, parts = walk.parts();
  int strands = 1;
  while (strands < kFinishStrands && strands * kFinishBatch < parts) strands *= 2;
  const int lanes = kNormThreads / strands;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1), strand = static_cast<int>(threadIdx.x) / lanes;
#pragma unroll 1
  for (int64_t from = int64_t{blockIdx.x} * lanes; from < channels; from += int64_t{gridDim.x} * lanes) {
    Sums* sums = ring.template sums<Sums>() + lane;
    const int64_t channel = from + lane;
    Sums total{};
    if (channel < channels) {
#pragma unroll 1
      for (int64_t first = strand; first < parts; first += kFinishBatch * strands) {
        Sums batch[kFinishBatch] = {};
#pragma unroll
        for (int i = 0; i < kFinishBatch; ++i) {
          const int64_t part = first + i * strands;
          if (part < parts) batch[i] = Sums::load(partial + part * channels + channel, parts * channels);
        }
#pragma unroll
        for (int i = 0; i < kFinishBatch; ++i) total.add(batch[i]);
      }
    }
    sums[strand * lanes] = total;
    for (int half = strands / 2; half > 0; half /= 2) {
      __syncthreads();
      if (strand < half) sums[strand * lanes].add(sums[(strand + half) * lanes]);
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
