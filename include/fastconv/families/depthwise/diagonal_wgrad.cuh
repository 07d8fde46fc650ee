// Weight gradient of a depthwise convolution, or of narrow groups, by matrix products, channels side by side, 16 bits;
// see families/depthwise/diagonal_wgrad.h. Rows of x and dy pass through shared memory; a warp has the sums of all taps
// of its eight channels in registers.
#pragma once

#include "fastconv/families/depthwise/diagonal_wgrad.h"
#include "fastconv/families/depthwise/stage_pixel_rows.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {

// Those of a channel of x, one of eight of source `source`, with the filters of its group: of two that the lane has,
// which without groups is one. Lanes that store together have neighbouring channels and filters.
template <typename T, DiagonalWgradConfig kConfig>
__device__ __forceinline__ void store_diagonal_sums(const DiagonalWgradParams& params, int32_t slice, int32_t channel,
                                                    int source,
                                                    const float (&sums)[kConfig.taps][kConfig.tap_pairs()][4]) {
  constexpr int kTaps = kConfig.taps;
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t group_log2 = params.group_log2;
  const int32_t of_group = (source * kChunk + lane / 4) & ((1 << group_log2) - 1);
  if ((lane % 4 * 2 ^ lane / 4) >> (group_log2 > 0 ? group_log2 : 1) != 0) return;
  const int64_t tap_sums = int64_t{params.channels} << group_log2;
#pragma unroll 1
  for (int i = group_log2 > 0 ? 0 : lane / 4 % 2; i < 2; i += group_log2 > 0 ? 1 : 2) {
    const int32_t filter = channel + lane % 4 * 2 + i;
    if (filter >= params.channels) continue;
    const Strides& strides = params.filter_strides;
    float* partial =
        params.sums + (slice * tap_sums * params.taps_h * params.taps_w + (int64_t{filter} << group_log2) + of_group);
    T* dw = static_cast<T*>(params.dw) + filter * strides.n + of_group * strides.c;
#pragma unroll
    for (int r = 0; r < kTaps; ++r) {
#pragma unroll
      for (int s = 0; s < kTaps; ++s) {
        if (r >= params.taps_h || s >= params.taps_w) continue;
        const float (&pair)[4] = sums[r][s / 2];
        const float sum = i == 0 ? pair[s % 2 * 2] : pair[s % 2 * 2 + 1];
        if (params.sums != nullptr) {
          *partial = sum;
          partial += tap_sums;
        } else {
          dw[r * strides.h + s * strides.w] = narrow<T>(sum);
        }
      }
    }
  }
}

// A block has some chunks of channels and a slice of the rows of all tiles.
template <typename T, typename Line>
__global__ void __launch_bounds__(kDiagonalWgradThreads, DiagonalWgradConfig{Line::kConfig}.blocks())
    depthwise_diagonal_wgrad(const __grid_constant__ DiagonalWgradParams params) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  constexpr DiagonalWgradConfig kConfig{Line::kConfig};
  constexpr DepthwiseConfig kRows = kConfig.rows();
  constexpr int kSlots = kRows.slots(), kStride = kConfig.stride, kTaps = kConfig.taps, kUnits = kConfig.units();
  constexpr int kTapPairs = kConfig.tap_pairs(), kAhead = kConfig.ahead, kSources = kConfig.sources();
  constexpr int32_t kTargetPositions = kConfig.target_positions();
  static_assert(kUnits % 2 == 0 && kStride <= 2);
  extern __shared__ __align__(128) uint4 diagonal_rows[];
  const uint32_t smem = ptx::smem_address(diagonal_rows);
  const int32_t positions = params.positions, source_bytes = kDiagonalWgradWarps * positions * kChunkBytes;
  const int32_t stage_bytes = params.stage_bytes(kConfig);

  int32_t slice, first_channel;
  params.by_chunks.divmod(static_cast<int32_t>(blockIdx.x), slice, first_channel);
  first_channel *= kDiagonalWgradWarps * kChunk;
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0);
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t channel = first_channel + warp * kChunk;

  DiagonalWgradWalk staged(kConfig, params, slice), used = staged;
  StagedPixels<kConfig.source_copies()> source;
  StagedPixels<kConfig.target_copies()> target;
  auto stage = [&](uint32_t to) {
    if (staged.exists()) {
      if (staged.step == 0) {
        const DiagonalWgradTile tile(params, staged.tile(params));
        const int32_t from = first_channel + source.chunk() * kChunk;
        const bool exists = from < params.channels;
        source.place(params.source, params.source_strides, tile.image, from, exists,
                     [&](int32_t position) { return diagonal_wgrad_source(kConfig, params, tile, position); });
        target.place(params.target, params.target_strides, tile.image, from, exists,
                     [&](int32_t position) { return diagonal_wgrad_target(params, tile, position); });
      }
#pragma unroll
      for (int a = 0; a < kStride; ++a) {
        const int32_t row = staged.source_row(kConfig, params, a);
        if (row >= 0 && row < params.source_h) {
          source.copy(to + a * source_bytes, positions, row * params.source_strides.h);
        }
      }
      if (staged.has_target()) {
        const int64_t row = staged.row + staged.step;
        target.copy(to + kStride * source_bytes, kTargetPositions, row * params.target_strides.h);
      }
      staged.next(kConfig, params);
    }
    ptx::async_copy_commit();
  };
  for (int i = 0; i < kAhead; ++i) stage(smem + i * stage_bytes);

  float sums[kSources][kTaps][kTapPairs][4] = {};
  uint32_t slots[kSlots][kUnits][2] = {};  // rows of dy that meet one of x, the oldest first
  uint32_t windows[kUnits];                // of x: what the lane names of a product's matrices, from a row's begin
  const uint32_t last = smem + kAhead * stage_bytes;
#pragma unroll 1
  for (uint32_t current = smem; used.exists();
       used.next(kConfig, params), current = current == last ? smem : current + stage_bytes) {
    ptx::async_copy_wait<kAhead - 1>();
    __syncthreads();
    stage(current == smem ? last : current - stage_bytes);  // where the step before was
    if (channel >= params.channels) continue;

    // Matrices are eight columns at a pair's first tap, at its second, and then the next eight.
    if (used.step == 0) {
      const DiagonalWgradTile tile(params, used.tile(params));
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int32_t column = u * kDiagonalWgradPixels + lane / 16 * 8 + lane % 8;
        const int32_t position = diagonal_wgrad_position(kConfig, params, tile, column) +
                                 diagonal_wgrad_distance(kConfig, params, lane / 8 % 2);
        windows[u] = (warp / kSources * kSources * positions + position) * kChunkBytes;
      }
    }
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          slots[slot][u][i] = slot + 1 == kSlots || used.step == 0 ? 0 : slots[(slot + 1) % kSlots][u][i];
        }
      }
    }
    if (used.has_target()) {
      const uint32_t row = current + kStride * source_bytes + (warp * kTargetPositions + lane) * kChunkBytes;
#pragma unroll
      for (int u = 0; u < kUnits; u += 2) {
        uint32_t columns[4];
        ptx::ldmatrix4<true>(row + u * kDiagonalWgradPixels * kChunkBytes, columns);
#pragma unroll
        for (int i = 0; i < 4; ++i) slots[kSlots - 1][u + i / 2][i % 2] = columns[i];
      }
    }
#pragma unroll
    for (int a = 0; a < kStride; ++a) {
      const int32_t row = used.source_row(kConfig, params, a);
      if (row < 0 || row >= params.source_h) continue;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        if (u > 0 && u * kDiagonalWgradPixels >= params.columns) break;
#pragma unroll
        for (int i = 0; i < kSources * kTapPairs; ++i) {
          const int source = i / kTapPairs, pair = i % kTapPairs;
          uint32_t rows[4];
          ptx::ldmatrix4<true>(
              current + a * source_bytes + windows[u] + (source * positions + pair * (2 / kStride)) * kChunkBytes,
              rows);
#pragma unroll
          for (int slot = 0; slot < kSlots; ++slot) {
            // At the begin and the end of a run some slots are empty: their products are left out by a predicate.
            const int r = kRows.row_tap(slot, a), output = used.step - (kSlots - 1 - slot);
            if (r >= kTaps || output < 0 || output >= used.outputs) continue;
            ptx::mma(T{}, sums[source][r][pair], rows, slots[slot][u][0], slots[slot][u][1]);
          }
        }
      }
    }
  }

#pragma unroll
  for (int source = 0; source < kSources; ++source) {
    store_diagonal_sums<T, kConfig>(params, slice, channel, source, sums[source]);
  }
#endif
}

}  // namespace fastconv
