// Depthwise convolution by ordinary multiply-adds, bound by memory or by them: rows of the source pass through a
// thread, which holds a few columns of one channel, or of a few, and adds each row to all outputs that see it. Sums are
// float32.
#pragma once

#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/depthwise_rows.cuh"

namespace fastconv {

// Output and input gradient.
template <typename T, typename Line>
__global__ void __launch_bounds__(kDepthwiseThreads) depthwise(const __grid_constant__ DepthwiseParams params) {
  ptx::follow_previous_kernel();
  constexpr DepthwiseConfig kConfig = Line::kConfig;
  constexpr int kColumns = kConfig.columns, kChannels = kConfig.channels();
  using Source = SourceRows<T, kConfig>;
  using Target = RowColumns<T, kConfig, kColumns, RowAccesses::target(kConfig)>;
  extern __shared__ __align__(16) unsigned char depthwise_smem[];

  const DepthwisePlace at = depthwise_place(kConfig, params, blockIdx.x, threadIdx.x);
  if (!at.exists) return;
  const int32_t outputs = params.h.outputs(at.row);
  const Strides& strides = params.target_strides;
  const Target columns(at.column, params.w.target_step(), params.w.target_extent, strides.w);
  T* target = static_cast<T*>(params.target) + at.image * strides.n + at.channel * strides.c + at.row * strides.h +
              at.column * strides.w;
  const int64_t target_stride = params.h.target_step() * strides.h;

  float filter[kConfig.taps][kConfig.taps_w][kChannels], bias[kChannels];
  const T* taps = static_cast<const T*>(params.filter) + at.channel * params.filter_strides.n;
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    bias[c] = params.bias != nullptr ? widen(static_cast<const T*>(params.bias)[at.channel + c]) : 0.f;
#pragma unroll
    for (int r = 0; r < kConfig.taps; ++r) {
#pragma unroll
      for (int s = 0; s < kConfig.taps_w; ++s) {
        const Strides& step = params.filter_strides;
        filter[r][s][c] = widen(taps[c * step.n + r * step.h + s * step.w]);
      }
    }
  }
  // Rows of padding are left out, unless products with zero are not zero.
  bool finite = true;
#pragma unroll
  for (const auto& row : filter) finite = finite && all_finite(row);
  Source source(params, at);
  int32_t output = kConfig.first_output(), row = 0, rows = kConfig.seen(outputs);
  if (finite) {
    rows = min(rows, source.rows_until_end());
    const int32_t shifts = min(source.rows_before() / kConfig.rows_a_shift(), -output / kConfig.shift());
    row = shifts * kConfig.rows_a_shift();
    output += shifts * kConfig.shift();
    source.skip(row);
  }
  target += output * target_stride;

  Rows<T, kConfig, Source> queue(source, ptx::smem_address(depthwise_smem));
  float sums[kConfig.slots()][kColumns][kChannels];
#pragma unroll
  for (auto& slot : sums) {
#pragma unroll
    for (auto& column : slot) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) column[c] = bias[c];
    }
  }
  auto store_first = [&] {
#pragma unroll
    for (int j = 0; j < kConfig.shift(); ++j) {
      if (output >= 0 && output < outputs) columns.store(target, sums[j]);
      ++output;
      target += target_stride;
    }
  };
  for (; row < rows; row += kConfig.rows_a_shift() * kConfig.unroll) {
#pragma unroll
    for (int step = 0; step < kConfig.unroll; ++step) {
      shift_slots<kConfig>(sums, bias);
#pragma unroll
      for (int a = 0; a < kConfig.rows_a_shift(); ++a) {
        typename Source::Row values;
        queue.pop(source, values);
        each_product<kConfig>(a, [&](int slot, int tap_h, int k, int tap_w, int b) {
#pragma unroll
          for (int c = 0; c < kChannels; ++c) sums[slot][k][c] += values[b][c] * filter[tap_h][tap_w][c];
        });
        if (a == kConfig.last_row()) store_first();
      }
    }
  }
  while (output < outputs) {
    shift_slots<kConfig>(sums, bias);
    store_first();
  }
}

}  // namespace fastconv
