// Output of convolutions of images of one to four channels; see families/few_channels/quads.h. Sums are float32.
#pragma once

#include <cstddef>
#include <type_traits>

#include "fastconv/families/few_channels/quad_words.cuh"
#include "fastconv/families/few_channels/quads.h"
#include "fastconv/families/few_channels/quads_mainloop.cuh"
#include "fastconv/families/few_channels/stem_mainloop.cuh"
#include "fastconv/families/few_channels/stem_range.cuh"
#include "fastconv/ptx/async_copy.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/element.cuh"
#include "fastconv/tile/epilogue.cuh"
#include "fastconv/tile/kept.cuh"
#include "fastconv/tile/split.h"

namespace fastconv {

template <typename T>
struct QuadsBuffers {
  const T* x;
  const T* w;
  Epilogue<T> epilogue;
  T* y;
};

template <typename T>
using QuadsBits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
template <typename T>
inline constexpr int32_t kQuadsRunOf = 16 / sizeof(T);

// A thread's pixels of a tile, on their way from memory through registers.
template <typename T>
class StagedQuads {
 public:
  __device__ __forceinline__ void load(const QuadsParams& params, const T* x, const QuadsTile& tile) {
    const auto* image = reinterpret_cast<const QuadsBits<T>*>(x) + tile.image * params.source.n;
    params.words == QuadsWords::kNone ? load<false>(params, image, tile) : load<true>(params, image, tile);
  }

  // Put together when all are there. kCells: scaled parts as warpgroups read them.
  template <QuadsOperands kOperands, bool kCells = false>
  __device__ __forceinline__ void store(const QuadsParams& params, uint32_t smem, float scale = 1) const {
    if (params.words == QuadsWords::kNone) {
      store<kOperands, kCells, 1, 1>(params, smem, scale);
    } else if (params.words == QuadsWords::kPlanes) {
      store<kOperands, kCells, kWord, 1, kWord>(params, smem, scale);
    } else {
      switch (params.channels) {
        case 2: return store<kOperands, kCells, kWord, 2>(params, smem, scale);
        case 3: return store<kOperands, kCells, kWord, 3>(params, smem, scale);
        default: return store<kOperands, kCells, kWord, 4>(params, smem, scale);
      }
    }
  }

  // f(four), of float32, which lie side by side in registers: of a pixel or two. Zeros where there are none.
  template <typename F>
  __device__ __forceinline__ void for_fours(const QuadsParams& params, F&& f) const {
    const int32_t fours = params.words == QuadsWords::kNone ? 1 : kWord * kQuadChannels / 4;  // of a unit
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i / fours * static_cast<int32_t>(blockDim.x) >= params.units) return;
      f({__uint_as_float(words_[4 * i]), __uint_as_float(words_[4 * i + 1]), __uint_as_float(words_[4 * i + 2]),
         __uint_as_float(words_[4 * i + 3])});
    }
  }

 private:
  static constexpr int kWord = kQuadsWordBytes / sizeof(T);  // elements

  // Offsets of pixels that exist fit 32 bits.
  template <bool kWords>
  __device__ __forceinline__ void load(const QuadsParams& params, const QuadsBits<T>* image, const QuadsTile& tile) {
    // From one word of a unit to the next, of as many as there are channels.
    const int32_t step = kWords && params.words == QuadsWords::kInner ? kWord : params.source.c;
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
      const auto* from = image + static_cast<int32_t>(row * params.source.h + column * params.source.w);
#pragma unroll
      for (int k = 0; k < kQuadChannels; ++k, from += step) {
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
  template <QuadsOperands kOperands, bool kCells, int kPixels, int kPixelStep, int kChannelStep = 1>
  __device__ __forceinline__ void store(const QuadsParams& params, uint32_t smem, float scale) const {
    constexpr bool kWords = kPixels > 1;
    constexpr int kQuad = kQuadWords<kOperands>;
    // Where a pixel's channels lie side by side, it has as many as there are from one pixel to the next.
    constexpr int kChannels = kWords && kChannelStep == 1 ? kPixelStep : kQuadChannels;
#pragma unroll
    for (int i = 0; i < quads_staged(kWords); ++i) {
      const auto unit = static_cast<int32_t>(threadIdx.x + i * blockDim.x);
      if (unit >= params.units) return;
      uint32_t quads[kPixels * kQuad];
#pragma unroll
      for (int pixel = 0; pixel < kPixels; ++pixel) {
        uint32_t channels[kQuadChannels] = {}, quad[kQuad];
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          const int element = i * kQuadChannels * kPixels + pixel * kPixelStep + c * kChannelStep;
          if constexpr (kWords && sizeof(T) == 2) {
            channels[c] = element % 2 ? words_[element / 2] >> 16 : words_[element / 2] & 0xffff;
          } else {
            channels[c] = words_[element];
          }
        }
        put_together<kOperands>(channels, scale, quad);
#pragma unroll
        for (int k = 0; k < kQuad; ++k) quads[pixel * kQuad + k] = quad[k];
      }
      if constexpr (kCells && kOperands == QuadsOperands::kScaledParts) {
        if (scale != 0) {
#pragma unroll
          for (int k = 0; k < kPixels * 2; ++k) {
            const uint32_t place = smem + params.cell_place(0, unit * kPixels + k / 2 + params.cells.shift);
            ptx::store_shared8(place + k % 2 * params.cells.part_bytes, make_uint2(quads[2 * k], quads[2 * k + 1]));
          }
          continue;
        }
      }
      constexpr int kBytes = sizeof(quads);
      const uint32_t place = smem + unit * kBytes + params.by_units_w.div(unit) * params.row_gap;
      if constexpr (kBytes == 8) {
        ptx::store_shared8(place, make_uint2(quads[0], quads[1]));
      } else {
#pragma unroll
        for (int k = 0; k < kBytes / 4; k += 4) {
          ptx::store_shared16(place + k * 4, make_uint4(quads[k], quads[k + 1], quads[k + 2], quads[k + 3]));
        }
      }
    }
  }

  uint32_t words_[4 * kQuadChannels];
};

// What a block has in shared memory beside tiles and filters, by so many threads.
template <typename T>
__device__ __forceinline__ void prepare_quads(const QuadsParams& params, const Epilogue<T>& epilogue, int32_t first_set,
                                              uint32_t smem, int32_t thread, int32_t threads) {
  for (int32_t i = thread; i < quads_table(params); i += threads) {
    ptx::store_shared4(smem + params.table_at + i * 4, quads_tap(params, i));
  }
  for (int32_t i = thread; i < params.runs; i += threads) {
    const QuadsRun run(params, i);
    ptx::store_shared16(smem + params.runs_at + i * kQuadsRunBytes,
                        make_uint4(static_cast<uint32_t>(run.place), static_cast<uint32_t>(run.offset),
                                   static_cast<uint32_t>(run.row), static_cast<uint32_t>(run.column)));
  }
  if (thread == 0) ptx::store_shared16(smem + params.zeros_at(), make_uint4(0, 0, 0, 0));
  for (int32_t i = thread; i < params.sets * kQuadsSet; i += threads) {
    const int32_t filter = first_set * kQuadsSet + i;
    stage_epilogue(smem + params.epilogue_at, i, epilogue.of(filter, filter < params.filters));
  }
}

// A block's filters on their way to shared memory, first as they are, where its tiles will be: of its rows and taps a
// lane would find only few in a line of memory.
template <typename T, bool kChannelsInner>
struct QuadsPacking {
  const QuadsParams& params;
  const T* w;
  int32_t first_set;
  uint32_t smem;

  // By so many threads. Some are there only after await().
  __device__ __forceinline__ void bring(int32_t thread, int32_t threads) const {
    if (params.bringing == QuadsBringing::kNone) return;
    constexpr int32_t kRun = kQuadsRunOf<T>;
    const int32_t elements = all();
    const auto* from = first();
    const int32_t copied = params.bringing == QuadsBringing::kLines ? elements / kRun * kRun : 0;
    for (int32_t i = thread * kRun; i < copied; i += threads * kRun) {
      ptx::async_copy<16>(raw() + i * static_cast<int32_t>(sizeof(T)), from + i, true);
    }
    ptx::async_copy_commit();
    for (int32_t i = copied + thread; i < (elements + kRun - 1) / kRun * kRun; i += threads) {
      const QuadsBits<T> element = i < elements ? from[quads_raw_offset(seldom(params), i)] : 0;
      const uint32_t to = raw() + i * static_cast<int32_t>(sizeof(T));
      if constexpr (sizeof(T) == 2) {
        ptx::store_shared2(to, element);
      } else {
        ptx::store_shared4(to, element);
      }
    }
  }
  __device__ __forceinline__ void await() const {
    ptx::async_copy_wait<0>();
    __syncthreads();
  }

  // f(four of float32, or zeros), of all.
  template <typename F>
  __device__ __forceinline__ void for_fours(F&& f) const {
    static_assert(sizeof(T) == 4);
    for (int32_t i = static_cast<int32_t>(threadIdx.x) * 4; i < all(); i += static_cast<int32_t>(blockDim.x) * 4) {
      uint4 v{};
      if (params.bringing != QuadsBringing::kNone) {
        v = ptx::load_shared16(raw() + i * 4);
      } else {
        v.x = element<false>(i), v.y = i + 1 < all() ? element<false>(i + 1) : 0;
        v.z = i + 2 < all() ? element<false>(i + 2) : 0, v.w = i + 3 < all() ? element<false>(i + 3) : 0;
      }
      f({__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)});
    }
  }

  // `scale`: of scaled parts. A lane's share is two rows of a block of 16 and a tap of a step.
  template <QuadsOperands kOperands>
  __device__ __forceinline__ void pack(float scale = 1) const {
    params.bringing != QuadsBringing::kNone ? pack<kOperands, true>(scale) : pack<kOperands, false>(scale);
  }

 private:
  template <QuadsOperands kOperands, bool kBrought>
  __device__ __forceinline__ void pack(float scale) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32), warps = static_cast<int32_t>(blockDim.x / 32);
    const int32_t filters = params.filters - first_set * kQuadsSet;
#pragma unroll 2
    for (auto i = static_cast<int32_t>(threadIdx.x / 32); i < pieces(); i += warps) {
      int32_t set, step;
      params.by_steps.divmod(i / 2, set, step);
      const int32_t tap = step * kQuadsStepTaps + lane % 4;
      uint32_t quads[2][kQuadWords<kOperands>];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int32_t filter = set * kQuadsSet + quads_filter(kChannelsInner, lane, i % 2 * 2 + j);
        const int32_t from = filter * params.filter_elements + tap * params.raw_tap;
        uint32_t values[kQuadChannels];
#pragma unroll
        for (int c = 0; c < kQuadChannels; ++c) {
          const bool exists = tap < params.taps && filter < filters && c < params.channels;
          values[c] = exists ? element<kBrought>(from + c * params.raw_channel) : 0;
        }
        put_together<kOperands>(values, scale, quads[j]);
      }
      store(i, lane, quads);
    }
  }

  __device__ __forceinline__ uint32_t raw() const { return smem + params.raw_at(); }
  __device__ __forceinline__ const QuadsBits<T>* first() const {
    const auto* filters = reinterpret_cast<const QuadsBits<T>*>(w);
    const int32_t filter = first_set * kQuadsSet;
    return params.bringing == QuadsBringing::kLines ? filters + filter * params.filter_elements
                                                    : filters + filter * seldom(params).filter.n;
  }
  __device__ __forceinline__ int32_t all() const {  // elements
    return min(params.sets * kQuadsSet, params.filters - first_set * kQuadsSet) * params.filter_elements;
  }
  template <bool kBrought>
  __device__ __forceinline__ uint32_t element(int32_t i) const {
    if constexpr (!kBrought) {
      return first()[quads_raw_offset(seldom(params), i)];
    } else if constexpr (sizeof(T) == 2) {
      return ptx::load_shared2(raw() + i * 2);
    } else {
      return ptx::load_shared4(raw() + i * 4);
    }
  }
  __device__ __forceinline__ int32_t pieces() const { return params.sets * params.steps * 2; }
  template <int kWords>
  __device__ __forceinline__ void store(int32_t piece, int32_t lane, const uint32_t (&quads)[2][kWords]) const {
    constexpr int kPairs = kWords / 2;
#pragma unroll
    for (int h = 0; h < kPairs; ++h) {
      ptx::store_shared16(smem + params.filter_at + ((piece / 2 * kPairs + h) * 2 + piece % 2) * 512 + lane * 16,
                          make_uint4(quads[0][2 * h], quads[1][2 * h], quads[0][2 * h + 1], quads[1][2 * h + 1]));
    }
  }
};

// A lane's share of a set's filter, of a step or, of two pairs of words, half of it: of two blocks of rows.
struct QuadsFilter {
  static constexpr int32_t kBytes = 2 * 512;
  uint4 blocks[2];

  QuadsFilter() = default;
  __device__ __forceinline__ explicit QuadsFilter(uint32_t address)
      : blocks{ptx::load_shared16(address), ptx::load_shared16(address + 512)} {}
};

// What a lane multiplies at once: a quad of each product's pixels, and a set's filter.
template <QuadsOperands kOperands, int kProducts>
struct QuadsStep {
  uint32_t quads[kProducts][kQuadWords<kOperands>];
  QuadsFilter filters[kQuadPairs<kOperands>];
};

// Where a lane finds a unit's quads: each product's pixel's first tap.
template <int kProducts>
struct QuadsPlaces {
  uint32_t pixels[kProducts], zeros;

  // Of a tap, or zeros if there is none: whatever is in memory must not meet those of the filter.
  template <int kWords>
  __device__ __forceinline__ void load(int32_t tap, bool exists, uint32_t (&quads)[kProducts][kWords]) const {
#pragma unroll
    for (int t = 0; t < kProducts; ++t) {
      const uint32_t from = exists ? pixels[t] + tap : zeros;
      if constexpr (kWords == 2) {
        const uint2 v = ptx::load_shared8(from);
        quads[t][0] = v.x, quads[t][1] = v.y;
      } else {
        const uint4 v = ptx::load_shared16(from);
        quads[t][0] = v.x, quads[t][1] = v.y, quads[t][2] = v.z, quads[t][3] = v.w;
      }
    }
  }
};

// A unit's steps, from shared memory, one after the other.
template <QuadsOperands kOperands, int kProducts>
struct QuadsSteps {
  QuadsPlaces<kProducts> places;
  uint32_t filter, table;                                        // of the next step, where the lane's share is
  int32_t lacking;                                               // the step that has no tap of the lane's, if any
  int32_t tap = static_cast<int32_t>(ptx::load_shared4(table));  // before it is needed

  __device__ __forceinline__ QuadsStep<kOperands, kProducts> operator()(int32_t k) {
    QuadsStep<kOperands, kProducts> step;
    // Scaled numbers are finite.
    places.load(tap, kOperands == QuadsOperands::kScaledParts || k != lacking, step.quads);
    table += kQuadsStepTaps * 4, tap = static_cast<int32_t>(ptx::load_shared4(table));
#pragma unroll
    for (auto& pair : step.filters) pair = QuadsFilter(filter), filter += QuadsFilter::kBytes;
    return step;
  }
};

// Of a run, the place, before products, or all, after them: it takes fewer registers to load it again.
static_assert(sizeof(QuadsRun) == kQuadsRunBytes && offsetof(QuadsRun, place) == 0);
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
      ptx::store_global8_once(y, words);
    } else {
      ptx::store_global16_once(y, words);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < exist) y[i * step] = narrow<T>(values[i]);
    }
  }
}

// Sums of 32 filters, in blocks of 16, and of pixels, eight a product.
template <typename T, bool kChannelsInner, int kProducts>
struct QuadsUnit {
  static constexpr int kBlocks = 2, kRows = 2 * kBlocks, kColumns = 2 * kProducts;  // a lane's
  static constexpr int32_t kRun = kQuadsRunOf<T>;
  float sum[kBlocks][kProducts][4] = {};

  __device__ __forceinline__ float& at(int row, int column) {
    return sum[row / 2][column / 2][row % 2 * 2 + column % 2];
  }

  // `table`: of the set's epilogues.
  __device__ __forceinline__ void finish(uint32_t table, const Bounds<float>& bounds, int32_t lane) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const FilterEpilogue<float> finish = staged_epilogue(table, quads_filter(kChannelsInner, lane, row), bounds);
#pragma unroll
      for (int column = 0; column < kColumns; ++column) at(row, column) = finish(at(row, column));
    }
  }

  // All steps, step_of(k) one after the other.
  template <QuadsOperands kOperands, int kSteps, typename StepOf>
  __device__ __forceinline__ void multiply(int32_t steps, StepOf step_of) {
    constexpr bool kParts = kOperands == QuadsOperands::kParts;
    using Value = std::conditional_t<kParts, __nv_bfloat16, T>;
    using Step = QuadsStep<kOperands, kProducts>;
    constexpr int kCount = kParts ? split_products(2) : kQuadPairs<kOperands>;
    constexpr SplitProduct kOfParts[] = {{2, 0}, {2, 1}, {2, 2}};
    auto add = [&](const Step& step) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int of_filter = kParts ? kOfParts[i].first : i, of_pixels = kParts ? kOfParts[i].second : i;
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          const uint4& f = step.filters[of_filter].blocks[m];
          const uint32_t rows[] = {f.x, f.y, f.z, f.w};
#pragma unroll
          for (int t = 0; t < kProducts; ++t) {
            ptx::mma(Value{}, sum[m][t], rows, step.quads[t][2 * of_pixels], step.quads[t][2 * of_pixels + 1]);
          }
        }
      }
    };
    if constexpr (kSteps > 0) {
#pragma unroll
      for (int32_t k = 0; k < kSteps; ++k) add(step_of(k));
    } else {
      for_steps<Step>(steps, step_of, add);
    }
  }

  // Scaled parts, whose products are `back` times as large. Tensor cores truncate what they add to: of large products
  // they add up a step, the rest is done by ordinary additions; of the small ones, apart, that does not matter.
  template <typename StepOf>
  __device__ __forceinline__ void multiply_scaled(int32_t steps, float back, StepOf step_of) {
    using Step = QuadsStep<QuadsOperands::kScaledParts, kProducts>;
    float small[kBlocks][kProducts][4] = {};
    for_steps<Step>(steps, step_of, [&](const Step& step) {
      const auto& quads = step.quads;
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const uint4 &f = step.filters[0].blocks[m], &g = step.filters[1].blocks[m];
        const uint32_t first[] = {f.x, f.y, f.z, f.w}, second[] = {g.x, g.y, g.z, g.w};
        float large[kProducts][4] = {};
#pragma unroll
        for (int t = 0; t < kProducts; ++t) ptx::mma(__half{}, large[t], first, quads[t][0], quads[t][1]);
#pragma unroll
        for (int t = 0; t < kProducts; ++t) ptx::mma(__half{}, small[m][t], first, quads[t][2], quads[t][3]);
#pragma unroll
        for (int t = 0; t < kProducts; ++t) ptx::mma(__half{}, small[m][t], second, quads[t][0], quads[t][1]);
        add_times(large, back, sum[m]);
      }
    });
    // One factor after the other: both together may be no float32 number.
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (auto& values : small[m]) {
#pragma unroll
        for (float& value : values) value *= 1 / split_scale(2, Operand::kFp16);
      }
      add_times(small[m], back, sum[m]);
    }
  }

  // float32, split on the way. kFinite: see add_stem_products().
  template <bool kFinite, typename StepOf>
  __device__ __forceinline__ void multiply_floats(int32_t steps, StepOf step_of) {
#pragma unroll 1
    for (int32_t k = 0; k < steps; ++k) {
      const QuadsStep<QuadsOperands::kFloats, kProducts> step = step_of(k);
      StemFragment<kMaxSplitParts, 2, Operand::kBf16> rows[kBlocks];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        StemValues<2> values;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint4& f = step.filters[h].blocks[m];
          values.at(2 * h, 0) = __uint_as_float(f.x), values.at(2 * h, 1) = __uint_as_float(f.y);
          values.at(2 * h + 1, 0) = __uint_as_float(f.z), values.at(2 * h + 1, 1) = __uint_as_float(f.w);
        }
        rows[m].split(values, 1);
      }
#pragma unroll
      for (int t = 0; t < kProducts; ++t) {
        const auto& quad = step.quads[t];
        const StemValues<1> values{
            {__uint_as_float(quad[0]), __uint_as_float(quad[1]), __uint_as_float(quad[2]), __uint_as_float(quad[3])}};
        StemFragment<kMaxSplitParts, 1, Operand::kBf16> column[1];
        column[0].split(values, 1);
        multiply_stem<kFinite>(rows, column, [&](int m, int) -> float (&)[4] { return sum[m][t]; });
      }
    }
  }

  // f(step), for all. Where there are registers for two, the next one is on its way meanwhile; what comes behind the
  // last is not used.
  template <typename Step, typename StepOf, typename F>
  static __device__ __forceinline__ void for_steps(int32_t steps, StepOf& step_of, F&& f) {
    if constexpr (sizeof(Step) <= 24 * 4) {
      Step step = step_of(0);
#pragma unroll 2
      for (int32_t k = 0; k < steps; ++k) {
        const Step next = step_of(k + 1);
        f(step);
        step = next;
      }
    } else {
#pragma unroll 1
      for (int32_t k = 0; k < steps; ++k) f(step_of(k));
    }
  }

  static __device__ __forceinline__ void add_times(const float (&from)[kProducts][4], float times,
                                                   float (&to)[kProducts][4]) {
#pragma unroll
    for (int t = 0; t < kProducts; ++t) {
#pragma unroll
      for (int v = 0; v < 4; ++v) to[t][v] = __fmaf_rn(from[t][v], times, to[t][v]);
    }
  }

  template <QuadsOperands kOperands, int kSteps, typename StepOf>
  __device__ __forceinline__ void compute(int32_t steps, float back, const StepOf& step_of) {
    if constexpr (kOperands == QuadsOperands::kScaledParts) {
      multiply_scaled(steps, back, step_of);
    } else if constexpr (kOperands == QuadsOperands::kFloats) {
      multiply_floats<false>(steps, step_of);
      // Overflow is seldom, so that each step need not look for it.
      if (!is_finite()) {
        *this = {};
        multiply_floats<true>(steps, step_of);
      }
    } else {
      multiply<kOperands, kSteps>(steps, step_of);
    }
  }

  // Whether all sums of the warp are.
  __device__ __forceinline__ bool is_finite() const {
    float zero = 0;
#pragma unroll
    for (const auto& products : sum) {
#pragma unroll
      for (const auto& values : products) {
#pragma unroll
        for (const float value : values) zero = __fmaf_rn(value, 0.f, zero);
      }
    }
    return __all_sync(~0u, zero == 0);
  }

  // `y`: the tile's first pixel, `runs`: the unit's, `first_filter`: the set's. kWhole: as params.whole_runs.
  template <bool kWhole>
  __device__ __forceinline__ void store(const QuadsParams& params, const QuadsTile& tile, T* y, uint32_t runs,
                                        int32_t first_filter, int32_t lane) {
    // A lane's neighbours: of its filters, or of its pixels.
    constexpr int kFilters = kChannelsInner ? kQuadsFilters : 1, kPixels = kChannelsInner ? 1 : kRun;
    const int32_t filter_step = params.target.c, pixel_step = params.target.w;
#pragma unroll
    for (int column = 0; column < kColumns; column += kPixels) {
#pragma unroll
      for (int row = 0; row < kRows; row += kFilters) {
        const auto pixel =
            static_cast<uint32_t>(quads_pixel(kChannelsInner, kRun, column / 2, lane % 4 * 2 + column % 2));
        const QuadsRun run = load_run(runs + pixel / kRun * kQuadsRunBytes);
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

// A warp stages its share of the next tile behind its units, or, if not 0, behind so many. Of parts large images in
// channels_last then take 2 % less time; 16 bits take more there, others were not timed.
template <QuadsOperands kOperands, int kSteps>
inline constexpr int32_t kStagesEarly = kOperands == QuadsOperands::kParts && kSteps > 0 ? 3 : 0;

// A block's place in the work, and in shared memory.
template <typename T, bool kChannelsInner, int kProducts>
struct QuadsBlock {
  const QuadsParams& params;
  uint32_t smem;
  int32_t first_set;

  // Where a lane's share of a set's filter is, and its taps.
  template <QuadsOperands kOperands>
  __device__ __forceinline__ uint32_t filter_of(int32_t set) const {
    return smem + params.filter_at + threadIdx.x % 32 * 16 +
           set * params.steps * kQuadPairs<kOperands> * QuadsFilter::kBytes;
  }
  __device__ __forceinline__ uint32_t table() const { return smem + params.table_at + threadIdx.x % 4 * 4; }
  // The step that has no tap of the lane's, if any.
  __device__ __forceinline__ int32_t lacking() const {
    const int32_t last = params.steps - 1;
    return last * kQuadsStepTaps + static_cast<int32_t>(threadIdx.x % 4) < params.taps ? -1 : last;
  }

  // A warp's units of a tile that has been staged; if kStagesEarly and there are as many, `stage_next` before the unit
  // of that number. `kept`: filters and taps in registers, if kSteps > 0.
  template <QuadsOperands kOperands, int kSteps, typename Kept, typename StageNext>
  __device__ __forceinline__ void multiply(const QuadsTile& tile, uint32_t stage, T* y, const Kept& kept, float back,
                                           const StageNext& stage_next) const {
    using Unit = QuadsUnit<T, kChannelsInner, kProducts>;
    constexpr int32_t kPixels = 8 * kProducts;
    const auto warps = static_cast<int32_t>(blockDim.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
    const uint32_t first_place = stage + tile.lead * params.quad_bytes;
    const int32_t units = (tile.rows * params.tile_q + kPixels - 1) / kPixels * params.sets;
#pragma unroll 1
    for (auto i = static_cast<int32_t>(threadIdx.x / 32); i < units; i += warps) {
      if constexpr (kStagesEarly<kOperands, kSteps> > 0) {
        const int32_t early = kStagesEarly<kOperands, kSteps> * warps;
        if (i >= early && i < early + warps) stage_next();
      }
      int32_t number, set;
      params.by_sets.divmod(i, number, set);
      if constexpr (kSteps > 0) set = kept.set;  // and the compiler knows
      const uint32_t runs = smem + params.runs_at + number * (kPixels / Unit::kRun) * kQuadsRunBytes;
      QuadsPlaces<kProducts> places;
      places.zeros = smem + params.zeros_at();
#pragma unroll
      for (int t = 0; t < kProducts; ++t) {
        const auto pixel = static_cast<uint32_t>(quads_pixel(kChannelsInner, Unit::kRun, t, lane / 4));
        places.pixels[t] = first_place + load_run_place(runs + pixel / Unit::kRun * kQuadsRunBytes) +
                           pixel % Unit::kRun * params.place_step();
      }
      Unit unit;
      if constexpr (kSteps > 0) {
        unit.template compute<kOperands, kSteps>(kSteps, back, [&](int32_t k) { return kept.step(places, k); });
      } else {
        const QuadsSteps<kOperands, kProducts> steps{places, filter_of<kOperands>(set), table(), lacking()};
        unit.template compute<kOperands, 0>(params.steps, back, steps);
      }
      unit.finish(smem + params.epilogue_at + set * kQuadsSet * kStagedEpilogueBytes, Bounds<float>(params.activation),
                  lane);
      const int32_t first_filter = (first_set + set) * kQuadsSet;
      params.whole_runs ? unit.template store<true>(params, tile, y, runs, first_filter, lane)
                        : unit.template store<false>(params, tile, y, runs, first_filter, lane);
    }
  }

  // The same of squares, by warpgroups.
  __device__ __forceinline__ void multiply_squares(const QuadsTile& tile, uint32_t stage, T* y, float back) const {
    // The same for all lanes, and the compiler knows.
    const auto warp = static_cast<int32_t>(ptx::reduce_max(threadIdx.x / 32));
    const auto lane = static_cast<int32_t>(threadIdx.x % 32), groups = static_cast<int32_t>(blockDim.x / 128);
    const uint32_t first_place = stage + params.cell_place(0, tile.lead + params.cells.shift);
    const int32_t squares =
        (tile.rows + kQuadsSquare - 1) / kQuadsSquare * static_cast<int32_t>(params.cells.by_squares_w.divisor);
#pragma unroll 1
    for (int32_t i = warp / 4; i < squares; i += groups) {
      int32_t down, right;
      params.cells.by_squares_w.divmod(i, down, right);
      down *= kQuadsSquare, right *= kQuadsSquare;
      if (right >= tile.columns) continue;
      QuadsSquare<kChannelsInner> square;
      square.multiply_scaled(params, smem,
                             first_place + params.cell_place(down * params.h.source_step, 0) + right * kQuadsCellBytes,
                             back);
      const int32_t p = down + warp % 4 * 2, q = right + lane / 4;
      if (kChannelsInner && params.whole_runs) {
        store<kChannelsInner>(tile, y, square, p, q, lane);
      } else {
        store<false>(tile, y, square, p, q, lane);
      }
    }
  }

 private:
  // A lane's pixels of a square, those below each other. kWhole: runs of filters are.
  template <bool kWhole>
  __device__ __forceinline__ void store(const QuadsTile& tile, T* y, const QuadsSquare<kChannelsInner>& square,
                                        int32_t p, int32_t q, int32_t lane) const {
    constexpr int kFilters = kChannelsInner ? kQuadsFilters : 1;  // side by side
    const int32_t filter_step = params.target.c;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const bool exists = p + row < tile.rows && q < tile.columns;
      const auto pixel = static_cast<int32_t>(int64_t{p + row} * params.target.h + int64_t{q} * params.target.w);
#pragma unroll
      for (int k = 0; k < kQuadsSquareFilters / 4; k += kFilters) {
        const int32_t filter = square.filter_of(lane, k);
        float values[kFilters];
#pragma unroll
        for (int f = 0; f < kFilters; ++f) {
          const Bounds<float> bounds(params.activation);
          values[f] = staged_epilogue(smem + params.epilogue_at, filter + f, bounds)(square.at(row, k + f));
        }
        const int32_t of_all = first_set * kQuadsSet + filter;
        T* to = y + (pixel + of_all * filter_step);
        store_neighbours<kWhole>(to, filter_step, values, exists ? params.filters - of_all : 0);
      }
    }
  }
};

// How a block scales tiles to fp16, each by the largest number so far, until there is one that a scale does not fit;
// see families/few_channels/stem_range.cuh.
template <int kWarps>
class QuadsScaling {
  using Range = WarpRange<kWarps>;

 public:
  __device__ __forceinline__ explicit QuadsScaling(uint32_t filter_range) : filter_{filter_range} {}

  // Of `filter`, which `packing` packs; `first`: for the first tile's largest number.
  template <typename Filter, typename Packing>
  __device__ __forceinline__ void start(const QuadsParams& params, const Filter& filter, const Packing& packing,
                                        const StagedQuads<float>& staged, const Range& first) {
    float of_filter = 0, of_pixels = 0;
    uint32_t smallest = ~0u;
    filter.for_fours([&](const float (&four)[4]) {
      add_largest(four, of_filter);
      smallest = min(smallest, least_magnitude(four));
    });
    filter_.write_most(of_filter);
    staged.for_fours(params, [&](const float (&four)[4]) { add_largest(four, of_pixels); });
    first.write_most(of_pixels);
    __syncthreads();
    filter_most_ = filter_.most(), most_ = first.most();
    filter_.write_small(smallest < least_order(filter_most_));
    packing.template pack<QuadsOperands::kScaledParts>(StemScale(0, filter_most_).second);
  }

  // Stores a tile, and returns what its sums are multiplied by, or 0 if it and the filter are float32 now, as units
  // that are no squares take them.
  template <bool kCells, typename Packing>
  __device__ __forceinline__ float store(const QuadsParams& params, const Packing& packing,
                                         const StagedQuads<float>& staged, uint32_t stage) {
    constexpr uint32_t kMostSmall = 1;  // fours: a small number in one of a block's tiles is not rare
    const Range range{stage + params.range_at};
    uint32_t by = most_;
#pragma unroll 1
    while (true) {
      const StemScale scale(by, filter_most_);
      if (scales_) {
        const uint32_t least = least_order(by);
        float largest = 0;
        uint32_t misfits = 0;
        staged.for_fours(params, [&](const float (&four)[4]) {
          add_largest(four, largest);
          add_small(four, least, misfits);
        });
        range.write_most(largest);
        range.write_small(misfits + (__float_as_uint(largest) > by ? kMostSmall + 1 : 0));
      }
      staged.store<QuadsOperands::kScaledParts, kCells>(params, stage, scales_ ? scale.first : 0);
      if constexpr (kCells) ptx::async_proxy_fence();
      __syncthreads();
      if (!scales_) return 0;
      if (range.small() <= kMostSmall && scale.fits && filter_fits()) {
        most_ = max(most_, by);
        return scale.back;
      }
      // By its own largest number, if that was not it, and if not so either, as float32.
      const uint32_t most = range.most();
      scales_ = by != most;
      by = most;
      __syncthreads();
      if (scales_) continue;
      packing.bring(static_cast<int32_t>(threadIdx.x), static_cast<int32_t>(blockDim.x));
      packing.await();
      packing.template pack<QuadsOperands::kFloats>();
      __syncthreads();
    }
  }

 private:
  // Asked for until it does; whether it does shows after the first tile.
  __device__ __forceinline__ bool filter_fits() {
    if (!filter_fits_) filter_fits_ = filter_.small() == 0;
    return filter_fits_;
  }

  Range filter_;
  uint32_t filter_most_ = 0, most_ = 0;
  bool scales_ = true, filter_fits_ = false;
};

// What warps keep in registers, each of its set.
template <QuadsOperands kOperands, int kSteps>
struct KeptQuads {
  static constexpr int kPairs = kQuadPairs<kOperands>;
  int32_t set;
  QuadsFilter filters[kSteps > 0 ? kSteps : 1][kPairs];
  int32_t taps[kSteps > 0 ? kSteps : 1];
  bool has_last;  // whether the last step has a tap of the lane's

  template <typename Block>
  __device__ __forceinline__ void load(const Block& block) {
    set = static_cast<int32_t>(threadIdx.x / 32) % block.params.sets;
    has_last = block.lacking() < 0;
    const uint32_t from = block.template filter_of<kOperands>(set);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      taps[k] = static_cast<int32_t>(ptx::load_shared4(block.table() + k * kQuadsStepTaps * 4));
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        filters[k][i] = QuadsFilter(from + (k * kPairs + i) * QuadsFilter::kBytes);
      }
    }
  }
  template <int kProducts>
  __device__ __forceinline__ QuadsStep<kOperands, kProducts> step(const QuadsPlaces<kProducts>& places,
                                                                  int32_t k) const {
    QuadsStep<kOperands, kProducts> step;
    places.load(taps[k], k + 1 < kSteps || has_last, step.quads);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) step.filters[i] = filters[k][i];
    return step;
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHasSquares = true;
#else
inline constexpr bool kHasSquares = false;
#endif

// kSteps: of filters that warps keep in registers, each that of one set; 0: any number, from shared memory. kSquares:
// units are squares.
template <typename T, bool kChannelsInner, int kSteps, QuadsOperands kOperands, bool kSquares>
__global__ void __launch_bounds__(quads_threads(QuadsConfig{kChannelsInner, kSteps, kOperands, kSquares}))
    quads_fprop(const QuadsBuffers<T> buffers, const __grid_constant__ QuadsParams params) {
  static_assert(!kSquares || kOperands == QuadsOperands::kScaledParts);
#if __CUDA_ARCH__ >= 800
  if constexpr (!kSquares || kHasSquares) {
    constexpr bool kScaled = kOperands == QuadsOperands::kScaledParts;
    ptx::follow_previous_kernel();
    extern __shared__ uint4 quads_smem[];
    const uint32_t smem = ptx::smem_address(quads_smem);
    int32_t walker, first_set;
    params.by_set_blocks.divmod(static_cast<int32_t>(blockIdx.x), walker, first_set);
    first_set *= params.sets;
    const QuadsBlock<T, kChannelsInner, quads_pixels(kOperands) / 8> block{params, smem, first_set};
    const QuadsPacking<T, kChannelsInner> packing{params, buffers.w, first_set, smem};
    [[maybe_unused]] const QuadsCellPacking<kChannelsInner> cells{params, params.filters - first_set * kQuadsSet, smem};
    uint32_t stage = smem, other = smem + params.stage_bytes;

    // One half of the warps brings the filter, the other prepares the rest: of small problems the start counts.
    const auto half = static_cast<int32_t>(blockDim.x / 2), thread = static_cast<int32_t>(threadIdx.x);
    if (thread < half) packing.bring(thread, half);
    StagedQuads<T> staged;
    staged.load(params, buffers.x, QuadsTile(params, walker));  // each block has a tile
    if (thread >= half) prepare_quads<T>(params, buffers.epilogue, first_set, smem, thread - half, half);
    packing.await();
    constexpr QuadsConfig kConfig{kChannelsInner, kSteps, kOperands, kSquares};
    [[maybe_unused]] QuadsScaling<quads_threads(kConfig) / 32> scaling(smem + params.filter_range_at);
    auto pack = [&](const auto& as) {
      if constexpr (kScaled) {
        scaling.start(params, packing, as, staged, {smem + params.first_range_at});
      } else {
        as.template pack<kOperands>();
      }
    };
    if constexpr (kSquares) {
      pack(cells);
    } else {
      pack(packing);
    }
    // The first tile may be staged before all have packed, unless it lies where the filter was.
    if (kSteps > 0 || params.is_raw_first) __syncthreads();
    KeptQuads<kOperands, kSteps> kept;
    if constexpr (kSteps > 0) kept.load(block);
    bool is_staged = false;  // by this warp
#pragma unroll 1
    for (int32_t index = walker; index < params.tiles; index += params.walkers) {
      const QuadsTile tile(params, index);
      float back = 1;
      if constexpr (kScaled) {
        back = scaling.template store<kSquares>(params, packing, staged, stage);
      } else {
        if (!is_staged) staged.template store<kOperands>(params, stage);
        is_staged = false;
        __syncthreads();
      }
      // The next tile's pixels are on their way meanwhile.
      const int32_t next = index + params.walkers;
      if (next < params.tiles) staged.load(params, buffers.x, QuadsTile(params, next));
      T* y =
          kept_global(buffers.y + (tile.image * params.target.n + tile.p * params.target.h + tile.q * params.target.w));
      auto stage_next = [&] {
        if (next < params.tiles) staged.template store<kOperands>(params, other), is_staged = true;
      };
      if (kScaled && back == 0) {
        if constexpr (kScaled) block.template multiply<QuadsOperands::kFloats, 0>(tile, stage, y, kept, 1, stage_next);
      } else if constexpr (kSquares) {
        block.multiply_squares(tile, stage, y, back);
      } else {
        block.template multiply<kOperands, kSteps>(tile, stage, y, kept, back, stage_next);
      }
      // Whoever is still at work with this tile meets the others before its place is filled again.
      const uint32_t done = stage;
      stage = other, other = done;
    }
  }
#endif
}

}  // namespace fastconv
