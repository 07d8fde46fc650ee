// Weight gradient of patch embeddings; see tile/embed.h. A warp adds up its share of the pixels for a set of filters; a
// second kernel adds the blocks' sums.
#pragma once

#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/mainloop_embed.cuh"

namespace fastconv {

template <typename T>
struct EmbedWgradBuffers {
  const T* x;
  const T* y;
  float* sums;  // [walker][filter][channel][row][column]
};

// A lane's values of sixteen pixels, four of them: of four filters, and of some pairs of the patches. As they were
// read: values of one pixel or filter side by side.
template <typename T, bool kChannelsInner>
struct EmbedPixels {
  using Pair = Words<kEmbedPair * sizeof(T)>;
  EmbedChunk<T> y[kEmbedChunk];
  Pair x[kEmbedPairs][kEmbedChunk];

  __device__ __forceinline__ void load(const EmbedParams& params, const EmbedWgradBuffers<T>& buffers,
                                       const int32_t (&offsets)[kEmbedPairs], int32_t first_pixel,
                                       int32_t first_filter) {
    // Each lane finds a pixel in one of the tensors, for all.
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
    const EmbedPixel found(params, min(first_pixel + lane % kEmbedUnitPixels, params.pixels - 1));
    const int64_t mine = lane < kEmbedUnitPixels ? found.source : found.target;
    int64_t target[kEmbedChunk];
#pragma unroll
    for (int i = 0; i < kEmbedChunk; ++i) {
      const int32_t of_unit = embed_wgrad_pixel(kChannelsInner, i, lane);
      const T* from = buffers.x + __shfl_sync(~0u, mine, of_unit);
      target[i] = __shfl_sync(~0u, mine, kEmbedUnitPixels + of_unit);
#pragma unroll
      for (int pair = 0; pair < kEmbedPairs; ++pair) {
        x[pair][i] = {};
        if (first_pixel + of_unit < params.pixels && offsets[pair] >= 0) {
          x[pair][i] = *reinterpret_cast<const Pair*>(from + offsets[pair]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kEmbedChunk; ++i) {
      // Of pixel i filters or, if pixels lie side by side, of filter i pixels.
      const int32_t pixel = first_pixel + embed_wgrad_pixel(kChannelsInner, kChannelsInner ? i : 0, lane);
      const int32_t filter = first_filter + embed_wgrad_filter(kChannelsInner, kChannelsInner ? 0 : i, lane);
      const T* from = buffers.y + filter * params.target_c;
      y[i] = {};
      if (pixel >= params.pixels || filter >= params.filters) continue;
      if (params.whole_runs) {
        y[i] = *reinterpret_cast<const EmbedChunk<T>*>(from + target[kChannelsInner ? i : 0]);
      } else if constexpr (kChannelsInner) {
        y[i] = load_each(
            from, [&](int k) { return target[i] + k * params.target_c; },
            [&](int k) { return filter + k < params.filters; });
      } else {
        y[i] = load_each(from, [&](int k) { return target[k]; }, [&](int k) { return pixel + k < params.pixels; });
      }
    }
  }
};

template <typename T, int kParts, bool kChannelsInner>
__global__ void __launch_bounds__(kEmbedWgradThreads, 1)
    embed_wgrad(const __grid_constant__ EmbedParams params, const EmbedWgradBuffers<T> buffers) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  constexpr int kPair = kEmbedPair, kTiles = kPair * kEmbedPairs;
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  int32_t walker, first_filter;
  params.by_set_blocks.divmod(static_cast<int32_t>(blockIdx.x), walker, first_filter);
  first_filter *= kEmbedUnitFilters;

  int32_t offsets[kEmbedPairs];
#pragma unroll
  for (int i = 0; i < kEmbedPairs; ++i) {
    const int32_t pair = i * 8 + lane / 4, chunk = pair * kPair / kEmbedChunk;
    offsets[i] = chunk < params.chunks ? embed_chunk(params, chunk) + pair * kPair % kEmbedChunk : -1;
  }
  const int32_t pairs = (params.chunks * kEmbedChunk + 8 * kPair - 1) / (8 * kPair);  // that lanes have
  float sum[kEmbedPairs][2][kPair][4] = {};
  EmbedPixels<T, kChannelsInner> pixels;
  const int32_t first = (walker * kEmbedWgradWarps + thread / 32) * kEmbedUnitPixels;
  pixels.load(params, buffers, offsets, first, first_filter);
#pragma unroll 1
  for (int32_t pixel = first; pixel < params.pixels;) {
    EmbedFragment<T, kParts, 2> gradients[2];
    EmbedFragment<T, kParts, 1> values[kEmbedPairs][kPair];
    EmbedChunk<T> filters[kEmbedChunk];
    if constexpr (kChannelsInner) transpose<T, kEmbedChunk>(pixels.y, filters);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const EmbedChunk<T>(&of)[kEmbedChunk] = kChannelsInner ? filters : pixels.y;
      make_fragment<T, kParts>({of[2 * m], of[2 * m + 1]}, gradients[m]);
    }
#pragma unroll
    for (int i = 0; i < kEmbedPairs; ++i) {
      if (i >= pairs) break;
      EmbedChunk<T> rows[kPair];
      transpose<T, kPair>(pixels.x[i], rows);
#pragma unroll
      for (int j = 0; j < kPair; ++j) make_fragment<T, kParts, 1>({rows[j]}, values[i][j]);
    }
    // The next ones are on their way meanwhile.
    pixel += params.walkers * (kEmbedWgradWarps * kEmbedUnitPixels);
    pixels.load(params, buffers, offsets, pixel, first_filter);
#pragma unroll
    for (int i = 0; i < kEmbedPairs; ++i) {
      if (i >= pairs) break;
      float orders[kEmbedOrders<kParts>][2][kPair][4] = {};
      multiply_embed<T, kParts>(gradients, values[i], orders);
#pragma unroll
      for (int k = 0; k < 2 * kPair * 4; ++k) {
        sum[i][k / 4 / kPair][k / 4 % kPair][k % 4] +=
            join_orders<kParts>([&](int order) { return orders[order][k / 4 / kPair][k / 4 % kPair][k % 4]; });
      }
    }
  }

  // The warps' sums are added in order, four at a time: of a chunk's values, of which a lane has both pairs.
  constexpr int kQuads = 2 * kTiles;
  extern __shared__ uint4 embed_smem[];
  auto* const sums = reinterpret_cast<float4*>(embed_smem);
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const float (&tiles)[kPair][4] = sum[q / 4][q / 2 % 2];
    const int at = q % 2 * 2;
    sums[q * kEmbedWgradThreads + thread] = make_float4(tiles[0][at], tiles[1][at], tiles[0][at + 1], tiles[1][at + 1]);
  }
  __syncthreads();
  const int64_t patch = int64_t{params.channels} * params.taps_h * params.taps_w;
#pragma unroll 1
  for (int32_t i = thread; i < kQuads * 32; i += kEmbedWgradThreads) {
    const int32_t q = i / 32, of = i % 32;
    const int32_t filter = first_filter + embed_wgrad_filter(kChannelsInner, q % 4, of), chunk = q / 4 * 4 + of % 4;
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
