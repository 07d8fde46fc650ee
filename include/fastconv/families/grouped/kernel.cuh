// Output, or input gradient, of convolutions whose groups have few channels: a block stages a tile of pixels of some
// groups, and its warps take some pixels of one group at a time.
#pragma once

#include "fastconv/families/grouped/mainloop.cuh"
#include "fastconv/families/grouped/output.cuh"
#include "fastconv/families/grouped/stage.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/mbarrier.cuh"
#include "fastconv/tile/kept.cuh"

namespace fastconv {

template <typename T>
struct GroupedBuffers {
  const T* source;
  const T* filter;
  Epilogue<T> epilogue;
  T* target;
};

// The tile's filters as rows of shared memory: [set][tap and chunk][filter].
template <typename T, bool kRound, int kFilters>
__device__ __forceinline__ void stage_filters(const GroupedParams& params, const GroupedTile& tile, const T* filter,
                                              int32_t reduction, uint32_t taps, uint32_t smem) {
  constexpr int kChunk = kGroupedRowBytes / sizeof(T);
#pragma unroll 1
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < tile.groups * params.sets * kFilters * reduction;
       i += kGroupedThreads) {
    // Neighbours have neighbouring taps, which mostly lie side by side.
    const auto row = static_cast<int32_t>(static_cast<uint32_t>(i) / static_cast<uint32_t>(reduction));
    const int32_t depth = i - row * reduction, set = row / kFilters, k = row % kFilters;
    int32_t group, set_of_group;
    params.by_sets.divmod(set, group, set_of_group);
    const uint2 tap = ptx::load_shared8(taps + depth * 8);
    const int32_t produced = set_of_group * kFilters + k;
    const int32_t channels = produced < params.filters ? static_cast<int32_t>(tap.y) : 0;
    // Offsets within a group fit 32 bits.
    const int32_t first = produced * static_cast<int32_t>(params.filter.n) + static_cast<int32_t>(tap.x);
    const auto step = static_cast<int32_t>(params.filter.c);
    const T* from = kept_global(filter + ((tile.first_group + group) * params.filter_group + first));
    alignas(16) T values[kChunk];
#pragma unroll
    for (int c = 0; c < kChunk; ++c) values[c] = c < channels ? from[c * step] : narrow<T>(0.f);
    if constexpr (kRound) {
#pragma unroll
      for (int c = 0; c < kChunk; ++c) values[c] = __uint_as_float(to_tf32(values[c]));
    }
    ptx::store_shared16(smem + set * params.set_bytes + (depth * kFilters + k) * kGroupedRowBytes,
                        *reinterpret_cast<const uint4*>(values));
  }
}

template <typename T, GroupedOperands kOperands, int kFilters>
__global__ void __launch_bounds__(kGroupedThreads, GroupedConfig{kOperands, kFilters}.blocks_per_sm())
    grouped_conv(const __grid_constant__ GroupedParams params, const GroupedBuffers<T> buffers) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  constexpr GroupedConfig kConfig{kOperands, kFilters};
  constexpr bool kRound = kOperands == GroupedOperands::kTf32;
  constexpr bool kChains = kOperands == GroupedOperands::kFloat;  // of sums that are put aside and added
  constexpr int kWarps = kGroupedThreads / 32, kPixels = kConfig.unit_pixels();
  using Sums =
      std::conditional_t<kOperands == GroupedOperands::kFloat, GroupedFloatSums, GroupedTensorSums<T, kFilters / 8>>;
  extern __shared__ uint4 grouped_smem[];
  const uint32_t smem = ptx::smem_address(grouped_smem);
  const uint32_t table = smem + params.table_at, taps = smem + params.taps_at;
  const auto thread = static_cast<int32_t>(threadIdx.x), warp = thread / 32;

  const GroupedTile tile(params, static_cast<int32_t>(blockIdx.x));
  if (tile.rows <= 0 || tile.columns <= 0) return;
  const int32_t reduction = tile.reduction(params);
  const GroupedStage<T, kRound> stage(params.rows, buffers.source, tile, tile.halo_h, tile.halo_w, smem);
  if (reduction > 0) stage.start();
#pragma unroll 1
  for (int32_t i = thread; i < grouped_table_entries(reduction); i += kGroupedThreads) {
    const GroupedTap tap = i < reduction ? tile.tap(params, i) : GroupedTap{};
    ptx::store_shared4(table + Sums::entry(i) * 4, tap.row);
    if (i < reduction) ptx::store_shared8(taps + i * 8, make_uint2(tap.filter, tap.channels));
  }
  const int32_t channels = tile.groups * params.filters;
#pragma unroll 1
  for (int32_t i = thread; buffers.epilogue.bias != nullptr && i < channels; i += kGroupedThreads) {
    stage_epilogue(smem + params.epilogue_at, i, buffers.epilogue.of(tile.first_group * params.filters + i));
  }
  __syncthreads();
  stage_filters<T, kRound, kFilters>(params, tile, buffers.filter, reduction, taps, smem + params.filter_at);
  if (reduction > 0) stage.land();
  __syncthreads();

  const GroupedOutput<T, kConfig> output{params,
                                         GroupedTargets(params, tile),
                                         kept_global(buffers.target + tile.first_target(params)),
                                         smem + params.buffer_at + warp * params.buffer_bytes,
                                         buffers.epilogue.bias == nullptr ? 0 : smem + params.epilogue_at,
                                         buffers.epilogue.bounds};
  const auto runs = static_cast<int32_t>(params.by_runs.divisor);
  const int32_t units = (tile.rows * params.tile_q + kPixels - 1) / kPixels * runs;
#pragma unroll 1
  for (int32_t unit = warp; unit < units; unit += kWarps) {
    int32_t pixel, run, row, column, group, set_of_group;
    params.by_runs.divmod(unit, pixel, run);
    pixel *= kPixels;
    GroupedOperandRows rows;
    rows.table = table;
    params.named.find(pixel + Sums::pixel(), row, column);
#pragma unroll
    for (int m = 0; m < kGroupedBlocks; ++m) {
      rows.pixel[m] = GroupedTile::row_of(params, row, column);
      params.named.advance(row, column);
    }
    // Several sets of a run are those of as many groups that have one each.
    const int32_t first_set = run * params.run, sets = min(params.run, tile.groups * params.sets - first_set);
    params.by_sets.divmod(first_set, group, set_of_group);
    rows.group = smem + group * params.rows.chunks * params.rows.plane_bytes;
    rows.filter = smem + params.filter_at + first_set * params.set_bytes;
    const int32_t first = group * params.filters + set_of_group * kFilters;  // channel of the tile
    const int32_t filters = params.filters - set_of_group * kFilters;
    for (int32_t set = 0; set < sets; ++set) {
      Sums sums;
      int32_t begin = 0;
      do {
        const int32_t end = kChains ? min(begin + params.chain, reduction) : reduction;
        sums.multiply(rows, begin, end);
        output.put(sums, set * params.filters, first, filters, begin > 0, end == reduction);
        begin = end;
      } while (kChains && begin < reduction);
      rows.group += params.rows.chunks * params.rows.plane_bytes;
      rows.filter += params.set_bytes;
    }
    __syncwarp();
    output.drain(pixel, first, (sets - 1) * params.filters + min(filters, kFilters));
    __syncwarp();  // others may put what is next
  }
#endif
}

}  // namespace fastconv
