// A warp's rows of banded products: from device or shared memory to the operands' registers, and back. See
// banded.h.
#pragma once

#include "fastconv/families/depthwise/banded.h"
#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/epilogue.cuh"
#include "fastconv/tile/kept.cuh"
#include "fastconv/tile/staged_tensor.cuh"

namespace fastconv {

// Two neighbouring elements, as they are loaded: what is on its way must not be touched, not even to put it together. A
// load that is left out leaves what there was, so that zeros stay.
template <int kVector>
struct BandedWord;
template <>
struct BandedWord<2> {
  uint32_t both = 0;

  __device__ uint32_t word() const { return both; }
  __device__ void load(const uint16_t* from, bool first, bool) {
    if (first) ptx::load_ahead(from, both);
  }
  __device__ void load_shared(uint32_t from, bool first, bool) {
    if (first) ptx::load_shared_ahead(from, both);
  }
  static __device__ void store(uint16_t* to, uint32_t word, bool first, bool) {
    if (first) *reinterpret_cast<uint32_t*>(to) = word;
  }
};
template <>
struct BandedWord<1> {
  uint16_t low = 0, high = 0;

  __device__ uint32_t word() const { return low | uint32_t{high} << 16; }
  __device__ void load(const uint16_t* from, bool first, bool second) {
    if (first) ptx::load_ahead(from, low);
    if (second) ptx::load_ahead(from + 1, high);
  }
  __device__ void load_shared(uint32_t from, bool first, bool second) {
    if (first) ptx::load_shared_ahead(from, low);
    if (second) ptx::load_shared_ahead(from + sizeof(uint16_t), high);
  }
  static __device__ void store(uint16_t* to, uint32_t word, bool first, bool second) {
    if (first) to[0] = static_cast<uint16_t>(word);
    if (second) to[1] = static_cast<uint16_t>(word >> 16);
  }
};

// A row of a lane's two blocks, words of each, eight columns apart; zeros where there is no column.
template <int kVector, int kWords>
struct BandedRow {
  BandedWord<kVector> words[kBandedUnits][kWords];
};

// Where a warp's tile begins in a tensor: the same for all lanes, so that it takes no registers of theirs and is
// counted on for all at once; what differs between lanes is a distance from there.
__device__ __forceinline__ size_t tile_address(const void* tensor, const Strides& strides, int32_t image,
                                               int32_t channel, int32_t row, int32_t column) {
  const int64_t at = image * strides.n + channel * strides.c + row * strides.h + column;
  return __cvta_generic_to_global(tensor) + at * static_cast<int64_t>(sizeof(uint16_t));
}
template <typename T>
__device__ __forceinline__ T* lane_pointer(size_t tile, uint32_t bytes) {
  return static_cast<T*>(__cvta_global_to_generic(kept(tile + bytes)));
}

// Rows in device memory.
template <int kVector, int kWords, bool kBlank>
class BandedRows {
 public:
  using Row = BandedRow<kVector, kWords>;

  // `columns`: of the blocks' first words, none before `first`.
  __device__ BandedRows(const void* tensor, const Strides& strides, int64_t row_bytes, int32_t extent_w,
                        const BandedBlock (&blocks)[kBandedUnits], const int32_t (&columns)[kBandedUnits],
                        const BandedTile& tile, int32_t channel, const RowSpan& rows, int32_t first)
      : address_(tile_address(tensor, strides, tile.image, channel, rows.first, first)),
        row_bytes_(row_bytes),
        blank_(rows.blank),
        left_(rows.count) {
#pragma unroll
    for (int u = 0; u < kBandedUnits; ++u) {
      distances_[u] = static_cast<uint32_t>((blocks[u].image - tile.image) * strides.n + columns[u] - first) * 2;
#pragma unroll
      for (int i = 0; i < 2 * kWords; ++i) {
        const int32_t column = columns[u] + i / 2 * 8 + i % 2;
        exists_[u][i] = left_ > 0 && blocks[u].exists && column >= 0 && column < extent_w;
      }
    }
  }

  // After the last one, that again. A blank row leaves the zeros that it finds.
  __device__ void next(Row& row) {
    if (kBlank && blank_ > 0) {
      --blank_, --left_;
      return;
    }
#pragma unroll
    for (int u = 0; u < kBandedUnits; ++u) {
      const auto* from = lane_pointer<const uint16_t>(address_, distances_[u]);
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        row.words[u][i].load(from + 8 * i, exists_[u][2 * i], exists_[u][2 * i + 1]);
      }
    }
    if (--left_ > 0) ptx::step(address_, row_bytes_);
  }

 private:
  size_t address_;
  int64_t row_bytes_;
  uint32_t distances_[kBandedUnits];
  bool exists_[kBandedUnits][2 * kWords];
  int32_t blank_, left_;
};

// Rows of a tile's images in shared memory.
template <int kVector, int kWords, bool kBlank>
class StagedRows {
 public:
  using Row = BandedRow<kVector, kWords>;

  // `data`: of the first image.
  __device__ StagedRows(const StagedTensor& tensor, const BandedTile& tile, const BandedBlock (&blocks)[kBandedUnits],
                        const int32_t (&columns)[kBandedUnits], const RowSpan& rows, uint32_t data)
      : row_bytes_(tensor.row_bytes), blank_(rows.blank), left_(rows.count) {
#pragma unroll
    for (int u = 0; u < kBandedUnits; ++u) {
      const int32_t image = blocks[u].image;
      addresses_[u] = data + (image - tile.image) * tensor.image_bytes + tensor.lead(image, rows) + 2 * columns[u];
#pragma unroll
      for (int i = 0; i < 2 * kWords; ++i) {
        const int32_t at = columns[u] + i / 2 * 8 + i % 2;
        exists_[u][i] = kept(int{rows.existing() > 0 && blocks[u].exists && at >= 0 && at < tensor.columns});
      }
    }
  }

  // As of rows in device memory.
  __device__ void next(Row& row) {
    if (kBlank && blank_ > 0) {
      --blank_, --left_;
      return;
    }
#pragma unroll
    for (int u = 0; u < kBandedUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        row.words[u][i].load_shared(addresses_[u] + 16 * i, exists_[u][2 * i] != 0, exists_[u][2 * i + 1] != 0);
      }
    }
    if (--left_ <= 0) return;
#pragma unroll
    for (uint32_t& address : addresses_) address += row_bytes_;
  }

 private:
  uint32_t addresses_[kBandedUnits];
  int exists_[kBandedUnits][2 * kWords];
  int32_t row_bytes_, blank_, left_;
};

// What a lane needs to know of its tile.
template <DepthwiseBandedConfig kConfig>
struct BandedLane {
  static constexpr bool kBlank = kConfig.rows().rows_a_shift() > 1;
  using Windows = BandedRows<kConfig.word(), kConfig.words(), kBlank>;
  using Targets = BandedRows<kConfig.word(), 1, false>;
  using StagedWindows = StagedRows<kConfig.word(), kConfig.words(), kBlank>;
  using StagedTargets = StagedRows<kConfig.word(), 1, false>;
  BandedBlock blocks[kBandedUnits];

  __device__ BandedLane(const DepthwiseBandedParams& params, const BandedTile& tile) {
#pragma unroll
    for (int u = 0; u < kBandedUnits; ++u) blocks[u] = banded_block(kConfig, params, tile, threadIdx.x % 32, u);
  }

  __device__ Windows windows(const DepthwiseBandedParams& params, const BandedTile& tile, const RowSpan& rows) const {
    const int32_t columns[] = {blocks[0].source, blocks[1].source};
    return {params.source,
            params.source_strides,
            params.source_row_bytes,
            params.source_w,
            blocks,
            columns,
            tile,
            params.by_filters.div(tile.channel),
            rows,
            params.first_w};
  }
  // dy, for the weight gradient.
  __device__ Targets targets(const DepthwiseBandedParams& params, const BandedTile& tile, const RowSpan& rows) const {
    const int32_t columns[] = {blocks[0].target, blocks[1].target};
    return {params.target,
            params.target_strides,
            params.target_row_bytes,
            params.target_w,
            blocks,
            columns,
            tile,
            tile.channel,
            rows,
            0};
  }

  // The same in shared memory, at `data`.
  static __device__ StagedTensor staged_source(const DepthwiseBandedParams& params, const BandedTile& tile) {
    return {
        static_cast<const uint8_t*>(params.source) + 2 * params.by_filters.div(tile.channel) * params.source_strides.c,
        2 * params.source_strides.n, static_cast<int32_t>(params.source_row_bytes), params.source_w,
        params.image_bytes};
  }
  static __device__ StagedTensor staged_target(const DepthwiseBandedParams& params, const BandedTile& tile) {
    return {static_cast<const uint8_t*>(params.target) + 2 * tile.channel * params.target_strides.c,
            2 * params.target_strides.n, static_cast<int32_t>(params.target_row_bytes), params.target_w,
            params.target_image_bytes};
  }
  __device__ StagedWindows windows(const StagedTensor& tensor, const BandedTile& tile, const RowSpan& rows,
                                   uint32_t data) const {
    return {tensor, tile, blocks, {blocks[0].source, blocks[1].source}, rows, data};
  }
  __device__ StagedTargets targets(const StagedTensor& tensor, const BandedTile& tile, const RowSpan& rows,
                                   uint32_t data) const {
    return {tensor, tile, blocks, {blocks[0].target, blocks[1].target}, rows, data};
  }
};

// Rows of sums, as a product leaves them, one after the other from `first` on. Remembers infinities and NaNs.
template <typename T, int kVector>
class BandedStore {
 public:
  __device__ BandedStore(const DepthwiseBandedParams& params, const BandedTile& tile,
                         const BandedBlock (&blocks)[kBandedUnits], int32_t first)
      : address_(tile_address(params.target, params.target_strides, tile.image, tile.channel, tile.row + first, 0)),
        row_bytes_(params.target_row_bytes),
        finish_(Epilogue<T>(params.epilogue).of(tile.channel)) {
#pragma unroll
    for (int u = 0; u < kBandedUnits; ++u) {
      const int64_t image = (blocks[u].image - tile.image) * params.target_strides.n;
      distances_[u] = static_cast<uint32_t>(image + blocks[u].target) * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) exists_[u][i] = kept(int{blocks[u].exists && blocks[u].target + i < params.target_w});
    }
  }

  __device__ void next(const float (&sums)[4], bool exists) {
    if (exists) {
#pragma unroll
      for (int u = 0; u < kBandedUnits; ++u) {
        const uint32_t word = pack2<T>(finish_(sums[2 * u]), finish_(sums[2 * u + 1]));
        not_finite = add_zeros<T>(word, not_finite);
        BandedWord<kVector>::store(lane_pointer<uint16_t>(address_, distances_[u]), word, exists_[u][0] != 0,
                                   exists_[u][1] != 0);
      }
    }
    ptx::step(address_, row_bytes_);
  }

  uint32_t not_finite = 0;  // not 0 if one was not

 private:
  size_t address_;
  int64_t row_bytes_;
  FilterEpilogue<float> finish_;
  uint32_t distances_[kBandedUnits];
  int exists_[kBandedUnits][2];
};

// The filter's rows as operands: lane i has columns 2 * (i % 4) and the next of each word of the window, for target i /
// 4 of a block. Rows that the filter lacks are zero.
template <typename T, DepthwiseBandedConfig kConfig>
__device__ __forceinline__ void load_bands(const DepthwiseBandedParams& params, int32_t channel,
                                           uint32_t (&bands)[kConfig.taps][kConfig.words()]) {
  const Strides& strides = params.filter_strides;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto* filter = static_cast<const uint16_t*>(params.filter) + channel * strides.n;
#pragma unroll
  for (int i = 0; i < 2 * kConfig.words(); ++i) {
    const int32_t s = banded_tap(kConfig, params, 2 * (lane % 4) + i / 2 * 8 + i % 2, lane / 4);
    const bool exists = s >= 0 && s < params.taps_w;
    const uint16_t* tap = filter + s * strides.w;
#pragma unroll
    for (int r = 0; r < kConfig.taps; ++r, tap += strides.h) {
      const uint32_t value = exists && r < params.taps_h ? *tap : 0;
      bands[r][i / 2] = i % 2 == 0 ? value : bands[r][i / 2] | value << 16;
    }
  }
}

}  // namespace fastconv
