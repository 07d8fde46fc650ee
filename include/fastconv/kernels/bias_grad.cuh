// Sums of grad_output over all but its channels, in two passes of fixed order.
#pragma once

#include "fastconv/tile/add_partials.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {

// grad_output as rows of `length` elements that lie `stride` apart: a whole image where its rows follow each other
// without gaps, else one row of it.
struct BiasGradParams {
  int64_t channels, rows, rows_per_image, length;
  int64_t stride_n, stride_c, stride_row, stride;
  int64_t segments;  // of kBiasSegment elements, over all rows: the work of one channel
  int32_t lanes_c;   // neighbouring threads along the channels; the others lie along a segment
};

inline constexpr int kBiasThreads = 256;
inline constexpr int64_t kBiasSegment = 4096;  // elements between two divisions, enough to forget about them

// Block (slice, channel block) sums the segments slice, slice + slices, ... of its channels to partial[slice][channel].
template <typename T>
__global__ void __launch_bounds__(kBiasThreads)
    bias_grad_slices(const __grid_constant__ BiasGradParams params, const T* grad, Accumulator<T>* partial,
                     int64_t slices) {
  using Acc = Accumulator<T>;
  __shared__ Acc sums[kBiasThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int lanes_p = kBiasThreads / params.lanes_c;
  const int lane_c = thread % params.lanes_c, lane_p = thread / params.lanes_c;
  const int64_t slice = blockIdx.x % slices;
  const int64_t channel = blockIdx.x / slices * params.lanes_c + lane_c;
  const int64_t segments_per_row = (params.length + kBiasSegment - 1) / kBiasSegment;
  Acc sum = 0;
  if (channel < params.channels) {
    for (int64_t segment = slice; segment < params.segments; segment += slices) {
      const int64_t row = segment / segments_per_row, begin = segment % segments_per_row * kBiasSegment;
      const int64_t end = min(begin + kBiasSegment, params.length);
      const T* source = grad + row / params.rows_per_image * params.stride_n +
                        row % params.rows_per_image * params.stride_row + channel * params.stride_c;
      sum += add_in_order(begin + lane_p, int64_t{lanes_p}, end,
                          [&](int64_t i) { return widen(source[i * params.stride]); });
    }
  }
  sums[thread] = sum;
  for (int step = kBiasThreads / 2; step >= params.lanes_c; step /= 2) {
    __syncthreads();
    if (thread < step) sums[thread] += sums[thread + step];
  }
  if (lane_p == 0 && channel < params.channels) partial[slice * params.channels + channel] = sums[thread];
}

template <typename T>
__global__ void __launch_bounds__(kBiasThreads)
    bias_grad_total(const Accumulator<T>* partial, T* grad_bias, int64_t channels, int64_t slices) {
  const int64_t channel = int64_t{blockIdx.x} * kBiasThreads + threadIdx.x;
  if (channel >= channels) return;
  grad_bias[channel] = narrow<T>(
      add_in_order(int64_t{0}, int64_t{1}, slices, [&](int64_t slice) { return partial[slice * channels + channel]; }));
}

}  // namespace fastconv
