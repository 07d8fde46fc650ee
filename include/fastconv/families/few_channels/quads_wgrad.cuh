// Weight gradient of convolutions of images of one to four channels, of 16 bits; see
// families/few_channels/quads_wgrad.h. A second kernel adds the blocks' sums, which are float32.
#pragma once

#include "fastconv/families/few_channels/quads.cuh"
#include "fastconv/families/few_channels/quads_wgrad.h"
#include "fastconv/ptx/async_copy.cuh"

namespace fastconv {

template <typename T>
struct QuadsWgradBuffers {
  const T* x;
  const T* y;
  float* sums;  // [walker][filter][channel][tap]
};

// A tile of dy on its way to shared memory; zeros where there is none.
template <bool kChannelsInner, typename T>
__device__ __forceinline__ void copy_gradients(const QuadsWgradParams& params, const T* y, const QuadsWgradJob& job,
                                               const QuadsTile& tile, uint32_t smem) {
  const T* first = y + (tile.image * params.target.n + tile.p * params.target.h + tile.q * params.target.w +
                        job.first_filter * params.target.c);
  const int32_t filters = params.filters - job.first_filter;
  QuadsWgradChunk chunk(params, static_cast<int32_t>(threadIdx.x));
#pragma unroll 2
  for (auto i = static_cast<int32_t>(threadIdx.x); i < quads_wgrad_chunks(params);
       i += kQuadsWgradThreads, chunk.next(params, kChannelsInner)) {
    const bool exists = chunk.row(kChannelsInner) < tile.rows && chunk.column(kChannelsInner) < tile.columns &&
                        chunk.filter(kChannelsInner) < filters;
    // Offsets of those that exist fit 32 bits; the others' are aligned, and nothing is read there.
    ptx::async_copy<16>(smem + chunk.place, first + chunk.offset, exists);
  }
}

// A warp's sums, [block of 16 filters][product].
template <typename T, bool kChannelsInner, int kChannels>
struct QuadsWgradUnit {
  static __device__ constexpr QuadsWgradConfig config() { return {kChannelsInner, kChannels}; }
  static constexpr int kBlocks = kQuadsWgradFilters / 16, kGroups = config().groups(), kTiles = config().tiles();
  uint32_t taps[kGroups];  // from a step's first pixel to the lane's tap of its own first one, bytes
  float sum[kBlocks][kTiles][4] = {};

  // A tap that does not exist has the last one's place, and sums that are not used.
  __device__ __forceinline__ QuadsWgradUnit(const QuadsWgradParams& params, int32_t unit) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      taps[g] = quads_tap(params, min(quads_wgrad_tap(config(), unit, g, lane / 4), params.taps - 1)) +
                lane % 4 * 2 * params.place_step();
    }
  }

  // `x`: the step's first pixel, `y`: what the lane names of the step's matrices, of the first of some blocks.
  __device__ __forceinline__ void multiply(uint32_t x, int32_t pixel_bytes, uint32_t y, uint32_t block_bytes,
                                           int32_t blocks) {
    uint32_t columns[kTiles][2];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint2 quads[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) quads[i] = ptx::load_shared8(x + taps[g] + quads_wgrad_pixel(i) * pixel_bytes);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint2 &first = quads[2 * i], &second = quads[2 * i + 1];
          columns[g * kChannels + c][i] =
              __byte_perm(c < 2 ? first.x : first.y, c < 2 ? second.x : second.y, c % 2 == 0 ? 0x5410 : 0x7632);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      if (m >= blocks) break;
      uint32_t rows[4];
      ptx::ldmatrix4<kChannelsInner>(y + m * block_bytes, rows);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) ptx::mma(T{}, sum[m][t], rows, columns[t][0], columns[t][1]);
    }
  }
};

// The sums of a block's warps, added in order.
template <typename Unit>
__device__ __forceinline__ void store_quads_wgrad(const QuadsWgradParams& params, const QuadsWgradJob& job,
                                                  const Unit& unit, float4* shared, float* sums) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
#pragma unroll
  for (int q = 0; q < Unit::config().quads(); ++q) {
    const float (&s)[4] = unit.sum[q / Unit::kTiles][q % Unit::kTiles];
    shared[q * kQuadsWgradThreads + thread] = make_float4(s[0], s[1], s[2], s[3]);
  }
  __syncthreads();
  sums += int64_t{job.walker} * params.filters * params.channels * params.taps;
#pragma unroll 1
  for (int32_t i = thread; i < Unit::config().quads() * params.tap_units * 32; i += kQuadsWgradThreads) {
    const int32_t quad = i / 32 % Unit::config().quads(), of = i / 32 / Unit::config().quads(), lane = i % 32;
    const float4* from = shared + (quad * kQuadsWgradThreads + of * params.slices * 32 + lane);
    float all[4] = {};
    for (int32_t s = 0; s < params.slices; ++s) {
      const float4 v = from[s * 32];
      all[0] += v.x, all[1] += v.y, all[2] += v.z, all[3] += v.w;
    }
#pragma unroll
    for (int value = 0; value < 4; ++value) {
      const int32_t at = quads_wgrad_element(Unit::config(), params, job, of, lane, quad, value);
      if (at >= 0) sums[at] = all[value];
    }
  }
}

template <typename T, bool kChannelsInner, int kChannels>
__global__ void __launch_bounds__(kQuadsWgradThreads, 1)
    quads_wgrad(const __grid_constant__ QuadsWgradParams params, const QuadsWgradBuffers<T> buffers) {
#if __CUDA_ARCH__ >= 800
  using Unit = QuadsWgradUnit<T, kChannelsInner, kChannels>;
  ptx::follow_previous_kernel();
  extern __shared__ uint4 quads_smem[];
  const uint32_t smem = ptx::smem_address(quads_smem);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const QuadsWgradJob job(params, static_cast<int32_t>(blockIdx.x));
  int32_t own_unit, slice;
  params.by_slices.divmod(static_cast<int32_t>(threadIdx.x / 32), own_unit, slice);
  const bool has_unit = own_unit < params.tap_units;
  Unit unit(params, job.first_unit + own_unit);

  // Which row of which of the four matrices of a product's left factor the lane names.
  const int32_t filter = lane / 8 % 2 * 8, pixel = lane / 16 * 8;
  const int32_t in_step = kept(kChannelsInner ? (pixel + lane % 8) * params.pitch + filter * 2
                                              : (filter + lane % 8) * params.pitch + pixel * 2);
  const int32_t step_bytes = kQuadsWgradStep * (kChannelsInner ? params.pitch : 2);
  const int32_t block_bytes = 16 * (kChannelsInner ? 2 : params.pitch);
  const int32_t blocks = min((params.filters - job.first_filter + 15) / 16, int32_t{Unit::kBlocks});

  auto copy = [&](int32_t index, int32_t stage) {
    if (index < params.tiles) {
      copy_gradients<kChannelsInner>(params, buffers.y, job, QuadsTile(params, index),
                                     smem + params.y_at + stage * params.y_bytes);
    }
    ptx::async_copy_commit();
  };
  StagedQuads<T> staged;
  if (job.walker < params.tiles) staged.load(params, buffers.x, QuadsTile(params, job.walker));
#pragma unroll
  for (int i = 0; i < kQuadsWgradStages - 1; ++i) copy(job.walker + i * params.walkers, i);
  uint32_t x_stage = smem, x_other = smem + params.stage_bytes;
  int32_t y_stage = 0;
#pragma unroll 1
  for (int32_t index = job.walker; index < params.tiles; index += params.walkers) {
    const QuadsTile tile(params, index);
    staged.template store<QuadsOperands::kHalf>(params, x_stage);
    ptx::async_copy_wait<kQuadsWgradStages - 2>();
    __syncthreads();
    // What is needed next is on its way meanwhile, to places that everyone has left.
    const int32_t next = index + params.walkers;
    if (next < params.tiles) staged.load(params, buffers.x, QuadsTile(params, next));
    copy(index + (kQuadsWgradStages - 1) * params.walkers, y_stage == 0 ? kQuadsWgradStages - 1 : y_stage - 1);
    if (has_unit) {
      const uint32_t x = x_stage + tile.lead * params.quad_bytes;
      uint32_t y = smem + params.y_at + y_stage * params.y_bytes + in_step + slice * step_bytes;
      const int32_t steps = tile.rows * static_cast<int32_t>(params.by_row_steps.divisor);
#pragma unroll 1
      for (int32_t step = slice; step < steps; step += params.slices, y += params.slices * step_bytes) {
        unit.multiply(x + quads_wgrad_place(params, step), params.place_step(), y, block_bytes, blocks);
      }
    }
    const uint32_t done = x_stage;
    x_stage = x_other, x_other = done;
    y_stage = y_stage + 1 < kQuadsWgradStages ? y_stage + 1 : 0;
  }
  ptx::async_copy_wait<0>();
  __syncthreads();
  store_quads_wgrad(params, job, unit, reinterpret_cast<float4*>(quads_smem), buffers.sums);
#endif
}

}  // namespace fastconv
