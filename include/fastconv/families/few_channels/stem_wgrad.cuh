// Weight gradient of convolutions of images of few channels, float32: a block adds up its share of the tiles of pixels
// for some taps, see stem_walk.cuh; a second kernel adds the blocks' sums.
#pragma once

#include "fastconv/families/few_channels/stem_mainloop.cuh"
#include "fastconv/families/few_channels/stem_range.cuh"
#include "fastconv/families/few_channels/stem_stage.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/add_partials.cuh"

namespace fastconv {

struct StemWgradBuffers {
  const float* x;
  const float* y;
  float* w;
  float4* partial;  // [walker][job][quad], if there are several walkers
};

// Quad number `index` of a job: [quad of a lane][unit][lane].
__device__ __forceinline__ void store_stem_quad(const StemConfig& config, const StemWgradParams& params, float* w,
                                                const StemJob& job, int32_t index, const float4& sum) {
  int32_t quad, thread;
  params.by_job_threads.divmod(index, quad, thread);
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = stem_element(config, params, job, thread / 32, thread % 32, quad, i);
    if (at >= 0) w[at] = values[i];
  }
}

// A warp's unit of a job: offsets of a lane's taps and filters, and sums.
template <int kFilters>
struct StemWgradUnit {
  static constexpr int kBlocks = kFilters / 16, kTiles = StemConfig::tap_tiles();
  uint32_t taps[kTiles], filters[kBlocks][2];
  float sum[kBlocks][kTiles][4] = {};

  // What does not exist meets others and is not used.
  __device__ __forceinline__ StemWgradUnit(const StemWgradParams& params, int32_t first_tap) {
    const int lane = ptx::lane();
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      taps[t] = StemTap(params, min(first_tap + t * 8 + lane / 4, params.depth - 1)).place * 4;
    }
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        filters[m][half] = (m * 16 + half * 8 + lane / 4) * params.y.channel_words * 4;
      }
    }
  }

  // Adds the products of a slice's steps of a tile: x and y are the first pixel's, tables a lane's of the slice.
  template <int kParts, Operand kOperand>
  __device__ __forceinline__ void multiply(uint32_t x, uint32_t y, uint32_t x_table, uint32_t y_table, int32_t pixels,
                                           int32_t slices, const StemScale& scale) {
#pragma unroll 1
    for (int32_t left = pixels; left > 0; left -= slices * kStemStep) {
      const uint4 x_offsets = ptx::load_shared16(x_table), y_offsets = ptx::load_shared16(y_table);
      x_table += slices * 64, y_table += slices * 64;
      StemFragment<kParts, 1, kOperand> input[kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        StemValues<1> values;
        values.load({x + taps[t]}, x_offsets);
        if (left < kStemStep) values.cut(left);
        input[t].split(values, scale.first);
      }
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        StemValues<2> values;
        values.load({y + filters[m][0], y + filters[m][1]}, y_offsets);
        if (left < kStemStep) values.cut(left);
        StemFragment<kParts, 2, kOperand> gradients[1];
        gradients[0].split(values, scale.second);
        multiply_stem<kOperand == Operand::kBf16>(
            gradients, input, [&](int, int t) -> float (&)[4] { return sum[m][t]; }, scale.back);
      }
    }
  }
};

template <int kParts, int kFilters, Operand kOperand>
__global__ void __launch_bounds__(kStemThreads, 1)
    stem_wgrad(const __grid_constant__ StemWgradParams params, const StemWgradBuffers buffers) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  constexpr StemConfig kConfig{kParts, kFilters, kOperand};
  constexpr bool kScaled = kConfig.is_scaled();
  constexpr int kMostParts = kConfig.most_parts();
  extern __shared__ uint4 stem_smem[];
  const uint32_t smem = ptx::smem_address(stem_smem);
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  const StemJob job(kConfig, params, static_cast<int32_t>(blockIdx.x));
  int32_t unit, slice;
  params.by_slices.divmod(thread / 32, unit, slice);

  if constexpr (kScaled) {
    clear_stages(params, smem);
    __syncthreads();
  }
  [[maybe_unused]] StemBoxRange x{params.x, 0}, y{params.y, 0};
  StemWgradUnit<kFilters> sums(params, job.first_tap + unit * kConfig.unit_taps());
  walk_stem_tiles(
      params, job.walker, smem,
      [&](const StemTile& tile, uint32_t stage) {
        copy_stem_box(params.x, buffers.x, tile.image, 0, tile.source_h, tile.source_w, stage);
        copy_stem_box(params.y, buffers.y, tile.image, job.first_filter, tile.p, tile.q, stage + params.y_at);
      },
      [&] {
        const int32_t pixels = params.tile_p * params.tile_q;
#pragma unroll 1
        for (int32_t i = thread; i < (pixels + kStemStep - 1) / kStemStep * kStemStep; i += kStemThreads) {
          const int32_t pixel = min(stem_depth(i / kStemStep, i / 4, i % 4), pixels - 1);
          int32_t row, column;
          params.by_tile_q.divmod(pixel, row, column);
          ptx::store_shared4(smem + params.table_at + i * 4, StemTile::source_of(params, pixel) * 4);
          ptx::store_shared4(smem + params.y_table_at + i * 4, params.y.place(row, column) * 4);
        }
      },
      [&](const StemTile& tile, uint32_t stage) {
        StemScale scale;
        if constexpr (kScaled) {
          const StemRange x_range{stage + params.range_at}, y_range{x_range.smem + kStemRangeBytes};
          x.look(stage, x_range), y.look(stage + params.y_at, y_range);
          __syncthreads();
          const bool x_again = x.needs_second_look(x_range), y_again = y.needs_second_look(y_range);
          if (x_again) x.look_again(stage, x_range);
          if (y_again) y.look_again(stage + params.y_at, y_range);
          if (x_again || y_again) __syncthreads();
          if (x_again) x.finish(x_range);
          if (y_again) y.finish(y_range);
          scale = StemScale(x.most, y.most);
          scale.fits = scale.fits && x.fits && y.fits;
        }
        if (unit >= params.units) return;
        auto multiply = [&]<int kOf, Operand kAs>(const StemScale& scale) {
          const uint32_t table = smem + lane % 4 * 16 + slice * 64;
          sums.template multiply<kOf, kAs>(stage + params.x.lead(tile.source_w) * 4,
                                           stage + params.y_at + params.y.lead(tile.q) * 4, table + params.table_at,
                                           table + params.y_table_at, tile.pixels(params) - slice * kStemStep,
                                           params.slices, scale);
        };
        if constexpr (kScaled) {
          if (scale.fits) return multiply.template operator()<kParts, kOperand>(scale);
        }
        multiply.template operator()<kMostParts, Operand::kBf16>(StemScale());
      });

  // The slices' sums are added in order.
  __syncthreads();
#pragma unroll
  for (int q = 0; q < kConfig.quads(); ++q) {
    const float (&s)[4] = sums.sum[q / sums.kTiles][q % sums.kTiles];
    const uint32_t to = smem + (q * kStemThreads + thread) * 16;
    ptx::store_shared_floats(to, s[0], s[1]);
    ptx::store_shared_floats(to + 8, s[2], s[3]);
  }
  __syncthreads();
#pragma unroll 1
  for (int32_t i = thread; i < params.job_quads; i += kStemThreads) {
    int32_t quad, rest;
    params.by_job_threads.divmod(i, quad, rest);
    uint32_t from = smem + (quad * kStemThreads + rest / 32 * params.slices * 32 + rest % 32) * 16;
    float4 all = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int32_t s = 0; s < params.slices; ++s, from += 32 * 16) {
      const uint4 v = ptx::load_shared16(from);
      all.x += __uint_as_float(v.x), all.y += __uint_as_float(v.y);
      all.z += __uint_as_float(v.z), all.w += __uint_as_float(v.w);
    }
    if (params.walkers > 1) {
      buffers.partial[int64_t{blockIdx.x} * params.job_quads + i] = all;
    } else {
      store_stem_quad(kConfig, params, buffers.w, job, i, all);
    }
  }
#endif
}

template <int kParts, int kFilters, Operand kOperand>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_stem_wgrad(const __grid_constant__ StemWgradParams params, StemWgradBuffers buffers, int32_t strands) {
  ptx::follow_previous_kernel();
  constexpr StemConfig kConfig{kParts, kFilters, kOperand};
  const int64_t quads = int64_t{params.by_jobs.divisor} * params.job_quads;
  add_partials(buffers.partial, quads, params.walkers, strands, [&](int64_t at, const float4& sum) {
    int32_t index, quad;
    params.by_job_quads.divmod(static_cast<int32_t>(at), index, quad);
    store_stem_quad(kConfig, params, buffers.w, StemJob(kConfig, params, index), quad, sum);
  });
}

}  // namespace fastconv
