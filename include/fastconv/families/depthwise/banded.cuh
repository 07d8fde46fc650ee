// Depthwise convolution of 16-bit elements by matrix products with banded matrices, see families/depthwise/banded.h:
// rows of the source pass through a warp, which adds each to all rows of targets that see it. Sums are float32.
#pragma once

#include "fastconv/families/depthwise/banded_rows.cuh"
#include "fastconv/families/depthwise/definition.cuh"
#include "fastconv/ptx/dependent_launch.cuh"

namespace fastconv {

// By definition, the targets that a warp's lanes have: where a zero of the band met an infinity or NaN.
template <typename T, typename Line>
__device__ void convolve_by_definition(const DepthwiseBandedParams& params, const BandedTile& tile) {
  constexpr DepthwiseBandedConfig kConfig = Line::kConfig;
  const int32_t last = min(tile.row + params.run_rows, params.target_h);
  const int32_t lane = kept(static_cast<int32_t>(threadIdx.x)) % 32;  // is rarely needed: not kept in registers
  const ReducedChannels channels{params.by_filters.div(tile.channel), 1, tile.channel * params.filter_strides.n, 0};
  for (int32_t i = 0; i < 2 * kBandedUnits; ++i) {
    const BandedBlock at = banded_block(kConfig, params, tile, lane, i / 2);
    if (!at.exists) continue;
    convolve_column_by_definition<T, kConfig.transposed(), kConfig.stride>(params, at.image, channels, tile.channel,
                                                                           tile.row, last, at.target + i % 2);
  }
}

// One row of windows, multiplied by a band: products are added to `old`.
template <typename T, DepthwiseBandedConfig kConfig, typename Row>
__device__ __forceinline__ void multiply(const Row& windows, const uint32_t (&band)[kConfig.words()], float (&sums)[4],
                                         const float (&old)[4]) {
  auto word = [&](int unit, int i) { return windows.words[unit][i].word(); };
  if constexpr (kConfig.words() == 1) {
    ptx::mma(T{}, sums, word(0, 0), word(1, 0), band[0], old);
  } else {
#pragma unroll
    for (int i = 0; i < kConfig.words(); i += 2) {
      const uint32_t a[] = {word(0, i), word(1, i), word(0, i + 1), word(1, i + 1)};
      if (i == 0) {
        ptx::mma(T{}, sums, a, band[i], band[i + 1], old);
      } else {
        ptx::mma(T{}, sums, a, band[i], band[i + 1]);
      }
    }
  }
}

__device__ __forceinline__ void copy(const float (&from)[4], float (&to)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) to[k] = from[k];
}

// Output and input gradient: a warp's rows of the source, the first ones on their way, become targets.
template <typename T, typename Line, typename Source, typename Row>
__device__ __forceinline__ void convolve_rows(const DepthwiseBandedParams& params, const BandedTile& tile,
                                              const BandedLane<Line::kConfig>& lane, const RowSpan& rows,
                                              int32_t outputs, Source& source, Row (&queue)[Line::kConfig.ahead],
                                              uint32_t (&bands)[Line::kConfig.taps][Line::kConfig.words()]) {
  constexpr DepthwiseBandedConfig kConfig = Line::kConfig;
  constexpr DepthwiseConfig kRows = kConfig.rows();
  constexpr int kSlots = kRows.slots(), kShift = kRows.shift(), kStep = kRows.rows_a_shift();
  constexpr int kAhead = kConfig.ahead;
  static_assert(kAhead % kStep == 0);
  float none[4] = {};  // not const: nvcc takes no conditional of two kinds of arrays
  float sums[kSlots][4] = {};
  int32_t output = kRows.first_output() + rows.skipped / kStep * kShift;
  BandedStore<T, kConfig.word()> target(params, tile, lane.blocks, output);
  // Rows of padding are left out, as if the filter were finite.
#pragma unroll
  for (const auto& band : bands) {
#pragma unroll
    for (const uint32_t word : band) target.not_finite = add_zeros<T>(word, target.not_finite);
  }
  auto store_first = [&] {
#pragma unroll
    for (int j = 0; j < kShift; ++j, ++output) target.next(sums[j], output >= 0 && (kShift == 1 || output < outputs));
  };
  for (int32_t left = rows.count; left > 0; left -= kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int a = i % kStep;
      if (i > 0 && i >= left) break;
      // The oldest targets are done, and the others move up.
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const int from = slot + (a == 0 ? kShift : 0), r = kRows.row_tap(slot, a);
        const float (&old)[4] = from < kSlots ? sums[from] : none;
        if (r < kConfig.taps) {
          multiply<T, kConfig>(queue[i], bands[r], sums[slot], old);
        } else if (from != slot) {
          copy(old, sums[slot]);
        }
      }
      source.next(queue[i]);
      if (a == kRows.last_row()) store_first();
    }
  }
  while (output < outputs) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) copy(slot + kShift < kSlots ? sums[slot + kShift] : none, sums[slot]);
    store_first();
  }
  if (__any_sync(0xffffffffu, target.not_finite != 0)) convolve_by_definition<T, Line>(params, tile);
}

// A tile's rows that a warp sees.
template <DepthwiseBandedConfig kConfig>
__device__ __forceinline__ RowSpan seen_rows(const DepthwiseBandedParams& params, const BandedTile& tile,
                                             int32_t outputs) {
  constexpr DepthwiseConfig kRows = kConfig.rows();
  return {params.first_row(kConfig, tile.row), kRows.seen(outputs), params.source_h, kRows.rows_a_shift()};
}

// A block is a warp, which reads its rows from device memory.
template <typename T, typename Line>
__global__ void __launch_bounds__(32) depthwise_banded(const __grid_constant__ DepthwiseBandedParams params) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  constexpr DepthwiseBandedConfig kConfig = Line::kConfig;
  const BandedTile tile = banded_tile(params, static_cast<int32_t>(blockIdx.x));
  const int32_t outputs = min(params.run_rows, params.target_h - tile.row);
  const RowSpan rows = seen_rows<kConfig>(params, tile, outputs);
  const BandedLane<kConfig> lane(params, tile);
  auto source = lane.windows(params, tile, rows);
  typename BandedLane<kConfig>::Windows::Row queue[kConfig.ahead];
#pragma unroll
  for (auto& row : queue) source.next(row);
  uint32_t bands[kConfig.taps][kConfig.words()];
  load_bands<T, kConfig>(params, tile.channel, bands);
  convolve_rows<T, Line>(params, tile, lane, rows, outputs, source, queue, bands);
#endif
}

// A block's warps have all columns of some rows, which TMA brings at once.
template <typename T, typename Line>
__global__ void __launch_bounds__(32 * kBandedMostWarps, Line::kConfig.warps / kBandedMostWarps)
    depthwise_banded_sm90(const __grid_constant__ DepthwiseBandedParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ptx::follow_previous_kernel();
  constexpr DepthwiseBandedConfig kConfig = Line::kConfig;
  using Lane = BandedLane<kConfig>;
  extern __shared__ __align__(128) uint8_t smem_raw[];
  const uint32_t data = ptx::smem_address(smem_raw);
  const uint32_t barrier = data + params.tile_images * params.image_bytes;
  const int32_t warps = static_cast<int32_t>(blockDim.x / 32);
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x / 32), 0);
  const BandedTile tile = banded_tile(params, static_cast<int32_t>(blockIdx.x) * warps + warp);
  const int32_t outputs = min(params.run_rows, params.target_h - tile.row);
  const RowSpan rows = seen_rows<kConfig>(params, tile, outputs);
  const StagedTensor staged = Lane::staged_source(params, tile);
  if (warp == 0) {
    const auto image = static_cast<int32_t>(threadIdx.x);
    if (image == 0) {
      ptx::mbarrier_init(barrier, params.tile_images);
      ptx::mbarrier_init_fence();
    }
    __syncwarp();
    if (image < params.tile_images) {
      if (tile.image + image < params.images) {
        staged.copy(tile.image + image, rows, data + image * params.image_bytes, barrier);
      }
      ptx::mbarrier_arrive(barrier);
    }
  }
  const Lane lane(params, tile);
  uint32_t bands[kConfig.taps][kConfig.words()];
  load_bands<T, kConfig>(params, tile.channel, bands);
  auto source = lane.windows(staged, tile, rows, data);
  typename Lane::StagedWindows::Row queue[kConfig.ahead];
  __syncthreads();  // the barrier exists
  ptx::mbarrier_wait(barrier, 0);
#pragma unroll
  for (auto& row : queue) source.next(row);
  convolve_rows<T, Line>(params, tile, lane, rows, outputs, source, queue, bands);
#endif
}

// The same where the filter may have any rows. They lie in shared memory, so that a lane finds the columns of any band:
// twice, with an even and an odd column at the begin of a word, and zeros around. Rows of targets are multiplied some
// at a time, by rows of zeros where not all of them see a row. All warps of a block have one filter.
template <typename T, typename Line>
__global__ void __launch_bounds__(kBandedThreads)
    depthwise_banded_any_rows(const __grid_constant__ DepthwiseBandedParams params) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  constexpr DepthwiseBandedConfig kConfig = Line::kConfig;
  constexpr int kAhead = kConfig.ahead, kPitch = kConfig.filter_pitch();
  extern __shared__ __align__(16) uint16_t banded_filter[];
  int32_t channel, first_tile;
  params.by_channels.divmod(blockIdx.x, first_tile, channel);
  const Strides& strides = params.filter_strides;
  const auto* filter = static_cast<const uint16_t*>(params.filter) + channel * strides.n;
  constexpr int kGroup = kBandedGroup;
  uint32_t not_finite = 0;
  for (int32_t i = threadIdx.x; i < kConfig.filter_bytes(params.taps_h) / 2; i += kBandedThreads) {
    const int32_t r = i / (2 * kPitch) - (kGroup - 1), odd = i / kPitch % 2, s = i % kPitch + odd - kBandedBlock;
    const bool exists = r >= 0 && r < params.taps_h && s >= 0 && s < params.taps_w;
    banded_filter[i] = exists ? filter[r * strides.h + s * strides.w] : uint16_t{0};
    not_finite = add_zeros<T>(banded_filter[i], not_finite);
  }
  not_finite = __syncthreads_or(static_cast<int>(not_finite)) != 0;
  const int32_t index = first_tile * (kBandedThreads / 32) + __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (index >= params.tiles) return;
  const BandedTile tile = banded_tile(params, channel, index);

  const int32_t outputs = min(kBandedRows, params.target_h - tile.row);
  const RowSpan rows(params.first_row(kConfig, tile.row), outputs + params.taps_h - 1, params.source_h);
  const BandedLane<kConfig> lane(params, tile);
  auto source = lane.windows(params, tile, rows);
  typename BandedLane<kConfig>::Windows::Row queue[kAhead];
#pragma unroll
  for (auto& row : queue) source.next(row);
  // Of the column of the first word.
  const auto i = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t tap = banded_tap(kConfig, params, 2 * (i % 4), i / 4) + kBandedBlock;
  const uint16_t* band =
      banded_filter + (kGroup - 1) * 2 * kPitch + tap % 2 * (kPitch - 1) + tap + rows.skipped * 2 * kPitch;

  float sums[kBandedRows][4] = {};
#pragma unroll 1
  for (int32_t row = 0; row < rows.count; row += kAhead) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j, band += 2 * kPitch) {
      if (row + j >= rows.count) break;
#pragma unroll
      for (int group = 0; group < kBandedRows; group += kGroup) {
        const int32_t r = rows.skipped + row + j - group;
        if (r < 0 || r >= params.taps_h + kGroup - 1) continue;
#pragma unroll
        for (int output = group; output < group + kGroup; ++output) {
          uint32_t words[kConfig.words()];
#pragma unroll
          for (int k = 0; k < kConfig.words(); ++k) {
            words[k] = *reinterpret_cast<const uint32_t*>(band - output * 2 * kPitch + 8 * k);
          }
          multiply<T, kConfig>(queue[j], words, sums[output], sums[output]);
        }
      }
      source.next(queue[j]);
    }
  }
  BandedStore<T, kConfig.word()> target(params, tile, lane.blocks, 0);
  if (not_finite != 0) target.not_finite = ~0u;  // NaNs, which stay
#pragma unroll
  for (int output = 0; output < kBandedRows; ++output) target.next(sums[output], output < outputs);
  if (__any_sync(0xffffffffu, target.not_finite != 0)) convolve_by_definition<T, Line>(params, tile);
#endif
}

// Weight gradient. Here the blocks are what is summed: a product of the windows' columns and dy's, of which each pair
// belongs to a tap, or to none. A block of threads has some rows of one filter and a slice of its tiles.
template <DepthwiseBandedConfig kConfig>
struct BandedSlice {
  int32_t channel, index, first_tap;
  int32_t warp, first, end;  // tiles: of a warp the first, of all the end

  __device__ explicit BandedSlice(const DepthwiseBandedParams& params) {
    params.by_parts.divmod(blockIdx.x, index, first_tap);
    params.by_slices.divmod(index, channel, index);
    first_tap *= kConfig.taps;
    warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    first = index * params.slice_tiles + warp, end = min(params.tiles, (index + 1) * params.slice_tiles);
  }
};

// What a tile adds up: rows of the source, and of dy from the first on that one of them meets.
template <DepthwiseBandedConfig kConfig>
struct BandedSums {
  static constexpr int kStep = kConfig.rows().rows_a_shift(), kSlots = kConfig.rows().slots();
  static constexpr int kParts = kConfig.words() / 2;
  static constexpr int kMet = kSlots - 1;  // rows of dy that the first row meets, but for the last one
  using Sums = float[kConfig.taps][kParts][4];
  using Shared = float[kConfig.taps][kBandedBlock][kConfig.window()];  // of a warp: row, target of a block, column
  int32_t outputs;
  RowSpan rows;
  int32_t passed, first_target;
  RowSpan targets;

  __device__ BandedSums(const DepthwiseBandedParams& params, const BandedTile& tile, int32_t first_tap)
      : outputs(min(params.run_rows, params.target_h - tile.row)),
        rows(params.first_row(kConfig, tile.row) + first_tap, kConfig.rows().seen(outputs), params.source_h, kStep),
        passed(rows.skipped / kStep),
        first_target(max(0, passed - kMet)),
        targets(tile.row + first_target, outputs - first_target, params.target_h) {}

  template <typename T, typename Windows, typename Targets>
  __device__ __forceinline__ void add(T element, Windows source, Targets target, Sums& sums) const {
    constexpr DepthwiseConfig kRows = kConfig.rows();
    constexpr int kAhead = kConfig.ahead;
    static_assert(kAhead % kStep == 0);
    typename Windows::Row queue[kAhead];
    typename Targets::Row met[kMet > 0 ? kMet : 1], target_queue[kAhead / kStep];
#pragma unroll
    for (int i = 0; i < kMet; ++i) {
      if (i + passed - first_target >= kMet) target.next(met[i]);
    }
#pragma unroll
    for (auto& row : queue) source.next(row);
#pragma unroll
    for (auto& row : target_queue) target.next(row);
    uint32_t slots[kSlots][kBandedUnits] = {};
    auto shift_slots = [&](const auto& row, bool exist) {
#pragma unroll
      for (int slot = 0; slot + 1 < kSlots; ++slot) {
#pragma unroll
        for (int u = 0; u < kBandedUnits; ++u) slots[slot][u] = slots[slot + 1][u];
      }
#pragma unroll
      for (int u = 0; u < kBandedUnits; ++u) {
        const uint32_t word = ptx::transpose_matrix(row.words[u][0].word());
        slots[kSlots - 1][u] = exist ? word : 0;
      }
    };
#pragma unroll
    for (int i = 0; i < kMet; ++i) shift_slots(met[i], passed - kMet + i < outputs);
    int32_t next_target = passed;
    for (int32_t left = rows.count; left > 0; left -= kAhead) {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int a = j % kStep;
        if (j > 0 && j >= left) break;
        if (a == 0) {
          shift_slots(target_queue[j / kStep], next_target++ < outputs);
          target.next(target_queue[j / kStep]);
        }
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          uint32_t columns[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            columns[k] = ptx::transpose_matrix(queue[j].words[k / 2][2 * part + k % 2].word());
          }
#pragma unroll
          for (int slot = 0; slot < kSlots; ++slot) {
            const int r = kRows.row_tap(slot, a);
            if (r < kConfig.taps) ptx::mma(element, sums[r][part], columns, slots[slot][0], slots[slot][1]);
          }
        }
        source.next(queue[j]);
      }
    }
  }
};

// The sums of all warps, added up.
template <typename T, DepthwiseBandedConfig kConfig>
__device__ __forceinline__ void store_taps(const DepthwiseBandedParams& params, const BandedSlice<kConfig>& slice,
                                           const typename BandedSums<kConfig>::Sums& sums,
                                           typename BandedSums<kConfig>::Shared* shared) {
  constexpr int kWarps = kBandedThreads / 32, kParts = BandedSums<kConfig>::kParts;
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < kConfig.taps; ++r) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        shared[slice.warp][r][2 * (lane % 4) + k % 2][16 * part + 8 * (k / 2) + lane / 4] = sums[r][part][k];
      }
    }
  }
  __syncthreads();
  const int32_t first = slice.first_tap * params.taps_w, all = params.taps_h * params.taps_w;
  const int32_t taps = min(all - first, kConfig.taps * params.taps_w);
  for (int32_t i = threadIdx.x; i < taps; i += kBandedThreads) {
    const int32_t r = i / params.taps_w, s = i - r * params.taps_w;
    float sum = 0;
    for (int32_t from = 0; from < kWarps; ++from) {
      for (int32_t k = 0; k < kBandedBlock; ++k) sum += shared[from][r][k][s - params.first_tap + kConfig.stride * k];
    }
    if (params.sums != nullptr) {
      params.sums[(int64_t{slice.index} * params.channels + slice.channel) * all + first + i] = sum;
    } else {
      const Strides& strides = params.filter_strides;
      const int64_t at = slice.channel * strides.n + (slice.first_tap + r) * strides.h + s * strides.w;
      static_cast<T*>(params.dw)[at] = narrow<T>(sum);
    }
  }
}

template <typename T, typename Line>
__global__ void __launch_bounds__(kBandedThreads)
    depthwise_banded_wgrad(const __grid_constant__ DepthwiseBandedParams params) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  constexpr DepthwiseBandedConfig kConfig = Line::kConfig;
  const BandedSlice<kConfig> slice(params);
  typename BandedSums<kConfig>::Sums sums = {};
  for (int32_t i = slice.first; i < slice.end; i += kBandedThreads / 32) {
    const BandedTile tile = banded_tile(params, slice.channel, i);
    const BandedSums<kConfig> rows(params, tile, slice.first_tap);
    const BandedLane<kConfig> lane(params, tile);
    rows.add(T{}, lane.windows(params, tile, rows.rows), lane.targets(params, tile, rows.targets), sums);
  }
  __shared__ typename BandedSums<kConfig>::Shared shared[kBandedThreads / 32];
  store_taps<T, kConfig>(params, slice, sums, shared);
#endif
}

// Each warp has room for the rows of one tile, which TMA brings while other warps multiply.
template <typename T, typename Line>
__global__ void __launch_bounds__(kBandedThreads, Line::kConfig.warps * 32 / kBandedThreads)
    depthwise_banded_wgrad_sm90(const __grid_constant__ DepthwiseBandedParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ptx::follow_previous_kernel();
  constexpr DepthwiseBandedConfig kConfig = Line::kConfig;
  using Lane = BandedLane<kConfig>;
  extern __shared__ __align__(128) uint8_t smem_raw[];
  const BandedSlice<kConfig> slice(params);
  const auto image = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t source_bytes = params.tile_images * params.image_bytes;
  const int32_t target_bytes = params.tile_images * params.target_image_bytes;
  // Barriers come first and stay: sums do not take their place. (Where they did, a word of one changed after it had
  // been waited for, in some blocks of many.)
  const uint32_t barrier = ptx::smem_address(smem_raw) + slice.warp * kBandedBarrierBytes;
  uint8_t* data = smem_raw + kBandedBarriersBytes;
  const uint32_t source_data = ptx::smem_address(data) + slice.warp * (source_bytes + target_bytes);
  const uint32_t target_data = source_data + source_bytes;
  if (image == 0) {
    ptx::mbarrier_init(barrier, params.tile_images);
    ptx::mbarrier_init_fence();
  }
  uint32_t parity = 0;
  typename BandedSums<kConfig>::Sums sums = {};
  for (int32_t i = slice.first; i < slice.end; i += kBandedThreads / 32, parity ^= 1) {
    const BandedTile tile = banded_tile(params, slice.channel, i);
    const BandedSums<kConfig> rows(params, tile, slice.first_tap);
    const StagedTensor source = Lane::staged_source(params, tile), target = Lane::staged_target(params, tile);
    __syncwarp();  // the barrier exists, and the last tile's rows are read
    if (image < params.tile_images) {
      if (tile.image + image < params.images) {
        source.copy(tile.image + image, rows.rows, source_data + image * params.image_bytes, barrier);
        target.copy(tile.image + image, rows.targets, target_data + image * params.target_image_bytes, barrier);
      }
      ptx::mbarrier_arrive(barrier);
    }
    const Lane lane(params, tile);
    ptx::mbarrier_wait(barrier, parity);
    rows.add(T{}, lane.windows(source, tile, rows.rows, source_data),
             lane.targets(target, tile, rows.targets, target_data), sums);
  }
  __syncthreads();  // all rows are read
  store_taps<T, kConfig>(params, slice, sums, reinterpret_cast<typename BandedSums<kConfig>::Shared*>(data));
#endif
}

}  // namespace fastconv
