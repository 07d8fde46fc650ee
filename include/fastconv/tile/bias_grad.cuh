// Sums of grad_output over all but its channels, in two passes of fixed order.
#pragma once

#include "fastconv/planner/bias_grad.h"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/add_partials.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {

template <typename T, int kVector>
struct BiasUnit {
  std::conditional_t<kVector == 1, T, uint4> values;
  __device__ __forceinline__ Accumulator<T> operator[](int i) const {
    return widen(reinterpret_cast<const T*>(&values)[i]);
  }
};

// The units of a slice that a thread reads, `step` apart.
struct BiasUnits {
  const BiasGradParams& params;
  int64_t image, row, at;       // of the next
  int64_t images, rows, units;  // from one to the next

  __device__ BiasUnits(const BiasGradParams& params, int64_t first, int64_t step) : params(params) {
    split(first, image, row, at), split(step, images, rows, units);
  }
  __device__ __forceinline__ int64_t next() {
    const int64_t offset = image * params.stride_n + row * params.stride_row + at * params.stride;
    at += units;
    const bool next_row = at >= params.length;
    at -= next_row ? params.length : 0, row += rows + (next_row ? 1 : 0);
    const bool next_image = row >= params.rows_per_image;
    row -= next_image ? params.rows_per_image : 0, image += images + (next_image ? 1 : 0);
    return offset;
  }

 private:
  __device__ void split(int64_t count, int64_t& image, int64_t& row, int64_t& at) const {
    row = count / params.length, at = count - row * params.length;
    image = row / params.rows_per_image, row -= image * params.rows_per_image;
  }
};

// Block (channel block, slice) sums its slice of its channels' units to partial[channel][slice]. kAcross: a unit's
// elements are of different channels.
template <typename T, int kVector, bool kAcross>
__global__ void __launch_bounds__(kBiasThreads)
    bias_grad_slices(const __grid_constant__ BiasGradParams params, const T* grad, Accumulator<T>* partial) {
  ptx::follow_previous_kernel();
  using Acc = Accumulator<T>;
  using Unit = BiasUnit<T, kVector>;
  constexpr int kSums = kAcross ? kVector : 1;
  __shared__ Acc shared[kSums][kBiasThreads];
  const int thread = static_cast<int>(threadIdx.x), lanes_c = params.lanes_c, lanes_p = kBiasThreads / lanes_c;
  const int lane_c = params.channels_beside ? thread % lanes_c : thread / lanes_p;
  const int lane_p = params.channels_beside ? thread / lanes_c : thread % lanes_p;
  const int64_t slice = blockIdx.x % params.slices;
  const int64_t channel = (blockIdx.x / params.slices * lanes_c + lane_c) * kSums;
  const int64_t first = slice * params.slice_units + lane_p;
  const int64_t end = min((slice + 1) * params.slice_units, params.units);
  Acc sums[kSums] = {};
  if (channel < params.channels && first < end) {
    const T* source = grad + channel * params.stride_c;
    BiasUnits units(params, first, lanes_p);
    each_in_order<(kVector == 1 ? 8 : 4)>(
        first, int64_t{lanes_p}, end, [&](int64_t) { return *reinterpret_cast<const Unit*>(source + units.next()); },
        [&](const Unit& unit) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) sums[kAcross ? i : 0] += unit[i];
        });
  }
  const int place = lane_p * lanes_c + lane_c;
#pragma unroll
  for (int i = 0; i < kSums; ++i) shared[i][place] = sums[i];
  for (int step = lanes_p / 2; step > 0; step /= 2) {
    __syncthreads();
    if (lane_p >= step) continue;
#pragma unroll
    for (int i = 0; i < kSums; ++i) shared[i][place] += shared[i][place + step * lanes_c];
  }
  if (lane_p > 0 || channel >= params.channels) return;
#pragma unroll
  for (int i = 0; i < kSums; ++i) partial[(channel + i) * params.slices + slice] = shared[i][place];
}

// A warp adds the slices of a channel.
template <typename T>
__global__ void __launch_bounds__(kBiasThreads)
    bias_grad_total(const Accumulator<T>* partial, T* grad_bias, int64_t channels, int64_t slices) {
  ptx::follow_previous_kernel();
  const int64_t channel = (int64_t{blockIdx.x} * kBiasThreads + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (channel >= channels) return;
  Accumulator<T> sum =
      add_in_order(lane, int64_t{32}, slices, [&](int64_t i) { return partial[channel * slices + i]; });
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
  if (lane == 0) grad_bias[channel] = narrow<T>(sum);
}

}  // namespace fastconv
