// Output of convolutions of images of one to four channels, of 16 bits or rounded to TF32; see tile/quads.h. Sums are
// float32.
#pragma once

#include <cstddef>
#include <type_traits>

#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/element.cuh"
#include "fastconv/tile/kept.cuh"
#include "fastconv/tile/quads.h"
#include "fastconv/tile/split.h"

namespace fastconv {

template <typename T>
struct QuadsBuffers {
  const T* x;
  const T* w;
  const T* bias;
  T* y;
};

// Of an element. A quad is so many products' share of a lane, two registers each.
template <typename T>
using QuadsBits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
template <typename T>
inline constexpr int kQuadProducts = sizeof(T) / 2;
template <typename T>
inline constexpr int32_t kQuadsRunOf = 16 / sizeof(T);

// Four channels in registers as products take them.
template <typename T>
__device__ __forceinline__ void put_together(const uint32_t (&channels)[kQuadChannels],
                                             uint32_t (&quad)[2 * kQuadProducts<T>]) {
#pragma unroll
  for (int i = 0; i < 2 * kQuadProducts<T>; ++i) {
    if constexpr (sizeof(T) == 2) {
      quad[i] = channels[2 * i] | channels[2 * i + 1] << 16;
    } else {
      quad[i] = to_tf32(__uint_as_float(channels[i]));
    }
  }
}

// A thread's pixels of a tile, on their way from memory through registers.
template <typename T>
class StagedQuads {
 public:
  __device__ __forceinline__ void load(const QuadsParams& params, const T* x, const QuadsTile& tile) {
    const auto* image = reinterpret_cast<const QuadsBits<T>*>(x) + tile.image * params.source.n;
    params.words == QuadsWords::kNone ? load<false>(params, image, tile) : load<true>(params, image, tile);
  }

  // Put together when all are there.
  __device__ __forceinline__ void store(const QuadsParams& params, uint32_t smem) const {
    if (params.words == QuadsWords::kNone) {
      store<1, 1>(params, smem);
    } else if (params.words == QuadsWords::kPlanes) {
      store<kWord, 1, kWord>(params, smem);
    } else {
      switch (params.channels) {
        case 2: return store<kWord, 2>(params, smem);
        case 3: return store<kWord, 3>(params, smem);
        default: return store<kWord, 4>(params, smem);
      }
    }
  }

 private:
  static constexpr int kWord = kQuadsWordBytes / sizeof(T);  // elements

  // Offsets of pixels that exist fit 32 bits.
  template <bool kWords>
  __device__ __forceinline__ void load(const QuadsParams& params, const QuadsBits<T>* image, const QuadsTile& tile) {
    const auto row_step = static_cast<uint32_t>(params.source.h), column_step = static_cast<uint32_t>(params.source.w);
    const auto thread = kept(static_cast<int32_t>(threadIdx.x));  // or quotients would take registers all the time
    const auto threads = static_cast<int32_t>(blockDim.x);
#pragma unroll
    for (int i = 0; i < quads_staged(kWords); ++i) {
      if (i * threads >= params.units) return;
      const int32_t unit = thread + i * threads;
      int32_t down, right;
      params.by_units_w.divmod(unit, down, right);
      const auto row = static_cast<uint32_t>(tile.source_h + down);
      const auto column = static_cast<uint32_t>(tile.source_w + right * (kWords ? kWord : 1));
      const bool exists = unit < params.units && row < static_cast<uint32_t>(params.h.source_extent) &&
                          column < static_cast<uint32_t>(params.w.source_extent);
      const auto* from = image + static_cast<int32_t>(row * row_step + column * column_step);
#pragma unroll
      for (int k = 0; k < kQuadChannels; ++k, from += params.word_step) {
        const bool is_read = exists && k < params.channels;
        if constexpr (kWords) {
          const uint2 word = is_read ? *reinterpret_cast<const uint2*>(from) : uint2{};
          words_[(i * kQuadChannels + k) * 2] = word.x, words_[(i * kQuadChannels + k) * 2 + 1] = word.y;
        } else {
          words_[i * kQuadChannels + k] = is_read ? *from : 0;
        }
      }
    }
  }

  // Units of so many pixels, the elements of which lie so far apart in registers: pixels', and a pixel's channels'.
  template <int kPixels, int kPixelStep, int kChannelStep = 1>
  __device__ __forceinline__ void store(const QuadsParams& params, uint32_t smem) const {
    constexpr bool kWords = kPixels > 1;
    // Where a pixel's channels lie side by side, it has as many as there are from one pixel to the next.
    constexpr int kChannels = kWords && kChannelStep == 1 ? kPixelStep : kQuadChannels;
#pragma unroll
    for (int i = 0; i < quads_staged(kWords); ++i) {
      const auto unit = static_cast<int32_t>(threadIdx.x + i * blockDim.x);
      if (unit >= params.units) return;
      uint32_t quads[kPixels * 2 * kQuadProducts<T>];
#pragma unroll
      for (int pixel = 0; pixel < kPixels; ++pixel) {
        uint32_t channels[kQuadChannels] = {}, quad[2 * kQuadProducts<T>];
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          const int element = i * kQuadChannels * kPixels + pixel * kPixelStep + c * kChannelStep;
          if constexpr (kWords && sizeof(T) == 2) {
            channels[c] = element % 2 ? words_[element / 2] >> 16 : words_[element / 2] & 0xffff;
          } else {
            channels[c] = words_[element];
          }
        }
        put_together<T>(channels, quad);
#pragma unroll
        for (int k = 0; k < 2 * kQuadProducts<T>; ++k) quads[pixel * 2 * kQuadProducts<T> + k] = quad[k];
      }
      constexpr int kBytes = sizeof(quads);
      if constexpr (kBytes == 8) {
        ptx::store_shared8(smem + unit * kBytes, make_uint2(quads[0], quads[1]));
      } else {
#pragma unroll
        for (int k = 0; k < kBytes / 4; k += 4) {
          ptx::store_shared16(smem + unit * kBytes + k * 4,
                              make_uint4(quads[k], quads[k + 1], quads[k + 2], quads[k + 3]));
        }
      }
    }
  }

  uint32_t words_[4 * kQuadChannels];
};

// What a block has in shared memory beside tiles.
template <typename T, bool kChannelsInner>
__device__ __forceinline__ void prepare_quads(const QuadsParams& params, const T* w, const T* bias, int32_t first_set,
                                              uint32_t smem) {
  const auto thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x), lane = thread % 32;
  for (int32_t i = thread; i < params.steps * kQuadsStepTaps; i += threads) {
    ptx::store_shared4(smem + params.table_at + i * 4, quads_tap(params, i));
  }
  for (int32_t i = thread; i < params.runs(); i += threads) {
    const QuadsRun run(params, i);
    ptx::store_shared16(smem + params.runs_at + i * 16,
                        make_uint4(static_cast<uint32_t>(run.place), static_cast<uint32_t>(run.offset),
                                   static_cast<uint32_t>(run.row), static_cast<uint32_t>(run.column)));
  }
  if (thread == 0) ptx::store_shared16(smem + params.zeros_at, make_uint4(0, 0, 0, 0));
  for (int32_t i = thread; i < params.sets() * kQuadsUnit; i += threads) {
    const int32_t filter = first_set * kQuadsUnit + i;
    const float value = bias != nullptr && filter < params.filters ? widen(bias[filter]) : 0;
    ptx::store_shared4(smem + params.bias_at + i * 4, __float_as_uint(value));
  }
#pragma unroll 2
  for (int32_t i = thread / 32; i < params.sets() * params.steps * 2; i += threads / 32) {
    int32_t set, step, r, s;
    params.by_steps.divmod(i / 2, set, step);
    const int32_t tap = step * kQuadsStepTaps + lane % 4;
    params.by_taps_w.divmod(tap, r, s);
    const auto* from = reinterpret_cast<const QuadsBits<T>*>(w) + (r * params.filter.h + s * params.filter.w);
    uint32_t quads[2][2 * kQuadProducts<T>];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int32_t filter = (first_set + set) * kQuadsUnit + quads_filter(kChannelsInner, lane, i % 2 * 2 + j);
      uint32_t values[kQuadChannels];
#pragma unroll
      for (int c = 0; c < kQuadChannels; ++c) {
        const bool exists = tap < params.taps && filter < params.filters && c < params.channels;
        values[c] = exists ? from[filter * params.filter.n + c * params.filter.c] : 0;
      }
      put_together<T>(values, quads[j]);
    }
#pragma unroll
    for (int h = 0; h < kQuadProducts<T>; ++h) {
      ptx::store_shared16(smem + params.filter_at + ((i / 2 * kQuadProducts<T> + h) * 2 + i % 2) * 512 + lane * 16,
                          make_uint4(quads[0][2 * h], quads[1][2 * h], quads[0][2 * h + 1], quads[1][2 * h + 1]));
    }
  }
}

// A lane's share of a set's filter, of a product's depth: of two blocks of rows.
struct QuadsFilter {
  static constexpr int32_t kBytes = 2 * 512;
  uint4 blocks[2];

  QuadsFilter() = default;
  __device__ __forceinline__ explicit QuadsFilter(uint32_t address)
      : blocks{ptx::load_shared16(address), ptx::load_shared16(address + 512)} {}
};

// Of a run, the place, before products, or all, after them: it takes fewer registers to load it again.
static_assert(sizeof(QuadsRun) == 16 && offsetof(QuadsRun, place) == 0);
__device__ __forceinline__ uint32_t load_run_place(uint32_t address) { return ptx::load_shared4(address); }
__device__ __forceinline__ QuadsRun load_run(uint32_t address) {
  const uint4 v = ptx::load_shared16(address);
  QuadsRun run;
  run.place = static_cast<int32_t>(v.x), run.offset = static_cast<int32_t>(v.y);
  run.row = static_cast<int32_t>(v.z), run.column = static_cast<int32_t>(v.w);
  return run;
}

// Neighbours in the output, of which so many exist. kWhole: all of them, if any does.
template <bool kWhole, typename T, int kCount>
__device__ __forceinline__ void store_neighbours(T* y, int32_t step, const float (&values)[kCount], int32_t exist) {
  if constexpr (kWhole) {
    uint32_t words[kCount * sizeof(T) / 4];
#pragma unroll
    for (int i = 0; i < kCount * static_cast<int>(sizeof(T)) / 4; ++i) {
      if constexpr (sizeof(T) == 2) {
        words[i] = pack2<T>(values[2 * i], values[2 * i + 1]);
      } else {
        words[i] = __float_as_uint(values[i]);
      }
    }
    if (exist <= 0) return;
    if constexpr (sizeof(words) == 8) {
      ptx::store_global8(y, words);
    } else {
      ptx::store_global16(y, words);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < exist) y[i * step] = narrow<T>(values[i]);
    }
  }
}

// Sums of 32 filters, in blocks of 16, and 32 pixels.
template <typename T, bool kChannelsInner>
struct QuadsUnit {
  static constexpr int kBlocks = 2, kProducts = 4, kRows = 2 * kBlocks, kColumns = 2 * kProducts;  // a lane's
  static constexpr int32_t kRun = kQuadsRunOf<T>;
  float sum[kBlocks][kProducts][4];

  __device__ __forceinline__ float& at(int row, int column) {
    return sum[row / 2][column / 2][row % 2 * 2 + column % 2];
  }

  // `bias`: of the set's filters.
  __device__ __forceinline__ void start(uint32_t bias, int32_t lane) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float value = __uint_as_float(ptx::load_shared4(bias + quads_filter(kChannelsInner, lane, row) * 4));
#pragma unroll
      for (int column = 0; column < kColumns; ++column) at(row, column) = value;
    }
  }

  // A step. `from`: where the lane's quad of its column of each product is; `filter_of` a product of the step.
  template <typename FilterOf>
  __device__ __forceinline__ void multiply(const uint32_t (&from)[kProducts], FilterOf&& filter_of) {
    uint32_t quads[kProducts][2 * kQuadProducts<T>];
#pragma unroll
    for (int t = 0; t < kProducts; ++t) {
      if constexpr (sizeof(T) == 2) {
        const uint2 v = ptx::load_shared8(from[t]);
        quads[t][0] = v.x, quads[t][1] = v.y;
      } else {
        const uint4 v = ptx::load_shared16(from[t]);
        quads[t][0] = v.x, quads[t][1] = v.y, quads[t][2] = v.z, quads[t][3] = v.w;
      }
    }
#pragma unroll
    for (int h = 0; h < kQuadProducts<T>; ++h) {
      const QuadsFilter filter = filter_of(h);
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const uint4& f = filter.blocks[m];
        const uint32_t rows[] = {f.x, f.y, f.z, f.w};
#pragma unroll
        for (int t = 0; t < kProducts; ++t) ptx::mma(T{}, sum[m][t], rows, quads[t][2 * h], quads[t][2 * h + 1]);
      }
    }
  }

  // `y`: the tile's first pixel, `runs`: the unit's, `first_filter`: the set's. kWhole: as params.whole_runs.
  template <bool kWhole>
  __device__ __forceinline__ void store(const QuadsParams& params, const QuadsTile& tile, T* y, uint32_t runs,
                                        int32_t first_filter, int32_t lane) {
    // A lane's neighbours: of its filters, or of its pixels.
    constexpr int kFilters = kChannelsInner ? kQuadsFilters : 1, kPixels = kChannelsInner ? 1 : kRun;
    const auto filter_step = static_cast<int32_t>(params.target.c), pixel_step = static_cast<int32_t>(params.target.w);
#pragma unroll
    for (int column = 0; column < kColumns; column += kPixels) {
#pragma unroll
      for (int row = 0; row < kRows; row += kFilters) {
        const auto pixel =
            static_cast<uint32_t>(quads_pixel(kChannelsInner, kRun, column / 2, lane % 4 * 2 + column % 2));
        const QuadsRun run = load_run(runs + pixel / kRun * 16);
        const auto of_run = static_cast<int32_t>(pixel % kRun);
        const int32_t filter = first_filter + quads_filter(kChannelsInner, lane, row);
        const int32_t pixels = run.left(tile) - of_run, filters = params.filters - filter;
        float values[kFilters * kPixels];
#pragma unroll
        for (int k = 0; k < kFilters * kPixels; ++k) values[k] = at(row + k % kFilters, column + k % kPixels);
        T* to = y + (run.offset + of_run * pixel_step + filter * filter_step);
        if constexpr (kChannelsInner) {
          store_neighbours<kWhole>(to, filter_step, values, pixels > 0 ? filters : 0);
        } else {
          store_neighbours<kWhole>(to, pixel_step, values, filters > 0 ? pixels : 0);
        }
      }
    }
  }
};

// kSteps: of filters that warps keep in registers, each that of one set; 0: any number, from shared memory.
template <typename T, bool kChannelsInner, int kSteps>
__global__ void __launch_bounds__(quads_threads(kSteps, sizeof(T) == 4))
    quads_fprop(const __grid_constant__ QuadsParams params, const QuadsBuffers<T> buffers) {
#if __CUDA_ARCH__ >= 800
  using Unit = QuadsUnit<T, kChannelsInner>;
  constexpr int kOfStep = kQuadProducts<T>;
  ptx::follow_previous_kernel();
  extern __shared__ uint4 quads_smem[];
  const uint32_t smem = ptx::smem_address(quads_smem), zeros = smem + params.zeros_at;
  const auto warp = static_cast<int32_t>(threadIdx.x / 32), warps = static_cast<int32_t>(blockDim.x / 32),
             lane = static_cast<int32_t>(threadIdx.x % 32);
  int32_t walker, first_set;
  params.by_set_blocks.divmod(static_cast<int32_t>(blockIdx.x), walker, first_set);
  first_set *= params.sets();
  auto filter_of = [&](int32_t set, int32_t product) {
    const uint32_t address = smem + params.filter_at + lane * 16;
    return QuadsFilter(address + (set * params.steps * kOfStep + product) * QuadsFilter::kBytes);
  };
  auto tap_of = [&](int32_t step) {
    return static_cast<int32_t>(ptx::load_shared4(smem + params.table_at + (step * kQuadsStepTaps + lane % 4) * 4));
  };

  StagedQuads<T> staged;
  if (walker < params.tiles) staged.load(params, buffers.x, QuadsTile(params, walker));
  prepare_quads<T, kChannelsInner>(params, buffers.w, buffers.bias, first_set, smem);
  const int32_t own_set = warp % params.sets();
  QuadsFilter kept_filters[kSteps > 0 ? kSteps * kOfStep : 1];
  int32_t kept_taps[kSteps > 0 ? kSteps : 1];
  if constexpr (kSteps > 0) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) kept_taps[i] = tap_of(i);
#pragma unroll
    for (int i = 0; i < kSteps * kOfStep; ++i) kept_filters[i] = filter_of(own_set, i);
  }
  uint32_t stage = smem, other = smem + params.stage_bytes;
#pragma unroll 1
  for (int32_t index = walker; index < params.tiles; index += params.walkers) {
    const QuadsTile tile(params, index);
    staged.store(params, stage);
    __syncthreads();
    // The next tile's pixels are on their way meanwhile.
    const int32_t next = index + params.walkers;
    if (next < params.tiles) staged.load(params, buffers.x, QuadsTile(params, next));
    T* y =
        kept_global(buffers.y + (tile.image * params.target.n + tile.p * params.target.h + tile.q * params.target.w));
    const uint32_t first_place = stage + tile.lead * params.quad_bytes;
    const int32_t units = (tile.rows * params.tile_q + kQuadsUnit - 1) / kQuadsUnit * params.sets();
#pragma unroll 1
    for (int32_t i = warp; i < units; i += warps) {
      int32_t number, set;
      params.by_sets.divmod(i, number, set);
      if constexpr (kSteps > 0) set = own_set;  // and the compiler knows
      const uint32_t runs = smem + params.runs_at + number * (kQuadsUnit / Unit::kRun) * 16;
      uint32_t places[Unit::kProducts];
#pragma unroll
      for (int t = 0; t < Unit::kProducts; ++t) {
        const auto pixel = static_cast<uint32_t>(quads_pixel(kChannelsInner, Unit::kRun, t, lane / 4));
        places[t] =
            first_place + load_run_place(runs + pixel / Unit::kRun * 16) + pixel % Unit::kRun * params.place_step();
      }
      Unit unit;
      unit.start(smem + params.bias_at + set * kQuadsUnit * 4, lane);
      const int32_t steps = kSteps > 0 ? kSteps : params.steps;
#pragma unroll(kSteps > 0 ? kSteps : 1)
      for (int32_t k = 0; k < steps; ++k) {
        const int32_t tap = kSteps > 0 ? kept_taps[kSteps > 0 ? k : 0] : tap_of(k);
        // Beyond the last tap, zeros: whatever is in memory must not meet those of the filter.
        const bool exists = k + 1 < steps || tap >= 0;
        uint32_t from[Unit::kProducts];
#pragma unroll
        for (int t = 0; t < Unit::kProducts; ++t) from[t] = exists ? places[t] + tap : zeros;
        unit.multiply(from, [&](int h) {
          return kSteps > 0 ? kept_filters[kSteps > 0 ? k * kOfStep + h : 0] : filter_of(set, k * kOfStep + h);
        });
      }
      const int32_t first_filter = (first_set + set) * kQuadsUnit;
      params.whole_runs ? unit.template store<true>(params, tile, y, runs, first_filter, lane)
                        : unit.template store<false>(params, tile, y, runs, first_filter, lane);
    }
    // Whoever is still at work with this tile meets the others before its place is filled again.
    const uint32_t done = stage;
    stage = other, other = done;
  }
#endif
}

}  // namespace fastconv
