// The weight gradient of depthwise convolutions along one dimension, see sequence.h. A warp has a channel, and adds up
// a slice of its sequences.
#pragma once

#include "fastconv/families/depthwise/sequence.cuh"

namespace fastconv {

// By tensor cores. 256 positions are 16 rows of 16: summed over these, the products of the 16 columns of dy and of
// those of x, which overlap. A tap's gradient is then what lies along a diagonal.
template <typename T, DepthwiseSequenceConfig kConfig>
struct SequenceProducts {
  static constexpr int kSteps = kConfig.steps;
  float sums[kSteps][4] = {};

  __device__ void add(const DepthwiseSequenceParams& params, const T* x, const T* dy, int32_t lane) {
    const uint32_t x_row = ptx::smem_address(x), dy_row = ptx::smem_address(dy);
    // Rows of matrices that this lane names: first rows, then columns of dy; of x the other way round.
    const int32_t row = 16 * (lane % 8), high = 8 * (lane / 16), low = lane / 8 % 2 * 8;
    for (int32_t first = 0; first < params.targets; first += kConfig.tile()) {
      uint32_t a[4];
      ptx::ldmatrix4<true>(dy_row + 2 * kConfig.place(first + row + 16 * high + low), a);
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        uint32_t b[4];
        ptx::ldmatrix4<true>(x_row + 2 * kConfig.place(first + row + 16 * low + 8 * step + high), b);
        ptx::mma(T{}, sums[step], a, b[0], b[1]);
        ptx::mma(T{}, sums[step + 1], a, b[2], b[3]);
      }
    }
  }

  // f(tap, its gradient). `shared`: the warp's.
  template <typename F>
  __device__ void finish(const DepthwiseSequenceParams& params, float* shared, int32_t lane, F&& f) const {
    constexpr int kPitch = kSequenceBand * kSteps + 1;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        shared[(lane / 4 + 8 * (k / 2)) * kPitch + 8 * step + 2 * (lane % 4) + k % 2] = sums[step][k];
      }
    }
    __syncwarp();
    for (int32_t t = lane; t < params.taps; t += 32) {
      float sum = 0;
      for (int32_t p = 0; p < 16; ++p) sum += shared[p * kPitch + p + t + params.lead];
      f(t, sum);
    }
  }
};

// By multiply-adds. Lanes share out positions, and some of them taps, 16 each.
template <DepthwiseSequenceConfig kConfig>
struct SequenceSums {
  float totals[kSequenceLags] = {};

  __device__ void add(const DepthwiseSequenceParams& params, const float* x, const float* dy, int32_t lane) {
    const int32_t log2 = params.lag_groups_log2, group = lane & ((1 << log2) - 1);
    float sums[kSequenceLags] = {};  // of a part of the chain that would lose digits
    for (int32_t at = kSequenceRun * (lane >> log2); at < params.targets; at += kSequenceRun * (32 >> log2)) {
      float gradient[kSequenceRun], values[kSequenceLags + kSequenceRun];
      read_run<kConfig>(dy, at, gradient);
      read_run<kConfig>(x, at + kSequenceLags * group, values);
#pragma unroll
      for (int i = 0; i < kSequenceRun; ++i) {
#pragma unroll
        for (int k = 0; k < kSequenceLags; ++k) sums[k] = fmaf(gradient[i], values[i + k], sums[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < kSequenceLags; ++k) totals[k] += sums[k];
  }

  template <typename F>
  __device__ void finish(const DepthwiseSequenceParams& params, float*, int32_t lane, F&& f) const {
    const int32_t groups = 1 << params.lag_groups_log2;
#pragma unroll
    for (int k = 0; k < kSequenceLags; ++k) {
      float sum = totals[k];
      for (int32_t offset = 16; offset >= groups; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      const int32_t t = kSequenceLags * (lane & (groups - 1)) + k - params.lead;
      if (lane < groups && t >= 0 && t < params.taps) f(t, sum);
    }
  }
};

// The same of taps with gaps between. Lanes share out positions alone.
template <typename T, DepthwiseSequenceConfig kConfig>
struct SequenceGaps {
  float totals[kSequenceGaps] = {};

  __device__ void add(const DepthwiseSequenceParams& params, const T* x, const T* dy, int32_t lane) {
    float sums[kSequenceGaps] = {};
#pragma unroll 1
    for (int32_t at = kSequenceRun * lane; at < params.targets; at += kSequenceRun * 32) {
      float gradient[kSequenceRun], values[kSequenceRun];
      read_run<kConfig>(dy, at, gradient);
#pragma unroll
      for (int t = 0; t < kSequenceGaps; ++t) {
        if (t >= params.taps) break;
        read_run<kConfig>(x, at + t * params.gap, values);
#pragma unroll
        for (int i = 0; i < kSequenceRun; ++i) sums[t] = fmaf(gradient[i], values[i], sums[t]);
      }
    }
#pragma unroll
    for (int t = 0; t < kSequenceGaps; ++t) totals[t] += sums[t];
  }

  template <typename F>
  __device__ void finish(const DepthwiseSequenceParams& params, float*, int32_t lane, F&& f) const {
#pragma unroll
    for (int t = 0; t < kSequenceGaps; ++t) {
      float sum = totals[t];
      for (int32_t offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      if (lane == 0 && t < params.taps) f(t, sum);
    }
  }
};

template <typename T, DepthwiseSequenceConfig kConfig>
using SumsOfSequence =
    std::conditional_t<kConfig.tensor(), SequenceProducts<T, kConfig>,
                       std::conditional_t<kConfig.gaps, SequenceGaps<T, kConfig>, SequenceSums<kConfig>>>;

template <typename T, typename Line>
__global__ void __launch_bounds__(Line::kConfig.threads, Line::kConfig.blocks())
    depthwise_sequence_wgrad(const __grid_constant__ DepthwiseSequenceParams params) {
  ptx::follow_previous_kernel();
  if constexpr (kSequenceCompiled<Line::kConfig>) {
    constexpr DepthwiseSequenceConfig kConfig = Line::kConfig;
    const SequenceSlice slice(params);
    const auto [channel, channels, index, first, end, warp, lane] = slice;
    T* const shared = static_cast<T*>(ptx::block_memory(depthwise_sequence_smem));
    const SequenceRows<T, kConfig> x{params, shared}, dy{params, shared + params.target_at};
    const auto *source = static_cast<const T*>(params.source), *target = static_cast<const T*>(params.target);
    SumsOfSequence<T, kConfig> sums;
    if (!params.pixels) {
      if (warp < channels) {
        each_segment(
            slice,
            [&](int32_t next, int32_t buffer) {
              const SequenceUnit unit(params, next);
              const int32_t r = buffer * params.rows + warp;
              x.stage(params.from, source + slice.offset(params.from, unit, warp), r, lane, unit.first - params.padding,
                      params.span(), params.skipped);
              dy.stage(params.to, target + slice.offset(params.to, unit, warp), r, lane, unit.first, params.segment, 0);
            },
            [&](int32_t, int32_t buffer) {
              const int32_t r = buffer * params.rows + warp;
              sums.add(params, x.row(r), dy.row(r), lane);
            });
      }
    } else {
      for (int32_t now = first; now < end; ++now) {
        const SequenceUnit unit(params, now);
        __syncthreads();  // the last one's rows are read
        x.stage_all(params.from, source + slice.offset(params.from, unit, 0), channels, unit.first - params.padding,
                    params.span(), params.skipped, params.strand);
        dy.stage_all(params.to, target + slice.offset(params.to, unit, 0), channels, unit.first, params.segment, 0,
                     params.count);
        ptx::async_copy_commit();
        ptx::async_copy_wait<0>();
        __syncthreads();
        sums.add(params, x.row(warp), dy.row(warp), lane);
      }
    }
    __syncthreads();  // sums take the place of rows
    const int32_t filter = channel + warp;
    auto* const own = static_cast<float*>(ptx::block_memory(depthwise_sequence_smem)) + warp * kConfig.sums();
    sums.finish(params, own, lane, [&](int32_t t, float sum) {
      if (filter >= params.channels) return;
      if (params.sums != nullptr) {
        params.sums[(int64_t{index} * params.channels + filter) * params.taps + t] = sum;
      } else {
        static_cast<T*>(params.dw)[filter * params.filter_strides.n + t * params.filter_step] = narrow<T>(sum);
      }
    });
  }
}

}  // namespace fastconv
