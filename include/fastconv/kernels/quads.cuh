// Output of convolutions of images of one to four channels, of 16 bits or rounded to TF32; see tile/quads.h. Sums are
// float32.
#pragma once

#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/element.cuh"
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

// A thread's pixels of a tile, on their way from memory through registers: of 16 bits two neighbours at once if words
// of the image hold two elements of theirs, otherwise one.
template <typename T>
class StagedQuads {
 public:
  __device__ __forceinline__ explicit StagedQuads(const QuadsParams& params) {
#pragma unroll
    for (int i = 0; i < kQuadsStaged; ++i) {
      params.by_units_w.divmod(static_cast<int32_t>(threadIdx.x) + i * kQuadsThreads, row_[i], column_[i]);
      if (params.pairs != QuadsPairs::kNone) column_[i] *= 2;
    }
  }

  __device__ __forceinline__ void load(const QuadsParams& params, const T* x, const QuadsTile& tile) {
    const auto* image = reinterpret_cast<const QuadsBits<T>*>(x) + tile.image * params.source.n;
    if (sizeof(T) == 4 || params.pairs == QuadsPairs::kNone) {
      load<QuadsBits<T>>(params, image, tile);
    } else {
      load<uint32_t>(params, image, tile);
    }
  }

  // Put together when all are there.
  __device__ __forceinline__ void store(const QuadsParams& params, uint32_t smem) const {
#pragma unroll
    for (int i = 0; i < kQuadsStaged; ++i) {
      const int32_t unit = static_cast<int32_t>(threadIdx.x) + i * kQuadsThreads;
      if (unit >= params.units) return;
      const uint32_t (&w)[kQuadChannels] = words_[i];
      uint32_t quad[2 * kQuadProducts<T>];
      if constexpr (sizeof(T) == 4) {
        put_together<T>(w, quad);
        ptx::store_shared16(smem + unit * 16, make_uint4(quad[0], quad[1], quad[2], quad[3]));
      } else if (params.pairs == QuadsPairs::kNone) {
        put_together<T>(w, quad);
        ptx::store_shared8(smem + unit * 8, make_uint2(quad[0], quad[1]));
      } else {
        ptx::store_shared16(smem + unit * 16, take_apart(params, w));
      }
    }
  }

 private:
  // Two quads.
  static __device__ __forceinline__ uint4 take_apart(const QuadsParams& params, const uint32_t (&w)[kQuadChannels]) {
    auto low = [](uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); };
    auto high = [](uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); };
    if (params.pairs == QuadsPairs::kPlanes) {
      return make_uint4(low(w[0], w[1]), low(w[2], w[3]), high(w[0], w[1]), high(w[2], w[3]));
    }
    switch (params.channels) {
      case 2: return make_uint4(w[0], 0, w[1], 0);
      case 3: return make_uint4(w[0], w[1] & 0xffff, __byte_perm(w[1], w[2], 0x5432), w[2] >> 16);
      default: return make_uint4(w[0], w[1], w[2], w[3]);
    }
  }

  // As many words as there are channels. Offsets of pixels that exist fit 32 bits.
  template <typename Word>
  __device__ __forceinline__ void load(const QuadsParams& params, const QuadsBits<T>* image, const QuadsTile& tile) {
    const auto row_step = static_cast<uint32_t>(params.source.h), column_step = static_cast<uint32_t>(params.source.w);
#pragma unroll
    for (int i = 0; i < kQuadsStaged; ++i) {
      if (i * kQuadsThreads >= params.units) return;
      const auto row = static_cast<uint32_t>(tile.source_h + row_[i]);
      const auto column = static_cast<uint32_t>(tile.source_w + column_[i]);
      const bool exists = static_cast<int32_t>(threadIdx.x) + i * kQuadsThreads < params.units &&
                          row < static_cast<uint32_t>(params.h.source_extent) &&
                          column < static_cast<uint32_t>(params.w.source_extent);
      const auto* from = image + static_cast<int32_t>(row * row_step + column * column_step);
#pragma unroll
      for (int k = 0; k < kQuadChannels; ++k) {
        words_[i][k] = exists && k < params.channels ? *reinterpret_cast<const Word*>(from + k * params.word_step) : 0;
      }
    }
  }

  int32_t row_[kQuadsStaged], column_[kQuadsStaged];
  uint32_t words_[kQuadsStaged][kQuadChannels];
};

// The filter of a block's sets as products read it, and the offsets of the taps.
template <typename T, bool kChannelsInner>
__device__ __forceinline__ void pack_quads_filter(const QuadsParams& params, const T* w, int32_t first_set,
                                                  uint32_t smem) {
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  for (int32_t i = thread; i < params.steps * kQuadsStepTaps; i += kQuadsThreads) {
    ptx::store_shared4(smem + params.table_at + i * 4, quads_tap(params, i));
  }
#pragma unroll 2
  for (int32_t i = thread / 32; i < params.sets() * params.steps * 2; i += kQuadsWarps) {
    int32_t set, step, r, s;
    params.by_steps.divmod(i / 2, set, step);
    const int32_t tap = step * kQuadsStepTaps + lane % 4;
    params.by_taps_w.divmod(tap, r, s);
    const auto* from = reinterpret_cast<const QuadsBits<T>*>(w) + (r * params.filter.h + s * params.filter.w);
    uint32_t quads[2][2 * kQuadProducts<T>];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int32_t filter =
          (first_set + set) * kQuadsUnit + run_filter(kChannelsInner, kQuadsRunOf<T>, lane, i % 2, j);
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
      // As columns of two products, or as rows of one.
      const uint32_t a0 = quads[0][2 * h], a1 = quads[0][2 * h + 1], b0 = quads[1][2 * h], b1 = quads[1][2 * h + 1];
      ptx::store_shared16(smem + params.filter_at + (i * kQuadProducts<T> + h) * 512 + lane * 16,
                          kChannelsInner ? make_uint4(a0, a1, b0, b1) : make_uint4(a0, b0, a1, b1));
    }
  }
}

// Sums of 32 rows, in blocks of 16, and 32 columns.
template <typename T, bool kChannelsInner>
struct QuadsUnit {
  static constexpr int kBlocks = 2, kProducts = 4;
  static constexpr int32_t kStepBytes = kQuadProducts<T> * kQuadsUnit * kQuadsStepTaps * 8;
  static constexpr int kRuns = 8 / kQuadsRunOf<T>;  // of a row, that a lane stores
  static constexpr int32_t kRunsApart = 4 * kQuadsRunOf<T>;
  float sum[kBlocks][kProducts][4];

  __device__ __forceinline__ void start(const T* bias, int32_t first_filter, int32_t filters) {
    auto of = [&](int32_t filter) { return bias != nullptr && filter < filters ? widen(bias[filter]) : 0.f; };
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
    if constexpr (kChannelsInner) {
#pragma unroll
      for (int t = 0; t < kProducts; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float value = of(first_filter + run_column(kQuadsRunOf<T>, t, lane % 4 * 2 + e));
#pragma unroll
          for (auto& products : sum) products[t][e] = products[t][2 + e] = value;
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < 2 * kBlocks; ++k) {
        const float value = of(first_filter + k * 8 + lane / 4);
#pragma unroll
        for (auto& product : sum[k / 2]) product[k % 2 * 2] = product[k % 2 * 2 + 1] = value;
      }
    }
  }

  // `places`: of the pixels that are the lane's rows, or of those that are its column of each product.
  __device__ __forceinline__ void multiply(const uint32_t (&places)[4], uint32_t filter, uint32_t table,
                                           int32_t steps) {
#pragma unroll 1
    for (; steps > 0; --steps, filter += kStepBytes, table += 4 * kQuadsStepTaps) {
      const auto tap = static_cast<int32_t>(ptx::load_shared4(table));
      uint32_t quads[4][2 * kQuadProducts<T>] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Beyond the last tap, zeros: whatever is in memory must not meet those of the filter.
        if (tap < 0) continue;
        if constexpr (sizeof(T) == 2) {
          const uint2 v = ptx::load_shared8(places[i] + tap);
          quads[i][0] = v.x, quads[i][1] = v.y;
        } else {
          const uint4 v = ptx::load_shared16(places[i] + tap);
          quads[i][0] = v.x, quads[i][1] = v.y, quads[i][2] = v.z, quads[i][3] = v.w;
        }
      }
#pragma unroll
      for (int h = 0; h < kQuadProducts<T>; ++h) {
        const uint4 filters[] = {ptx::load_shared16(filter + h * 512),
                                 ptx::load_shared16(filter + (kQuadProducts<T> + h) * 512)};
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
          for (int t = 0; t < kProducts; ++t) {
            const uint4& f = filters[kChannelsInner ? t / 2 : m];
            if constexpr (kChannelsInner) {
              const uint32_t rows[] = {quads[2 * m][2 * h], quads[2 * m + 1][2 * h], quads[2 * m][2 * h + 1],
                                       quads[2 * m + 1][2 * h + 1]};
              ptx::mma(T{}, sum[m][t], rows, t % 2 == 0 ? f.x : f.z, t % 2 == 0 ? f.y : f.w);
            } else {
              const uint32_t rows[] = {f.x, f.y, f.z, f.w};
              ptx::mma(T{}, sum[m][t], rows, quads[t][2 * h], quads[t][2 * h + 1]);
            }
          }
        }
      }
    }
  }

  // Run `run` of the lane's row number `row`, of which so many exist. `whole`: all of them, if any does.
  __device__ __forceinline__ void store(int row, int run, T* y, int64_t step, int32_t exist, bool whole) const {
    auto value = [&](int k) { return sum[row / 2][run * kQuadsRunOf<T> / 2 + k / 2][row % 2 * 2 + k % 2]; };
    if (whole) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (sizeof(T) == 2) {
          words[i] = pack2<T>(value(2 * i), value(2 * i + 1));
        } else {
          words[i] = __float_as_uint(value(i));
        }
      }
      if (exist > 0) ptx::store_global16(y, words);
      return;
    }
#pragma unroll
    for (int k = 0; k < kQuadsRunOf<T>; ++k) {
      if (k < exist) y[k * step] = narrow<T>(value(k));
    }
  }
};

template <typename T, bool kChannelsInner>
__global__ void __launch_bounds__(kQuadsThreads, kQuadsBlocksPerSm)
    quads_fprop(const __grid_constant__ QuadsParams params, const QuadsBuffers<T> buffers) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  extern __shared__ uint4 quads_smem[];
  const uint32_t smem = ptx::smem_address(quads_smem);
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  int32_t walker, first_set;
  params.by_set_blocks.divmod(static_cast<int32_t>(blockIdx.x), walker, first_set);
  first_set *= params.sets();

  StagedQuads<T> staged(params);
  if (walker < params.tiles) staged.load(params, buffers.x, QuadsTile(params, walker));
  pack_quads_filter<T, kChannelsInner>(params, buffers.w, first_set, smem);
#pragma unroll 1
  for (int32_t index = walker; index < params.tiles; index += params.walkers) {
    const QuadsTile tile(params, index);
    staged.store(params, smem);
    __syncthreads();
    // The next tile's pixels are on their way meanwhile.
    const int32_t next = index + params.walkers;
    if (next < params.tiles) staged.load(params, buffers.x, QuadsTile(params, next));
    T* y = buffers.y + (tile.image * params.target.n + tile.p * params.target.h + tile.q * params.target.w);
    const uint32_t first_place = smem + tile.lead * params.quad_bytes;
    const int32_t units = (tile.rows * params.tile_q + kQuadsUnit - 1) / kQuadsUnit * params.sets();
#pragma unroll 1
    for (int32_t i = static_cast<int32_t>(threadIdx.x) / 32; i < units; i += kQuadsWarps) {
      int32_t pixel, set;
      params.by_sets.divmod(i, pixel, set);
      pixel *= kQuadsUnit;
      const int32_t first_filter = (first_set + set) * kQuadsUnit;
      uint32_t places[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int32_t number = kChannelsInner ? k * 8 + lane / 4 : run_column(kQuadsRunOf<T>, k, lane / 4);
        places[k] = first_place + quads_place(params, pixel + number);
      }
      QuadsUnit<T, kChannelsInner> unit;
      unit.start(buffers.bias, first_filter, params.filters);
      unit.multiply(places, smem + params.filter_at + set * params.steps * params.step_bytes() + lane * 16,
                    smem + params.table_at + lane % 4 * 4, params.steps);
#pragma unroll
      for (int k = 0; k < 4 * unit.kRuns; ++k) {
        const int32_t row = k / unit.kRuns * 8 + lane / 4;
        const int32_t run = k % unit.kRuns * unit.kRunsApart + lane % 4 * kQuadsRunOf<T>;
        const QuadsTarget at(params, tile, pixel + (kChannelsInner ? row : run));
        const int32_t filter = first_filter + (kChannelsInner ? run : row), filters = params.filters - filter;
        const bool exists = (kChannelsInner ? at.left : filters) > 0;
        unit.store(k / unit.kRuns, k % unit.kRuns, y + (at.offset + filter * params.target.c),
                   kChannelsInner ? params.target.c : params.target.w,
                   exists ? (kChannelsInner ? filters : at.left) : 0, params.whole_runs);
      }
    }
    __syncthreads();
  }
#endif
}

}  // namespace fastconv
