// Weight gradient of patch embeddings, float32; see families/few_channels/embed.h. A warp adds up its share of the
// pixels for a set of filters; a second kernel adds the blocks' sums.
#pragma once

#include "fastconv/families/few_channels/embed_mainloop.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/shared_memory.cuh"

namespace fastconv {

struct EmbedWgradBuffers {
  const float* x;
  const float* y;
  float* sums;  // [walker][filter][channel][row][column]
};

// A lane's values of sixteen pixels, four of them: of four filters, and of two chunks of the patches. As they were
// read: values of one pixel or filter side by side.
template <bool kChannelsInner>
struct EmbedPixels {
  using Chunk = EmbedWords<float>;
  static constexpr int kChunks = kEmbedMostChunks / 8;
  Chunk y[kEmbedChunk], x[kChunks][kEmbedChunk];

  __device__ __forceinline__ void load(const EmbedParams& params, const EmbedWgradBuffers& buffers,
                                       const int32_t (&offsets)[kChunks], int32_t first_pixel, int32_t first_filter) {
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
    int64_t target[kEmbedChunk];
#pragma unroll
    for (int i = 0; i < kEmbedChunk; ++i) {
      const int32_t pixel = first_pixel + embed_wgrad_pixel(kChannelsInner, i, lane);
      const EmbedPixel at(params, min(pixel, params.pixels - 1));
      target[i] = at.target;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        x[c][i] = {};
        if (pixel < params.pixels && offsets[c] >= 0) {
          x[c][i] = *reinterpret_cast<const Chunk*>(buffers.x + (at.source + offsets[c]));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kEmbedChunk; ++i) {
      // Of pixel i filters or, if pixels lie side by side, of filter i pixels.
      const int32_t pixel = first_pixel + embed_wgrad_pixel(kChannelsInner, kChannelsInner ? i : 0, lane);
      const int32_t filter = first_filter + embed_wgrad_filter(kChannelsInner, kChannelsInner ? 0 : i, lane);
      const float* from = buffers.y + filter * params.target_c;
      y[i] = {};
      if (pixel >= params.pixels || filter >= params.filters) continue;
      if (params.whole_runs) {
        y[i] = *reinterpret_cast<const Chunk*>(from + target[kChannelsInner ? i : 0]);
      } else if constexpr (kChannelsInner) {
        y[i] = load_each(
            from, [&](int k) { return target[i] + k * params.target_c; },
            [&](int k) { return filter + k < params.filters; });
      } else {
        y[i] = load_each(from, [&](int k) { return target[k]; }, [&](int k) { return pixel + k < params.pixels; });
      }
    }
  }

  // From values of four rows side by side, four times, to four of each row.
  static __device__ __forceinline__ void transpose(const Chunk (&from)[kEmbedChunk], Chunk (&to)[kEmbedChunk]) {
#pragma unroll
    for (int row = 0; row < kEmbedChunk; ++row) {
#pragma unroll
      for (int i = 0; i < kEmbedChunk; ++i) to[row].data[i] = from[i].data[row];
    }
  }
};

template <int kParts, bool kChannelsInner>
__global__ void __launch_bounds__(kEmbedWgradThreads, 1)
    embed_wgrad(const __grid_constant__ EmbedParams params, const EmbedWgradBuffers buffers) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  using Pixels = EmbedPixels<kChannelsInner>;
  using Chunk = EmbedWords<float>;
  constexpr int kTiles = Pixels::kChunks * kEmbedChunk;
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  int32_t walker, first_filter;
  params.by_set_blocks.divmod(static_cast<int32_t>(blockIdx.x), walker, first_filter);
  first_filter *= kEmbedUnitFilters;

  int32_t offsets[Pixels::kChunks];
#pragma unroll
  for (int c = 0; c < Pixels::kChunks; ++c) {
    const int32_t chunk = c * 8 + lane / 4;
    offsets[c] = chunk < params.chunks ? embed_chunk(params, chunk) : -1;
  }
  float sum[2][kTiles][4] = {};
  Pixels pixels;
  const int32_t first = (walker * kEmbedWgradWarps + thread / 32) * kEmbedUnitPixels;
  pixels.load(params, buffers, offsets, first, first_filter);
#pragma unroll 1
  for (int32_t pixel = first; pixel < params.pixels;) {
    EmbedFragment<kParts, 2> gradients[2];
    EmbedFragment<kParts, 1> values[kTiles];
    Chunk filters[kEmbedChunk];
    if constexpr (kChannelsInner) Pixels::transpose(pixels.y, filters);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const Chunk(&of)[kEmbedChunk] = kChannelsInner ? filters : pixels.y;
      make_fragment<float, kParts, 2>({of[2 * m], of[2 * m + 1]}, gradients[m]);
    }
#pragma unroll
    for (int c = 0; c < Pixels::kChunks; ++c) {
      Chunk rows[kEmbedChunk];
      Pixels::transpose(pixels.x[c], rows);
#pragma unroll
      for (int i = 0; i < kEmbedChunk; ++i) {
        make_fragment<float, kParts, 1>({rows[i]}, values[c * kEmbedChunk + i]);
      }
    }
    // The next ones are on their way meanwhile.
    pixel += params.walkers * (kEmbedWgradWarps * kEmbedUnitPixels);
    pixels.load(params, buffers, offsets, pixel, first_filter);
#pragma unroll
    for (int c = 0; c < Pixels::kChunks; ++c) {
      if (c * 8 >= params.chunks) break;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const EmbedFragment<kParts, 2> left[] = {gradients[m]};
        const EmbedFragment<kParts, 1> right[] = {values[c * 4], values[c * 4 + 1], values[c * 4 + 2],
                                                  values[c * 4 + 3]};
        multiply_stem<true>(left, right, [&](int, int j) -> float (&)[4] { return sum[m][c * 4 + j]; });
      }
    }
  }

  // The warps' sums are added in order, four at a time: of a chunk's values, which four products have.
  constexpr int kQuads = 2 * kTiles;
  extern __shared__ uint4 embed_smem[];
  auto* const sums = reinterpret_cast<float4*>(embed_smem);
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const int m = q / 4 % 2, first_tile = q / 8 * kEmbedChunk, at = q % 4;
    sums[q * kEmbedWgradThreads + thread] = make_float4(sum[m][first_tile][at], sum[m][first_tile + 1][at],
                                                        sum[m][first_tile + 2][at], sum[m][first_tile + 3][at]);
  }
  __syncthreads();
  const int64_t patch = int64_t{params.channels} * params.taps_h * params.taps_w;
#pragma unroll 1
  for (int32_t i = thread; i < kQuads * 32; i += kEmbedWgradThreads) {
    const int32_t q = i / 32, of = i % 32;
    const int32_t filter = first_filter + embed_wgrad_filter(kChannelsInner, q / 4 % 2 * 2 + q % 4 / 2, of);
    const int32_t chunk = q / 8 * 8 + of % 4 * 2 + q % 2;
    if (filter >= params.filters || chunk >= params.chunks) continue;
    float all[kEmbedChunk] = {};
    for (int warp = 0; warp < kEmbedWgradWarps; ++warp) {
      const float4 v = sums[q * kEmbedWgradThreads + warp * 32 + of];
      all[0] += v.x, all[1] += v.y, all[2] += v.z, all[3] += v.w;
    }
    float* const to = buffers.sums + (int64_t{walker} * params.filters + filter) * patch;
#pragma unroll
    for (int value = 0; value < kEmbedChunk; ++value) {
      const EmbedTap tap(params, chunk, value);
      to[(tap.channel * params.taps_h + tap.row) * params.taps_w + tap.column] = all[value];
    }
  }
#endif
}

}  // namespace fastconv
