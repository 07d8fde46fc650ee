// Depthwise convolution by ordinary multiply-adds, bound by memory or by them: rows of the source pass through a
// thread, which holds a few columns of one channel, or of a few, and adds each row to all outputs that see it. Sums are
// float32.
#pragma once

#include "fastconv/families/depthwise/rows.cuh"
#include "fastconv/families/depthwise/stage.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/epilogue.cuh"

namespace fastconv {

// Of one thread.
template <typename T, DepthwiseConfig kConfig>
struct DepthwiseTaps {
  static constexpr int kChannels = kConfig.channels();

  float filter[kConfig.taps][kConfig.taps_w][kChannels];
  FilterEpilogue<float> finish[kChannels];

  __device__ DepthwiseTaps(const DepthwiseParams& params, int32_t channel) {
    const T* taps = static_cast<const T*>(params.filter) + channel * params.filter_strides.n;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      finish[c] = Epilogue<T>(params.epilogue).of(channel + c);
#pragma unroll
      for (int r = 0; r < kConfig.taps; ++r) {
#pragma unroll
        for (int s = 0; s < kConfig.taps_w; ++s) {
          const Strides& step = params.filter_strides;
          filter[r][s][c] = widen(taps[c * step.n + r * step.h + s * step.w]);
        }
      }
    }
  }
  __device__ bool finite() const {
    bool finite = true;
#pragma unroll
    for (const auto& row : filter) finite = finite && all_finite(row);
    return finite;
  }
};

// The outputs of a thread. Rows of padding are left out, unless products with zero are not zero.
// begin(first, end): the queue of these rows.
template <typename T, DepthwiseConfig kConfig, typename Source, typename Begin>
__device__ __forceinline__ void slide(const DepthwiseParams& params, const DepthwisePlace& at,
                                      const DepthwiseTaps<T, kConfig>& taps, bool finite, Source& source,
                                      const Begin& begin) {
  constexpr int kColumns = kConfig.columns, kChannels = kConfig.channels();
  using Target = RowColumns<T, kConfig, kColumns, RowAccesses::target(kConfig)>;

  const int32_t outputs = params.h.outputs(at.row);
  const Strides& strides = params.target_strides;
  const Target columns(at.column, params.w.target_step(), at.exists ? params.w.target_extent : 0, strides.w);
  T* target = static_cast<T*>(params.target) + at.image * strides.n + at.channel * strides.c + at.row * strides.h +
              at.column * strides.w;
  const auto target_stride = static_cast<int32_t>(params.h.target_step() * strides.h);

  int32_t output = kConfig.first_output(), row = 0, rows = kConfig.seen(outputs);
  if (finite) {
    rows = min(rows, source.rows_until_end());
    const int32_t shifts = min(source.rows_before() / kConfig.rows_a_shift(), -output / kConfig.shift());
    row = shifts * kConfig.rows_a_shift();
    output += shifts * kConfig.shift();
  }
  target += int64_t{output} * target_stride;

  constexpr int kRowsAtOnce = kConfig.rows_a_shift() * kConfig.unroll;
  auto&& queue = begin(row, rows + kRowsAtOnce - 1);
  float sums[kConfig.slots()][kColumns][kChannels] = {};
  auto store_first = [&] {
#pragma unroll
    for (int j = 0; j < kConfig.shift(); ++j) {
      if (output >= 0 && output < outputs) {
#pragma unroll
        for (auto& column : sums[j]) {
#pragma unroll
          for (int c = 0; c < kChannels; ++c) column[c] = taps.finish[c](column[c]);
        }
        columns.store(target, sums[j]);
      }
      ++output;
      target += target_stride;
    }
  };
  for (; row < rows; row += kRowsAtOnce) {
#pragma unroll
    for (int step = 0; step < kConfig.unroll; ++step) {
      shift_slots<kConfig>(sums);
#pragma unroll
      for (int a = 0; a < kConfig.rows_a_shift(); ++a) {
        typename Source::Row values;
        queue.pop(source, values);
        each_product<kConfig>(a, [&](int slot, int tap_h, int k, int tap_w, int b) {
#pragma unroll
          for (int c = 0; c < kChannels; ++c) sums[slot][k][c] += values[b][c] * taps.filter[tap_h][tap_w][c];
        });
        if (a == kConfig.last_row()) store_first();
      }
    }
  }
  while (output < outputs) {
    shift_slots<kConfig>(sums);
    store_first();
  }
}

// Output and input gradient.
template <typename T, typename Line>
__global__ void __launch_bounds__(kDepthwiseThreads) depthwise(const __grid_constant__ DepthwiseParams params) {
  ptx::follow_previous_kernel();
  constexpr DepthwiseConfig kConfig = Line::kConfig;
  using Source = SourceRows<T, kConfig>;
  extern __shared__ __align__(16) unsigned char depthwise_smem[];

  const DepthwisePlace at = depthwise_place(kConfig, params, blockIdx.x, threadIdx.x);
  if (!at.exists) return;
  const DepthwiseTaps<T, kConfig> taps(params, at.channel);
  Source source(params, at);
  slide(params, at, taps, taps.finite(), source, [&](int32_t first, int32_t) {
    source.skip(first);
    return Rows<T, kConfig, Source>(source, ptx::smem_address(depthwise_smem));
  });
}

// The same, where TMA brings the source for all threads of a block.
template <typename T, typename Line>
__global__ void __launch_bounds__(kDepthwiseThreads, 4)
    depthwise_sm90(const __grid_constant__ DepthwiseParams params, const __grid_constant__ CUtensorMap map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if (threadIdx.x == 0) ptx::tma_prefetch(&map);
  ptx::follow_previous_kernel();
  constexpr DepthwiseConfig kConfig = Line::kConfig;
  extern __shared__ __align__(128) unsigned char depthwise_stages[];

  const DepthwisePlace at = depthwise_place(kConfig, params, blockIdx.x, threadIdx.x);
  const StagedSource<T, kConfig> source(params, at, map);
  const int32_t most_rows = kConfig.seen(params.h.outputs(at.row)) + kConfig.rows_a_shift() * kConfig.unroll - 1;
  StagedRows<T, kConfig> rows(source, most_rows, ptx::smem_address(depthwise_stages));
  const DepthwiseTaps<T, kConfig> taps(params, at.exists ? at.channel : source.channel());
  slide(params, at, taps, __syncthreads_and(taps.finite()), source, [&](int32_t first, int32_t end) -> auto& {
    rows.begin(source, first, end);
    return rows;
  });
  rows.drain();
#endif
}

}  // namespace fastconv
