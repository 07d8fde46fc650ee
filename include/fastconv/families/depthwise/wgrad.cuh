// Weight gradient of a depthwise convolution: a thread keeps the sums of all taps of one channel, or of a few, and
// walks tiles of dy. Threads of a block, and then blocks, are added up in an order that does not change.
#pragma once

#include "fastconv/families/depthwise/rows.cuh"
#include "fastconv/families/depthwise/stage.cuh"
#include "fastconv/ptx/dependent_launch.cuh"

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
  Rows<T, kConfig, Gradient> gradient_queue(gradient, smem);
  int32_t row = 0;
  for (const int32_t before = min(rows, source.rows_before()); row + kConfig.rows_a_shift() <= before;
       row += kConfig.rows_a_shift()) {
    shift_slots<kConfig>(gradients);
    gradient_queue.pop_alone(gradient, gradients[kConfig.slots() - 1]);
  }
  source.skip(row);
  Rows<T, kConfig, Source> queue(source, smem + (kConfig.ahead + 1) * Gradient::Columns::kSlotBytes);
  for (; row < rows; row += kConfig.rows_a_shift() * kConfig.unroll) {
#pragma unroll
    for (int step = 0; step < kConfig.unroll; ++step) {
      shift_slots<kConfig>(gradients);
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

// The same of a patch, whose tiles the block's warps have; from the stage that it begins in on. Returns the last one.
template <typename T, DepthwiseConfig kConfig, typename Boxes>
__device__ __forceinline__ uint32_t add_patch(const StagedPatches<T, kConfig>& patches, Boxes& boxes, uint32_t stage,
                                              bool exists,
                                              float (&sums)[kConfig.taps][kConfig.taps_w][kConfig.channels()]) {
  constexpr int kChannels = kConfig.channels(), kStride = kConfig.rows_a_shift();
  const DepthwiseParams& params = patches.params;
  float gradients[kConfig.slots()][kConfig.columns][kChannels] = {};
  int32_t row = 0;  // of the box
  auto begin_step = [&] {
    if (row == params.target_stages.rows) stage = boxes.next(), row = 0;
    shift_slots<kConfig>(gradients);
    patches.read_gradient(stage, row, gradients[kConfig.slots() - 1]);
  };
  int32_t step = 0;
  for (; step < params.steps_before; ++step, ++row) begin_step();
  for (; step < params.patch_steps; step += kConfig.unroll) {
#pragma unroll
    for (int i = 0; i < kConfig.unroll; ++i, ++row) {
      begin_step();
#pragma unroll
      for (int a = 0; a < kStride; ++a) {
        typename StagedPatches<T, kConfig>::SourceRow values;
        patches.read_source(stage, row * kStride + a, values);
        if (!exists) continue;
        each_product<kConfig>(a, [&](int slot, int tap_h, int k, int tap_w, int b) {
#pragma unroll
          for (int c = 0; c < kChannels; ++c) sums[tap_h][tap_w][c] += values[b][c] * gradients[slot][k][c];
        });
      }
    }
  }
  return stage;
}

// Sums of a block: [part][tap][channel], depthwise_block_sums() for a tap. Where lanes are columns all threads have the
// same channel, and each warp is a part; otherwise there is one for each run of threads that have different channels, a
// strand. They are stored as [filter][tap], neighbours by neighbouring threads.
template <typename T, DepthwiseConfig kConfig>
__device__ __forceinline__ void store_sums(const DepthwiseParams& params, int32_t slice, int32_t chunk, int32_t strand,
                                           int32_t lane,
                                           const float (&sums)[kConfig.taps][kConfig.taps_w][kConfig.channels()],
                                           float* block_sums) {
  constexpr int kAcross = kConfig.taps_w, kAll = kConfig.taps * kAcross;
  constexpr int kChannels = kConfig.channels();
  constexpr bool kByChannel = kConfig.lanes == Lanes::kChannels;
  const int32_t channels = params.tiling.channels * kChannels;
  const int32_t parts = kDepthwiseThreads / (kByChannel ? params.tiling.channels : 32);
  const int32_t pitch = depthwise_block_sums(kConfig, params.tiling) / parts;
  __syncthreads();
#pragma unroll
  for (int tap = 0; tap < kAll; ++tap) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      float sum = sums[tap / kAcross][tap % kAcross][c];
      if constexpr (!kByChannel) {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
        if (threadIdx.x % 32 == 0) block_sums[(threadIdx.x / 32 * kAll + tap) * pitch] = sum;
      } else {
        block_sums[(strand * kAll + tap) * pitch + lane * kChannels + c] = sum;
      }
    }
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < channels * kAll; i += kDepthwiseThreads) {
    const int32_t c = i / kAll, tap = i % kAll;
    const int32_t filter = chunk * channels + c;
    if (filter >= params.channels) break;
    float sum = 0;
    for (int32_t part = 0; part < parts; ++part) sum += block_sums[(part * kAll + tap) * pitch + c];
    if (params.sums != nullptr) {
      params.sums[(int64_t{slice} * params.channels + filter) * kAll + tap] = sum;
    } else {
      const Strides& strides = params.filter_strides;
      static_cast<T*>(params.dw)[filter * strides.n + tap / kAcross * strides.h + tap % kAcross * strides.w] =
          narrow<T>(sum);
    }
  }
}

template <typename T, typename Line>
__global__ void __launch_bounds__(kDepthwiseThreads) depthwise_wgrad(const __grid_constant__ DepthwiseParams params) {
  ptx::follow_previous_kernel();
  constexpr DepthwiseConfig kConfig = Line::kConfig;
  constexpr int kChannels = kConfig.channels();
  extern __shared__ __align__(16) float depthwise_sums[];  // after the rows that are on their way

  int32_t slice, chunk, strand, lane;
  params.by_chunks.divmod(blockIdx.x, slice, chunk);
  params.by_channels.divmod(threadIdx.x, strand, lane);
  const int32_t strands = kDepthwiseThreads / params.tiling.channels;
  const int32_t channel = (chunk * params.tiling.channels + lane) * kChannels;
  const int64_t begin = slice * params.slice_tiles;
  const auto count = static_cast<int32_t>(min(params.slice_tiles, params.tiles - begin));

  float sums[kConfig.taps][kConfig.taps_w][kChannels] = {};
  if (channel < params.channels) {
    for (int32_t i = strand; i < count; i += strands) {
      const DepthwisePlace at = depthwise_tile(params, channel, static_cast<int32_t>(begin + i));
      add_products<T, kConfig>(params, at, ptx::smem_address(depthwise_sums), sums);
    }
  }

  store_sums<T, kConfig>(params, slice, chunk, strand, lane, sums, depthwise_sums);
}

// The same, where TMA brings both tensors for all warps of a block.
template <typename T, typename Line>
__global__ void __launch_bounds__(kDepthwiseThreads, 4)
    depthwise_wgrad_sm90(const __grid_constant__ DepthwiseParams params, const __grid_constant__ CUtensorMap source_map,
                         const __grid_constant__ CUtensorMap target_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if (threadIdx.x == 0) ptx::tma_prefetch(&source_map), ptx::tma_prefetch(&target_map);
  ptx::follow_previous_kernel();
  constexpr DepthwiseConfig kConfig = Line::kConfig;
  extern __shared__ __align__(128) float depthwise_stages[];

  int32_t slice, chunk;
  params.by_chunks.divmod(blockIdx.x, slice, chunk);
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto begin = static_cast<int32_t>(slice * params.slice_tiles);
  const auto count = static_cast<int32_t>(min(params.slice_tiles, params.tiles - begin));
  const int32_t first_channel = chunk * kStagedLanes * kConfig.channels();

  float sums[kConfig.taps][kConfig.taps_w][kConfig.channels()] = {};
  const StagedPatches<T, kConfig> patches(params, first_channel, begin, source_map, target_map);
  StagedBoxes boxes(patches, count * params.patch_boxes, ptx::smem_address(depthwise_stages));
  uint32_t stage = boxes.first();
  for (int32_t i = 0; i < count; ++i) {
    if (i > 0) stage = boxes.next();
    const int32_t column = depthwise_patch(params, 0, begin + i).column + warp * kConfig.columns;
    const bool exists = warp < params.tiling.columns && column < params.w.target_extent;
    stage = add_patch(patches, boxes, stage, exists, sums);
  }
  boxes.drain();
  float* const block_sums = depthwise_stages + kDepthwiseBarrierBytes / sizeof(float);
  store_sums<T, kConfig>(params, slice, chunk, warp, lane, sums, block_sums);
#endif
}

}  // namespace fastconv
