// Depthwise convolution of 16-bit elements by products with diagonal matrices, see tile/depthwise_diagonal.h: rows of
// the source pass through shared memory, and a warp adds each to all rows of targets that see it. Sums are float32.
#pragma once

#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/depthwise_definition.cuh"
#include "fastconv/tile/element.cuh"
#include "fastconv/tile/kept.cuh"
#include "fastconv/tile/stage_pixel_rows.cuh"

namespace fastconv {

// Rows of the filter as operands: lane i has the diagonal of channel i / 4 in positions i % 4 / 2 and two after that,
// for both targets of a pair. Neighbouring lanes have halves of a position's channels; those of the other half are
// zeros. Returns zeros, or NaNs if a tap is not finite.
template <typename T, DepthwiseDiagonalConfig kConfig>
__device__ __forceinline__ uint32_t load_diagonals(const DepthwiseDiagonalParams& params, int32_t chunk,
                                                   uint32_t (&diagonals)[kConfig.taps][kConfig.products()][4]) {
  const Strides& strides = params.filter_strides;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t channel = lane / 4, position = lane % 4 / 2;
  const bool mine = channel / 4 == lane % 2;
  const auto* filter = static_cast<const uint16_t*>(params.filter) + (chunk * kChunk + channel) * strides.n;
  // All are on their way before the first is looked at: what is no tap is loaded as another one, and becomes zero.
  uint32_t places[kConfig.products()][4];
#pragma unroll
  for (int i = 0; i < kConfig.products(); ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int32_t s = diagonal_tap(kConfig, params, kProductPositions * i + position + j / 2 * 2, j % 2);
      const bool exists = mine && s >= 0 && s < params.taps_w;
      places[i][j] = !exists ? 0 : channel % 4 == 3 ? 1u << 16 : 1;
      const uint16_t* tap = filter + (exists ? s : 0) * strides.w;
#pragma unroll
      for (int r = 0; r < kConfig.taps; ++r) diagonals[r][i][j] = tap[min(r, params.taps_h - 1) * strides.h];
    }
  }
  uint32_t not_finite = 0;
#pragma unroll
  for (int i = 0; i < kConfig.products(); ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t of_rows = 0;
#pragma unroll
      for (int r = 0; r < kConfig.taps; ++r) {
        diagonals[r][i][j] *= r < params.taps_h ? places[i][j] : 0;
        of_rows = add_zeros<T>(diagonals[r][i][j], of_rows);
      }
      not_finite = add_zeros<T>(of_rows, not_finite);
    }
  }
  return not_finite;
}

// Which two of every four elements of a row the products take: those of its channel, and one more.
__device__ __forceinline__ uint32_t diagonal_metadata() {
  const uint32_t channel = threadIdx.x % 32 / 4;
  return (min(channel % 4, 2u) | 3u << 2) * 0x11111111u;
}

// Output and input gradient. A block's warps are chunks of channels, times groups of columns.
template <typename T, typename Line>
__global__ void __launch_bounds__(32 * kMostDiagonalWarps, Line::kConfig.warps / kMostDiagonalWarps)
    depthwise_diagonal(const __grid_constant__ DepthwiseDiagonalParams params) {
#if __CUDA_ARCH__ >= 800
  constexpr DepthwiseDiagonalConfig kConfig = Line::kConfig;
  constexpr DepthwiseConfig kRows = kConfig.rows();
  constexpr int kSlots = kRows.slots(), kShift = kRows.shift(), kStageRows = kConfig.stage_rows();
  constexpr int kAhead = kConfig.ahead, kProducts = kConfig.products(), kAdvance = kConfig.advance();
  extern __shared__ uint4 diagonal_rows[];
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x / 32), 0);
  int32_t group, chunk;
  params.by_staged_chunks.divmod(warp, group, chunk);
  const DiagonalBlock block = diagonal_block(params, static_cast<int32_t>(blockIdx.x),
                                             params.by_staged_chunks.div(static_cast<int32_t>(blockDim.x / 32)));
  const StagedRow staged_row{kAdvance, params.staged.columns, params.staged.chunks};
  const uint32_t row_bytes = staged_row.bytes(), stage_bytes = kStageRows * row_bytes;
  const uint32_t ring = kept(ptx::smem_address(diagonal_rows));

  // Stages of all runs follow each other.
  StagePixelRows<kAdvance, kConfig.copies()> source(params.source, params.source_strides, params.source_w,
                                                    params.chunks, staged_row, params.by_staged_chunks,
                                                    diagonal_source_column(kConfig, params, block), block.chunk);
  int32_t next_run = block.run, stages = 0, image = 0, source_row = 0, source_end = 0;
  auto copy_stage = [&](uint32_t at) {
    while (stages == 0 && next_run < block.runs_end) {
      const DiagonalRun run(kConfig, params, next_run++);
      source.move(params.source_strides, run.image - image, run.source_row - source_row);
      stages = run.stages, image = run.image, source_row = run.source_row, source_end = run.source_end;
    }
    if (stages > 0) {
#pragma unroll
      for (int i = 0; i < kStageRows; ++i, ++source_row) {
        const bool exists = (kRows.rows_a_shift() == 1 || source_row >= 0) && source_row < source_end;
        source.copy(ring + at + i * row_bytes, exists);
        source.move(params.source_strides, 0, 1);
      }
      --stages;
    }
    ptx::async_copy_commit();
  };
#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) copy_stage(i * stage_bytes);

  const bool works = block.chunk + chunk < params.chunks && block.column + group * kDiagonalColumns < params.target_w;
  uint32_t diagonals[kConfig.taps][kProducts][4], not_finite = 0;
  float none[4] = {}, sums[kSlots][4];
  if (works) {
    not_finite = load_diagonals<T, kConfig>(params, block.chunk + chunk, diagonals);
    const int32_t at = (block.chunk + chunk) * kChunk + lane / 4;
    const float bias = params.bias != nullptr ? widen(static_cast<const T*>(params.bias)[at]) : 0.f;
#pragma unroll
    for (float& sum : none) sum = kept(bias);
  }
  auto copy = [](const float (&from)[4], float (&to)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = from[i];
  };
  const uint32_t metadata = kept(diagonal_metadata());
  // Lane i names the pixel of pair i % 8 in position i / 8.
  const uint32_t from = ring + staged_row.at(chunk, lane / 8) + (kPairs * group + lane % 8) * kChunkBytes;

  // And stores two channels of both columns of pair i / 4.
  const Strides& to_strides = params.target_strides;
  const int32_t column = block.column + group * kDiagonalColumns + lane / 4 * kPairColumns;
  const int32_t columns = params.target_w - column;
  const int32_t channel = (block.chunk + chunk) * kChunk + lane % 4 * 2;
  uint16_t* target = static_cast<uint16_t*>(params.target) + column * to_strides.w + channel;

  uint32_t at = kAhead * stage_bytes;        // of the stage before
  int32_t target_image = 0, target_row = 0;  // where `target` points
#pragma unroll 1
  for (int32_t index = block.run; index < block.runs_end; ++index) {
    const DiagonalRun run(kConfig, params, index);
    int32_t output = params.first_output;
    target += (run.image - target_image) * to_strides.n + (run.row + output - target_row) * to_strides.h;
    auto store_first = [&] {
#pragma unroll
      for (int j = 0; j < kShift; ++j, ++output, target += to_strides.h) {
        const bool done = output >= 0 && output < run.outputs;
#pragma unroll
        for (int k = 0; k < kPairColumns; ++k) {
          const uint32_t word = pack2<T>(sums[j][2 * k], sums[j][2 * k + 1]);
          not_finite = add_zeros<T>(done ? word : 0, not_finite);
          const uint32_t both = ptx::transpose_matrix(word);
          if (done && k < columns) *reinterpret_cast<uint32_t*>(target + k * to_strides.w) = both;
        }
      }
    };
#pragma unroll
    for (auto& slot : sums) copy(none, slot);
    if (works) {
#pragma unroll 1
      while (output < min(run.output, run.outputs)) store_first();
    }
#pragma unroll 1
    for (int32_t stage = 0; stage < run.stages; ++stage) {
      ptx::async_copy_wait<kAhead - 1>();
      __syncthreads();  // all have copied this stage, and read the one before it
      copy_stage(at);
      at = at == kAhead * stage_bytes ? 0 : at + stage_bytes;
      if (!works) continue;
#pragma unroll
      for (int row = 0; row < kStageRows; ++row) {
        uint32_t pixels[kProducts][4];
#pragma unroll
        for (int i = 0; i < kProducts; ++i) {
          const uint32_t position = i * (kProductPositions / kAdvance) * kChunkBytes;
          ptx::ldmatrix4<false>(from + at + row * row_bytes + position, pixels[i]);
        }
        // The oldest targets are done, and the others move up, with the first of a shift's products.
        const int a = row % kRows.rows_a_shift();
#pragma unroll
        for (int i = 0; i < kProducts; ++i) {
#pragma unroll
          for (int slot = 0; slot < kSlots; ++slot) {
            const int old = slot + (a == 0 && i == 0 ? kShift : 0), r = kRows.row_tap(slot, a);
            const float (&sum)[4] = old < kSlots ? sums[old] : none;
            if (r < kConfig.taps) {
              ptx::mma_sparse(T{}, sums[slot], diagonals[r][i], pixels[i], metadata, sum);
            } else if (old != slot) {
              copy(sum, sums[slot]);
            }
          }
        }
        if (a == kRows.last_row()) store_first();
      }
    }
    if (works) {
#pragma unroll 1
      while (output < run.outputs) {
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) copy(slot + kShift < kSlots ? sums[slot + kShift] : none, sums[slot]);
        store_first();
      }
    }
    target_image = run.image, target_row = run.row + output;
  }
  ptx::async_copy_wait<0>();
  if (!__any_sync(0xffffffffu, not_finite != 0)) return;
  // By definition: a zero beside the diagonals, or a row of padding, has met an infinity or NaN.
  for (int32_t index = block.run; index < block.runs_end; ++index) {
    const DiagonalRun run(kConfig, params, index);
    for (int i = 0; i < 2 * kPairColumns; ++i) {
      convolve_column_by_definition<T, kConfig.transposed(), kConfig.stride>(
          params, run.image, channel + i % 2, channel + i % 2, run.row, run.row + run.outputs, column + i / 2);
    }
  }
#endif
}

}  // namespace fastconv
