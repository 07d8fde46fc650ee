// Output of convolutions of images that consist of quads; see families/few_channels/ready_quads.h. Sums are float32.
#pragma once

#include "fastconv/families/few_channels/quads.cuh"
#include "fastconv/families/few_channels/ready_quads.h"

namespace fastconv {

// As it lies in memory.
template <typename T>
__device__ __forceinline__ void copy_piece(uint32_t to, const T* from, int32_t bytes) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  constexpr int32_t kStep = kReadyThreads * kReadyCopiedBytes;
  const char* source = reinterpret_cast<const char*>(from) + thread * kReadyCopiedBytes;
  to += thread * kReadyCopiedBytes;
#pragma unroll 1
  for (int32_t left = bytes - thread * kReadyCopiedBytes; left > 0; left -= kStep, to += kStep, source += kStep) {
    ptx::async_copy<kReadyCopiedBytes>(to, source, true);
  }
}

// Where a lane finds the quads of its pixels, one of each product, and what it multiplies them by.
template <typename T, int kSteps>
struct ReadyQuads {
  static constexpr int kProducts = kReadyPixels / 8;
  const ReadyQuadsParams& params;
  const ReadyRange& range;
  uint32_t smem;
  ReadyPlace taps[kSteps];
  uint32_t places[kProducts][kSteps];
  QuadsFilter filters[kSteps];

  __device__ __forceinline__ ReadyQuads(const ReadyQuadsParams& params, const ReadyRange& range, uint32_t smem)
      : params(params), range(range), smem(smem) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) taps[k] = ReadyPlace::of_tap(params, tap(k));
  }
  static __device__ __forceinline__ int32_t tap(int step) {
    return step * kQuadsStepTaps + static_cast<int32_t>(threadIdx.x % 4);
  }

  __device__ __forceinline__ void find(int32_t unit) {
    const uint32_t rows = smem + ready_rows_at(kSteps), zeros = smem + ready_zeros_at(kSteps);
#pragma unroll
    for (int t = 0; t < kProducts; ++t) {
      const auto column = static_cast<int32_t>(threadIdx.x % 32 / 4);
      const auto pixel = ReadyPlace::of_pixel(params, unit + quads_pixel(true, kQuadsRunOf<T>, t, column), range.end);
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const uint32_t quad = pixel.quad + (taps[k].quad - range.first);
        places[t][k] = pixel.has(params, taps[k]) ? rows + quad * kReadyQuadBytes : zeros;
      }
    }
  }

  // Those of filters that do not exist are whatever is there: nothing is stored of them.
  __device__ __forceinline__ void take_filters() {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t filter_bytes = params.taps * kReadyQuadBytes;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const bool exists = k + 1 < kSteps || tap(k) < params.taps;
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        uint2 rows[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t row = smem + quads_filter(true, lane, 2 * b + j) * filter_bytes + lane % 4 * kReadyQuadBytes;
          rows[j] = exists ? ptx::load_shared8(row + k * kQuadsStepTaps * kReadyQuadBytes) : uint2{};
        }
        filters[k].blocks[b] = make_uint4(rows[0].x, rows[1].x, rows[0].y, rows[1].y);
      }
    }
  }

  // `bias`: of each block of filters, as products have their rows.
  __device__ __forceinline__ void multiply(const float (&bias)[2][4], QuadsUnit<T, true, kProducts>& sums) const {
    uint2 quads[kSteps][kProducts];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int t = 0; t < kProducts; ++t) quads[k][t] = ptx::load_shared8(places[t][k]);
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const uint4& f = filters[k].blocks[b];
        const uint32_t rows[] = {f.x, f.y, f.z, f.w};
#pragma unroll
        for (int t = 0; t < kProducts; ++t) {
          float (&sum)[4] = sums.sum[b][t];
          if (k == 0) {
            ptx::mma(T{}, sum, rows, quads[k][t].x, quads[k][t].y, bias[b]);
          } else {
            ptx::mma(T{}, sum, rows, quads[k][t].x, quads[k][t].y);
          }
        }
      }
    }
  }
};

template <typename T, int kSteps>
__global__ void __launch_bounds__(kReadyThreads, kReadyBlocks / 2)  // of fewer, as ptxas makes faster code
    ready_quads(const QuadsBuffers<T> buffers, const __grid_constant__ ReadyQuadsParams params) {
#if __CUDA_ARCH__ >= 800
  using Quads = ReadyQuads<T, kSteps>;
  ptx::follow_previous_kernel();
  extern __shared__ uint4 ready_smem[];
  const uint32_t smem = ptx::smem_address(ready_smem);
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  int32_t number, set;
  params.by_sets.divmod(static_cast<int32_t>(blockIdx.x), number, set);
  const ReadyRange range(params, number);
  copy_piece(smem + ready_rows_at(kSteps), buffers.x + int64_t{range.first} * kQuadChannels,
             static_cast<int32_t>(range.after - range.first) * kReadyQuadBytes);
  const int32_t first_filter = set * kQuadsSet, quads_of_filters = params.taps * kQuadChannels;
  copy_piece(smem, buffers.w + first_filter * quads_of_filters,
             min(params.filters - first_filter, kQuadsSet) * quads_of_filters * static_cast<int32_t>(sizeof(T)));
  ptx::async_copy_commit();
  if (thread == 0) ptx::store_shared8(smem + ready_zeros_at(kSteps), uint2{});

  // All that can be known before they are there.
  const int32_t filter = first_filter + quads_filter(true, lane, 0);
  float bias[2][4] = {};
  if (buffers.bias != nullptr && filter < params.filters) {
#pragma unroll
    for (int i = 0; i < 8; ++i) bias[i / 4][i % 4] = widen(buffers.bias[filter + i / 2]);
  }
  Quads quads(params, range, smem);
  int32_t unit = range.begin + thread / 32 * kReadyPixels;
  T* y = kept_global(buffers.y + int64_t{range.begin} * params.target_w + filter);
  ptx::async_copy_wait<0>();
  __syncthreads();
  quads.find(unit);
  quads.take_filters();
#pragma unroll 1
  for (; unit < range.end; unit += kReadyPass) {
    QuadsUnit<T, true, Quads::kProducts> sums;
    quads.multiply(bias, sums);
#pragma unroll
    for (int column = 0; column < 2 * Quads::kProducts; ++column) {
      const int32_t pixel = unit + quads_pixel(true, kQuadsRunOf<T>, column / 2, lane % 4 * 2 + column % 2);
      float values[kQuadsFilters];
#pragma unroll
      for (int f = 0; f < kQuadsFilters; ++f) values[f] = sums.at(f, column);
      store_neighbours<true>(y + (pixel - range.begin) * params.target_w, 1, values,
                             pixel < range.end ? params.filters - filter : 0);
    }
    quads.find(unit + kReadyPass);
  }
#endif
}

}  // namespace fastconv
