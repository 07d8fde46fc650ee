// Weight gradient of a depthwise convolution: a thread keeps the sums of all taps of one channel, or of a few, and
// walks tiles of dy. Threads of a block, and then blocks, are added up in an order that does not change.
#pragma once

#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/depthwise_rows.cuh"

namespace fastconv {

// Of a run of rows.
template <typename T, DepthwiseConfig kConfig>
__device__ __forceinline__ void add_products(const DepthwiseParams& params, const DepthwisePlace& at, uint32_t smem,
                                             float (&sums)[kConfig.taps][kConfig.taps_w][kConfig.channels()]) {
  constexpr int kColumns = kConfig.columns, kChannels = kConfig.channels();
  using Source = SourceRows<T, kConfig>;
  using Gradient = RowReader<T, kConfig, kColumns, RowAccesses::target(kConfig)>;

  const int32_t outputs = params.h.outputs(at.row), step = params.h.target_step();
  const Strides& strides = params.target_strides;
  Gradient gradient(static_cast<const T*>(params.target) + at.image * strides.n + at.channel * strides.c, strides,
                    at.column, params.w.target_step(), params.w.target_extent, at.row, step,
                    at.row + (outputs - 1) * step + 1);
  Source source(params, at);
  // Rows of padding are left out.
  const int32_t rows = min(kConfig.seen(outputs), source.rows_until_end());
  float gradients[kConfig.slots()][kColumns][kChannels] = {};
  const float none[kChannels] = {};
  Rows<T, kConfig, Gradient> gradient_queue(gradient, smem);
  int32_t row = 0;
  for (const int32_t before = min(rows, source.rows_before()); row + kConfig.rows_a_shift() <= before;
       row += kConfig.rows_a_shift()) {
    shift_slots<kConfig>(gradients, none);
    gradient_queue.pop_alone(gradient, gradients[kConfig.slots() - 1]);
  }
  source.skip(row);
  Rows<T, kConfig, Source> queue(source, smem + (kConfig.ahead + 1) * Gradient::Columns::kSlotBytes);
  for (; row < rows; row += kConfig.rows_a_shift() * kConfig.unroll) {
#pragma unroll
    for (int step = 0; step < kConfig.unroll; ++step) {
      shift_slots<kConfig>(gradients, none);
      gradient_queue.pop(gradient, gradients[kConfig.slots() - 1]);
#pragma unroll
      for (int a = 0; a < kConfig.rows_a_shift(); ++a) {
        typename Source::Row values;
        queue.pop(source, values);
        each_product<kConfig>(a, [&](int slot, int tap_h, int k, int tap_w, int b) {
#pragma unroll
          for (int c = 0; c < kChannels; ++c) sums[tap_h][tap_w][c] += values[b][c] * gradients[slot][k][c];
        });
      }
    }
  }
  gradient_queue.drain();
  queue.drain();
}

// Sums of a block: [part][channel][tap]. Where lanes are columns all threads have the same channel, and each warp is a
// part; otherwise there is one for each run of threads that have different channels.
template <typename T, typename Line>
__global__ void __launch_bounds__(kDepthwiseThreads) depthwise_wgrad(const __grid_constant__ DepthwiseParams params) {
  ptx::follow_previous_kernel();
  constexpr DepthwiseConfig kConfig = Line::kConfig;
  constexpr int kRows = kConfig.taps, kAcross = kConfig.taps_w, kAll = kRows * kAcross;
  constexpr int kChannels = kConfig.channels();
  constexpr bool kByChannel = kConfig.lanes == Lanes::kChannels;
  extern __shared__ __align__(16) float depthwise_sums[];  // after the rows that are on their way

  int32_t slice, chunk, strand, lane;
  params.by_chunks.divmod(blockIdx.x, slice, chunk);
  params.by_channels.divmod(threadIdx.x, strand, lane);
  const int32_t strands = kDepthwiseThreads / params.tiling.channels;
  const int32_t channel = (chunk * params.tiling.channels + lane) * kChannels;
  const int64_t begin = slice * params.slice_tiles;
  const auto count = static_cast<int32_t>(min(params.slice_tiles, params.tiles - begin));

  float sums[kRows][kAcross][kChannels] = {};
  if (channel < params.channels) {
    for (int32_t i = strand; i < count; i += strands) {
      const DepthwisePlace at = depthwise_tile(params, channel, static_cast<int32_t>(begin + i));
      add_products<T, kConfig>(params, at, ptx::smem_address(depthwise_sums), sums);
    }
  }

  __syncthreads();
  const int32_t channels = params.tiling.channels * kChannels;
  int32_t parts = strands;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int s = 0; s < kAcross; ++s) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        float sum = sums[r][s][c];
        if constexpr (!kByChannel) {
#pragma unroll
          for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
          if (threadIdx.x % 32 == 0) depthwise_sums[threadIdx.x / 32 * kAll + r * kAcross + s] = sum;
        } else {
          depthwise_sums[((r * kAcross + s) * strands + strand) * channels + lane * kChannels + c] = sum;
        }
      }
    }
  }
  if constexpr (!kByChannel) parts = kDepthwiseThreads / 32;
  __syncthreads();
  for (int32_t i = threadIdx.x; i < channels * kAll; i += kDepthwiseThreads) {
    const int32_t tap = i / channels, c = i - tap * channels;
    const int32_t filter = chunk * channels + c;
    if (filter >= params.channels) continue;
    float sum = 0;
    for (int32_t part = 0; part < parts; ++part) {
      sum += kByChannel ? depthwise_sums[(tap * parts + part) * channels + c] : depthwise_sums[part * kAll + tap];
    }
    if (params.sums != nullptr) {
      params.sums[(int64_t{slice} * params.channels + filter) * kAll + tap] = sum;
    } else {
      const Strides& strides = params.filter_strides;
      static_cast<T*>(params.dw)[filter * strides.n + tap / kAcross * strides.h + tap % kAcross * strides.w] =
          narrow<T>(sum);
    }
  }
}

}  // namespace fastconv
