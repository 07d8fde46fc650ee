// Output of patch embeddings; see families/few_channels/embed.h. Sums are float32.
#pragma once

#include "fastconv/families/few_channels/embed_mainloop.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/epilogue.cuh"

namespace fastconv {

template <typename T>
struct EmbedBuffers {
  const T* x;
  const T* w;
  Epilogue<T> epilogue;
  T* y;
};

// Values that a lane stores at once, side by side: filters or, of so few products, pixels.
template <typename T, bool kChannelsInner>
inline constexpr int32_t kEmbedRun = kChannelsInner ? 16 / static_cast<int32_t>(sizeof(T)) : 4;

// A block's filters as products read them: [set][step][part][half][lane].
template <typename T, int kParts, bool kChannelsInner>
__device__ __forceinline__ void pack_embed_filter(const EmbedParams& params, const T* w, int32_t first_set,
                                                  uint32_t smem) {
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32, warps = static_cast<int32_t>(blockDim.x) / 32;
#pragma unroll 1
  for (int32_t i = static_cast<int32_t>(threadIdx.x) / 32; i < params.sets * params.steps * 2; i += warps) {
    const int32_t half = i % 2, set = i / 2 / params.steps, step = i / 2 - set * params.steps;
    const int32_t chunk = step * kEmbedStepChunks + lane % 4;
    EmbedWords<T> rows[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int32_t filter = (first_set + set) * kEmbedUnitFilters +
                             run_filter(kChannelsInner, kEmbedRun<T, kChannelsInner>, lane, half, j);
      const bool exists = filter < params.filters && chunk < params.chunks;
      rows[j] = load_each(
          w + filter * params.filter.n,
          [&](int value) {
            const EmbedTap tap(params, chunk, value);
            return tap.channel * params.filter.c + tap.row * params.filter.h + tap.column * params.filter.w;
          },
          [&](int) { return exists; });
    }
    EmbedFragment<kParts, 2> fragment;
    make_fragment<T, kParts>(rows, fragment);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint32_t (&v)[4] = fragment.part[part];
      ptx::store_shared16(smem + (((i / 2 * kParts + part) * 2 + half) * 32 + lane) * 16,
                          kChannelsInner ? make_uint4(v[0], v[2], v[1], v[3]) : make_uint4(v[0], v[1], v[2], v[3]));
    }
  }
}

// A lane's chunks of a unit's pixels, those of a round.
template <typename T, bool kChannelsInner>
struct EmbedRound {
  EmbedWords<T> chunk[kEmbedSteps][2];

  __device__ __forceinline__ void load(const EmbedParams& params, const T* x, int32_t first_pixel, int32_t round) {
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t pixel = first_pixel + embed_pixel(kChannelsInner, i, lane);
      const T* from = x + EmbedPixel(params, min(pixel, params.pixels - 1)).source;
#pragma unroll
      for (int step = 0; step < kEmbedSteps; ++step) {
        const int32_t index = (round * kEmbedSteps + step) * kEmbedStepChunks + lane % 4;
        chunk[step][i] = {};
        if (pixel < params.pixels && index < params.chunks) {
          chunk[step][i] = *reinterpret_cast<const EmbedWords<T>*>(from + embed_chunk(params, index));
        }
      }
    }
  }
};

// Sums of a unit: pixels are rows and filters columns, or the other way round.
template <typename T, int kParts, bool kChannelsInner>
struct EmbedUnit {
  static constexpr int kLeft = kChannelsInner ? 1 : 2, kRight = 4 / kLeft;
  static constexpr int32_t kRun = kEmbedRun<T, kChannelsInner>, kRuns = 16 / kRun;  // of a lane
  static constexpr int kTargets = kChannelsInner ? 2 : 1;  // a lane's pixels, or the first of them
  using Sums = float[kLeft][kRight][4];
  Sums sum = {};

  __device__ __forceinline__ void finish(const EmbedParams& params, const Epilogue<T>& epilogue, int32_t first_filter) {
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
    for_sums([&](int i, int j, int k) {
      const int32_t filter =
          first_filter + (kChannelsInner ? run_column(kRun, j, lane % 4 * 2 + k % 2) : i * 16 + k / 2 * 8 + lane / 4);
      sum[i][j][k] = epilogue.of(filter, filter < params.filters)(sum[i][j][k]);
    });
  }

  // Adds a round, whose filter `filter` is, and of which so many steps exist.
  __device__ __forceinline__ void multiply(const EmbedFragment<kParts, 2> (&pixels)[kEmbedSteps], uint32_t filter,
                                           int32_t steps) {
    Sums orders[kParts] = {};
#pragma unroll
    for (int step = 0; step < kEmbedSteps; ++step) {
      if (step >= steps) break;
      EmbedFragment<kParts, 2> left[kLeft];
      EmbedFragment<kParts, 1> right[kRight];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const uint32_t (&of_pixels)[4] = pixels[step].part[part];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 v = ptx::load_shared16(filter + ((step * kParts + part) * 2 + half) * 512);
          if constexpr (kChannelsInner) {
            right[2 * half].part[part][0] = v.x, right[2 * half].part[part][1] = v.y;
            right[2 * half + 1].part[part][0] = v.z, right[2 * half + 1].part[part][1] = v.w;
          } else {
            uint32_t (&words)[4] = left[half].part[part];
            words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
            right[half].part[part][0] = of_pixels[half], right[half].part[part][1] = of_pixels[2 + half];
          }
        }
        if constexpr (kChannelsInner) {
#pragma unroll
          for (int i = 0; i < 4; ++i) left[0].part[part][i] = of_pixels[i];
        }
      }
      multiply_embed<T, kParts>(left, right, orders);
    }
    for_sums([&](int i, int j, int k) {
      sum[i][j][k] += join_orders<kParts>([&](int order) { return orders[order][i][j][k]; });
    });
  }

  // Of a unit from its first pixel on; negative where there is none.
  static __device__ __forceinline__ void find_targets(const EmbedParams& params, int32_t first_pixel,
                                                      int64_t (&targets)[kTargets]) {
#pragma unroll
    for (int i = 0; i < kTargets; ++i) {
      const int32_t pixel = first_pixel + (kChannelsInner ? row_of(i * kRuns / 2) : column_of(0));
      targets[i] = pixel < params.pixels ? EmbedPixel(params, pixel).target : -1;
    }
  }

  __device__ __forceinline__ void store(const EmbedParams& params, T* y, const int64_t (&targets)[kTargets],
                                        int32_t first_pixel, int32_t first_filter) const {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const int32_t pixel = first_pixel + (kChannelsInner ? row_of(run) : column_of(run));
      const int32_t filter = first_filter + (kChannelsInner ? column_of(run) : row_of(run));
      const int64_t target = targets[kChannelsInner ? run / (kRuns / 2) : 0];
      if (target < 0 || filter >= params.filters) continue;
      if (params.whole_runs) {
        store_run(run, y + (target + filter * params.target_c));
        continue;
      }
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        if (kChannelsInner ? filter + k >= params.filters : pixel + k >= params.pixels) break;
        const int64_t at = kChannelsInner ? target : EmbedPixel(params, pixel + k).target;
        y[at + (filter + (kChannelsInner ? k : 0)) * params.target_c] = narrow<T>(value(run, k));
      }
    }
  }

 private:
  template <typename F>
  static __device__ __forceinline__ void for_sums(F&& f) {
#pragma unroll
    for (int i = 0; i < kLeft; ++i) {
#pragma unroll
      for (int j = 0; j < kRight; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) f(i, j, k);
      }
    }
  }

  // Of a lane's run: the row, and the first column.
  static __device__ __forceinline__ int32_t row_of(int run) {
    return (kChannelsInner ? run / (kRuns / 2) : run) * 8 + static_cast<int32_t>(threadIdx.x) % 32 / 4;
  }
  static __device__ __forceinline__ int32_t column_of(int run) {
    const int32_t first = static_cast<int32_t>(threadIdx.x) % 4 * kRun;
    return kChannelsInner ? run % (kRuns / 2) * 4 * kRun + first : first;
  }
  // Value `k` of run `run` of a lane.
  __device__ __forceinline__ float value(int run, int k) const {
    if constexpr (kChannelsInner) {
      constexpr int kRowRuns = kRuns / 2;
      return sum[0][run % kRowRuns * (kRun / 2) + k / 2][run / kRowRuns * 2 + k % 2];
    } else {
      return sum[run / 2][k / 2][run % 2 * 2 + k % 2];
    }
  }
  __device__ __forceinline__ void store_run(int run, T* y) const {
    if constexpr (sizeof(T) == 4) {
      *reinterpret_cast<float4*>(y) = make_float4(value(run, 0), value(run, 1), value(run, 2), value(run, 3));
    } else {
      uint32_t words[kRun / 2];
#pragma unroll
      for (int i = 0; i < kRun / 2; ++i) words[i] = pack2<T>(value(run, 2 * i), value(run, 2 * i + 1));
      if constexpr (kRun == 4) {
        *reinterpret_cast<uint2*>(y) = make_uint2(words[0], words[1]);
      } else {
        ptx::store_global16(y, words);
      }
    }
  }
};

template <typename T, int kParts, bool kChannelsInner>
__global__ void __launch_bounds__(EmbedConfig{kParts}.threads(), EmbedConfig{kParts}.blocks_per_sm())
    embed_fprop(const __grid_constant__ EmbedParams params, const EmbedBuffers<T> buffers) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  using Unit = EmbedUnit<T, kParts, kChannelsInner>;
  constexpr int32_t kWarps = EmbedConfig{kParts}.threads() / 32;
  constexpr int32_t kStepBytes = kParts * 1024;
  extern __shared__ uint4 embed_smem[];
  const uint32_t smem = ptx::smem_address(embed_smem);
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  int32_t walker, first_set;
  params.by_set_blocks.divmod(static_cast<int32_t>(blockIdx.x), walker, first_set);
  first_set *= params.sets;

  int32_t pixel = (walker * kWarps + thread / 32) * kEmbedUnitPixels;
  const int32_t pixel_step = params.walkers * kWarps * kEmbedUnitPixels;
  EmbedRound<T, kChannelsInner> values;
  values.load(params, buffers.x, pixel, 0);
  pack_embed_filter<T, kParts, kChannelsInner>(params, buffers.w, first_set, smem);
  __syncthreads();
#pragma unroll 1
  for (; pixel < params.pixels; pixel += pixel_step) {
    EmbedFragment<kParts, 2> pixels[kEmbedSteps];
    int64_t targets[Unit::kTargets];
    Unit::find_targets(params, pixel, targets);
#pragma unroll 1
    for (int32_t set = 0; set < params.sets; ++set) {
      const int32_t filter = (first_set + set) * kEmbedUnitFilters;
      Unit unit;
#pragma unroll 1
      for (int32_t round = 0; round < params.rounds; ++round) {
        // A lone round is the same for all sets.
        if (set == 0 || params.rounds > 1) {
#pragma unroll
          for (int step = 0; step < kEmbedSteps; ++step) make_fragment<T, kParts>(values.chunk[step], pixels[step]);
          // The next one is on its way meanwhile.
          const bool ends = round + 1 == params.rounds, last = ends && (params.rounds == 1 || set + 1 == params.sets);
          values.load(params, buffers.x, last ? pixel + pixel_step : pixel, ends ? 0 : round + 1);
        }
        const int32_t step = round * kEmbedSteps;
        unit.multiply(pixels, smem + (set * params.steps + step) * kStepBytes + lane * 16, params.steps - step);
      }
      unit.finish(params, buffers.epilogue, filter);
      unit.store(params, buffers.y, targets, pixel, filter);
    }
  }
#endif
}

}  // namespace fastconv
