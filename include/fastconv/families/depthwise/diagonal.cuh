// Depthwise convolution of 16-bit elements, and of narrow groups, by products with (block) diagonal matrices, see
// families/depthwise/diagonal.h: rows of the source pass through shared memory, and a warp adds each to all rows of
// targets that see it. Sums are float32.
#pragma once

#include "fastconv/families/depthwise/definition.cuh"
#include "fastconv/families/depthwise/stage_pixel_rows.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/epilogue.cuh"
#include "fastconv/tile/kept.cuh"
#include "fastconv/tile/split.h"

namespace fastconv {

__device__ __forceinline__ ReducedChannels reduced_channels(const DepthwiseDiagonalParams& params, int32_t channel) {
  const int32_t first = params.first_of_group(channel);
  return {first, params.group_channels,
          first * params.filter_strides.n + (channel - first) * params.target_channel_step, params.source_channel_step};
}

// Where the chunks lie that a chunk's products see, from the first of them on.
template <DepthwiseDiagonalConfig kConfig>
__device__ __forceinline__ int32_t first_source(int32_t chunk) {
  return chunk / kConfig.sources() * kConfig.sources();
}

// Elements of the filter as they are loaded: of 16 bits none is converted.
template <typename T>
using FilterBits = std::conditional_t<sizeof(T) == 2, uint16_t, T>;

// A word of an operand: two channels of 16 bits, or one that is rounded to TF32.
__device__ __forceinline__ uint32_t filter_word(const uint16_t* tap, int64_t channel_step) {
  return *tap | uint32_t{tap[channel_step]} << 16;
}
__device__ __forceinline__ uint32_t filter_word(const float* tap, int64_t) { return to_tf32(*tap); }

// Rows of the filter, whose chunk 0 begins at `filter`, as operands: lane i has the diagonal of channel i / 4 in
// positions i % 4 / 2 and two after that, for both targets of a pair. Neighbouring lanes have halves of a position's
// channels; those of the other half are zeros. Returns zeros, or NaNs if a tap is not finite.
template <typename T, DepthwiseDiagonalConfig kConfig>
__device__ __forceinline__ uint32_t load_diagonals(const DepthwiseDiagonalParams& params, const uint16_t* filter,
                                                   int32_t chunk,
                                                   uint32_t (&diagonals)[kConfig.taps][kConfig.operands()][4]) {
  const Strides& strides = params.filter_strides;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t channel = lane / 4, position = lane % 4 / 2;
  const bool mine = channel / 4 == lane % 2;
  const int shift = channel % 4 == 3 ? 16 : 0;
  filter += (chunk * kChunk + channel) * strides.n;
  uint32_t not_finite = 0;
#pragma unroll
  for (int i = 0; i < kConfig.products(); ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int32_t s = diagonal_tap(kConfig, params, kReadPieces * i + position + j / 2 * 2, j % 2);
      const bool exists = mine && s >= 0 && s < params.taps_w;
      const uint16_t* tap = filter + s * strides.w;
#pragma unroll
      for (int r = 0; r < kConfig.taps; ++r, tap += strides.h) {
        diagonals[r][i][j] = exists && r < params.taps_h ? uint32_t{*tap} << shift : 0;
        not_finite = add_zeros<T>(diagonals[r][i][j], not_finite);
      }
    }
  }
  return not_finite;
}

// The same of groups: a product has two pieces of 16 bytes of each pair, which are two positions or, of float32, two
// halves of a chunk, and lane i words i % 4 of each, for target channel i / 4. Operands are those of the first source,
// then those of the second.
template <typename T, DepthwiseDiagonalConfig kConfig>
__device__ __forceinline__ uint32_t load_group_blocks(const DepthwiseDiagonalParams& params,
                                                      const FilterBits<T>* filter, int32_t chunk,
                                                      uint32_t (&blocks)[kConfig.taps][kConfig.operands()][4]) {
  constexpr int kPieces = kConfig.pieces(), kOfWord = 4 / sizeof(T);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t channel = chunk * kChunk + lane / 4, first = first_source<kConfig>(chunk) * kChunk + lane % 4 * kOfWord;
  const ReducedChannels channels = reduced_channels(params, channel);
  uint32_t not_finite = 0;
#pragma unroll
  for (int i = 0; i < kConfig.operands(); ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j >= 2 && kConfig.is_half(i)) continue;
      const int piece = 2 * (i % kConfig.products()) + j / 2;
      const int32_t source = first + i / kConfig.products() * kChunk + piece % kPieces * 4;
      const bool mine = params.first_of_group(source) == params.first_of_group(channel);
      const int32_t s = diagonal_tap(kConfig, params, piece / kPieces, j % 2);
      const bool exists = mine && s >= 0 && s < params.taps_w;
      const FilterBits<T>* tap = filter + channels.filter +
                                 (source - params.first_of_group(source)) * channels.filter_step +
                                 s * params.filter_strides.w;
#pragma unroll
      for (int r = 0; r < kConfig.taps; ++r, tap += params.filter_strides.h) {
        uint32_t& word = blocks[r][i][j];
        word = exists && r < params.taps_h ? filter_word(tap, channels.filter_step) : 0;
        not_finite = add_zeros<T>(word, not_finite);
      }
    }
    if (kConfig.boxed()) __syncwarp();  // all loads at once would take more registers than there are
  }
  return not_finite;
}

template <typename T, DepthwiseDiagonalConfig kConfig>
__device__ __forceinline__ uint32_t load_operands(const DepthwiseDiagonalParams& params, const FilterBits<T>* filter,
                                                  int32_t chunk,
                                                  uint32_t (&operands)[kConfig.taps][kConfig.operands()][4]) {
  if constexpr (kConfig.groups()) {
    return load_group_blocks<T, kConfig>(params, filter, chunk, operands);
  } else {
    return load_diagonals<T, kConfig>(params, filter, chunk, operands);
  }
}

// Product number `index` of a row, by all pixels that are loaded of each source.
template <typename T, DepthwiseDiagonalConfig kConfig>
__device__ __forceinline__ void multiply_pixels(int index, const uint32_t (&operand)[4],
                                                const uint32_t (&pixels)[kConfig.sources()][kConfig.reads()][4],
                                                uint32_t metadata, const float (&from)[4], float (&sum)[4]) {
  if constexpr (kConfig.groups()) {
    const int product = index % kConfig.products();
    const uint32_t (&read)[4] = pixels[index / kConfig.products()][product / 2];
    const int first = product % 2 * 2;
    if (kConfig.is_half(index)) return ptx::mma(T{}, sum, operand[0], operand[1], read[first], from);
    ptx::mma(T{}, sum, operand, read[first], read[first + 1], from);
  } else {
    ptx::mma_sparse(T{}, sum, operand, pixels[0][index], metadata, from);
  }
}

// Which two of every four elements of a row the products take: those of its channel, and one more.
__device__ __forceinline__ uint32_t diagonal_metadata() {
  const uint32_t channel = threadIdx.x % 32 / 4;
  return (min(channel % 4, 2u) | 3u << 2) * 0x11111111u;
}

__device__ __forceinline__ void copy_sums(const float (&from)[4], float (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = from[i];
}

// By definition: rows [row, last) of the two channels and columns that a lane stores, `column` and the next.
template <typename T, DepthwiseDiagonalConfig kConfig>
__device__ void compute_by_definition(const DepthwiseDiagonalParams& params, int32_t image, int32_t chunk, int32_t row,
                                      int32_t last, int32_t column) {
  for (int i = 0; i < 2 * kPairColumns; ++i) {
    const auto channel = static_cast<int32_t>(chunk * kChunk + threadIdx.x % 4 * 2 + i % 2);
    convolve_column_by_definition<T, kConfig.transposed(), kConfig.stride>(
        params, image, reduced_channels(params, channel), channel, row, last, column + i / 2);
  }
}

// Output and input gradient. A block's warps are chunks of channels, times runs of columns.
template <typename T, typename Line>
__global__ void __launch_bounds__(32 * kMostDiagonalWarps, Line::kConfig.warps / kMostDiagonalWarps)
    depthwise_diagonal(const __grid_constant__ DepthwiseDiagonalParams params) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  constexpr DepthwiseDiagonalConfig kConfig = Line::kConfig;
  constexpr DepthwiseConfig kRows = kConfig.rows();
  constexpr int kSlots = kRows.slots(), kShift = kRows.shift(), kStageRows = kConfig.stage_rows();
  constexpr int kAhead = kConfig.ahead, kOperands = kConfig.operands(), kAdvance = kConfig.advance();
  constexpr int kReads = kConfig.reads(), kSources = kConfig.sources();
  extern __shared__ uint4 diagonal_rows[];
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x / 32), 0);
  int32_t group, chunk;
  params.by_staged_chunks.divmod(warp, group, chunk);
  const DiagonalBlock block = diagonal_block(params, static_cast<int32_t>(blockIdx.x),
                                             params.by_staged_chunks.div(static_cast<int32_t>(blockDim.x / 32)));
  const int32_t outputs = min(params.run_rows, params.target_h - block.row);
  const int32_t stages = params.stages(kConfig, outputs);

  // Stages without rows that exist are left out, as if the filter were finite.
  const int32_t first_row = params.first_row(kConfig, block.row), first_stage = max(0, -first_row / kStageRows);
  const int32_t row_end = min(params.source_h, first_row + params.seen(kConfig, outputs));
  const int32_t stage_end = min(stages, (row_end - first_row + kStageRows - 1) / kStageRows);

  const uint32_t row_bytes = params.staged.bytes(), stage_bytes = kStageRows * row_bytes;
  const uint32_t ring = kept(ptx::smem_address(diagonal_rows));
  int32_t source_row = first_row + first_stage * kStageRows;
  StagePixelRows<kAdvance, kConfig.copies()> source(
      params.source, params.source_strides, params.source_w, params.chunks, params.staged, params.by_staged_chunks,
      block.image, source_row, diagonal_source_column(kConfig, params, block), block.chunk);
  auto copy_stage = [&](uint32_t at) {
    if (source_row < row_end) {
#pragma unroll
      for (int a = 0; a < kStageRows; ++a) {
        const int32_t row = source_row + a;
        source.next(ring + at + a * row_bytes, kStageRows == 1 || (row >= 0 && row < row_end));
      }
    }
    ptx::async_copy_commit();
    source_row += kStageRows;
  };
#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) copy_stage(i * stage_bytes);

  const bool works = block.chunk + chunk < params.chunks && block.column + group * kDiagonalColumns < params.target_w;
  uint32_t diagonals[kConfig.taps][kOperands][4], not_finite = 0;
  float none[4] = {};  // not const: nvcc takes no conditional of two kinds of arrays
  float sums[kSlots][4] = {};
  if (works) {
    not_finite =
        load_operands<T, kConfig>(params, static_cast<const uint16_t*>(params.filter), block.chunk + chunk, diagonals);
  }
  const FilterEpilogue<float> finish =
      Epilogue<T>(params.epilogue).of((block.chunk + chunk) * kChunk + lane / 4, works);
  const uint32_t metadata = kept(diagonal_metadata());
  // Lane i names the pixel of pair i % 8 in position i / 8.
  const int32_t position = lane / 8;
  const uint32_t from =
      ring + first_source<kConfig>(chunk) * params.staged.chunk_bytes() +
      (position % kAdvance * params.staged.plane() + position / kAdvance + kPairs * group + lane % 8) * kChunkBytes;

  // And stores two channels of both columns of pair i / 4.
  const Strides& to_strides = params.target_strides;
  const int32_t column = block.column + group * kDiagonalColumns + lane / 4 * kPairColumns;
  int32_t output = params.first_output;
  char* target =
      static_cast<char*>(params.target) + 2 * (block.image * to_strides.n + (block.row + output) * to_strides.h +
                                               column * to_strides.w + (block.chunk + chunk) * kChunk + lane % 4 * 2);
  const int64_t target_row_bytes = 2 * to_strides.h, target_column_bytes = 2 * to_strides.w;
  auto store_first = [&] {
#pragma unroll
    for (int j = 0; j < kShift; ++j, ++output, target += target_row_bytes) {
      if (output < 0 || output >= outputs) continue;
#pragma unroll
      for (int k = 0; k < kPairColumns; ++k) {
        const uint32_t word = pack2<T>(finish(sums[j][2 * k]), finish(sums[j][2 * k + 1]));
        not_finite = add_zeros<T>(word, not_finite);
        const uint32_t channels = ptx::transpose_matrix(word);
        if (column + k < params.target_w) *reinterpret_cast<uint32_t*>(target + k * target_column_bytes) = channels;
      }
    }
  };

  auto skip_stage = [&] {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot)
      copy_sums(slot + kShift < kSlots ? sums[slot + kShift] : none, sums[slot]);
    store_first();
  };
  int32_t stage = 0;
  if (works) {
    for (; stage < min(first_stage, stages); ++stage) skip_stage();
  }
  uint32_t at = kAhead * stage_bytes;  // of the stage before
#pragma unroll 1
  for (stage = first_stage; stage < stage_end; ++stage) {
    ptx::async_copy_wait<kAhead - 1>();
    __syncthreads();  // all have copied this stage, and read the one before it
    copy_stage(at);
    at = at == kAhead * stage_bytes ? 0 : at + stage_bytes;
    if (!works) continue;
#pragma unroll
    for (int a = 0; a < kStageRows; ++a) {
      uint32_t pixels[kSources][kReads][4];
#pragma unroll
      for (int i = 0; i < kSources * kReads; ++i) {
        const int source = i / kReads, read = i % kReads;
        ptx::ldmatrix4<false>(from + at + a * row_bytes + source * params.staged.chunk_bytes() +
                                  read * (kConfig.read_positions() / kAdvance) * kChunkBytes,
                              pixels[source][read]);
      }
      // The oldest targets are done, and the others move up, with the first of a row's products.
#pragma unroll
      for (int i = 0; i < kOperands; ++i) {
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot) {
          const int old = slot + (a == 0 && i == 0 ? kShift : 0), r = kRows.row_tap(slot, a);
          const float (&sum)[4] = old < kSlots ? sums[old] : none;
          if (r < kConfig.taps) {
            multiply_pixels<T, kConfig>(i, diagonals[r][i], pixels, metadata, sum, sums[slot]);
          } else if (old != slot) {
            copy_sums(sum, sums[slot]);
          }
        }
      }
      if (a == kRows.last_row()) store_first();
    }
  }
  if (works) {
    for (; stage < stages; ++stage) skip_stage();
  }
  ptx::async_copy_wait<0>();
  if (!__any_sync(0xffffffffu, not_finite != 0)) return;
  // By definition: a zero beside the diagonals, or a row of padding, has met an infinity or NaN.
  compute_by_definition<T, kConfig>(params, block.image, block.chunk + chunk, block.row, block.row + outputs, column);
#endif
}

}  // namespace fastconv
