// Output of convolutions of images of few channels, float32: blocks go through tiles of pixels with the filter in
// shared memory, see stem_walk.cuh.
#pragma once

#include "fastconv/families/few_channels/stem_mainloop.cuh"
#include "fastconv/families/few_channels/stem_range.cuh"
#include "fastconv/families/few_channels/stem_stage.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/tile/epilogue.cuh"
#include "fastconv/tile/kept.cuh"

namespace fastconv {

struct StemBuffers {
  const float* x;
  const float* w;
  Epilogue<float> epilogue;
  float* y;
};

// Offsets of taps, as lanes read them: from a pixel in the stage, bytes, and in the filter, elements.
__device__ __forceinline__ void write_stem_tables(const StemParams& params, uint32_t smem) {
#pragma unroll 1
  for (auto i = static_cast<int32_t>(threadIdx.x); i < params.steps * kStemStep; i += kStemThreads) {
    const int32_t depth = stem_depth(i / kStemStep, i / 4, i % 4);
    const StemTap tap(params, min(depth, params.depth - 1));
    ptx::store_shared4(smem + params.table_at + i * 4, depth < params.depth ? tap.place * 4 : 0);
    ptx::store_shared4(smem + params.filter_table_at + i * 4, tap.filter);
  }
}

// A block's filters on their way to shared memory. A piece is a step of eight filters; a warp has every kStemWarps-th,
// in rounds of some.
template <int kFilters>
struct StemFilter {
  static constexpr int kTiles = kFilters / 8, kHeld = 4;
  using Values = StemValues<1>[kHeld];
  const StemParams& params;
  const float* w;
  int32_t first_set;
  uint32_t smem;

  __device__ __forceinline__ int32_t tiles() const { return static_cast<int32_t>(params.by_sets.divisor) * kTiles; }
  __device__ __forceinline__ int32_t rounds() const {
    return (tiles() * params.steps + kHeld * kStemWarps - 1) / (kHeld * kStemWarps);
  }
  __device__ __forceinline__ StemRange range() const { return {smem + params.filter_range_at}; }

  // f(which of the round, tile, step): of a warp's pieces.
  template <typename F>
  __device__ __forceinline__ void for_pieces(int32_t round, F&& f) const {
    int32_t tile, step, tiles_on, steps_on;
    params.by_steps.divmod(round * kHeld * kStemWarps + static_cast<int32_t>(threadIdx.x / 32), tile, step);
    params.by_steps.divmod(kStemWarps, tiles_on, steps_on);
#pragma unroll
    for (int held = 0; held < kHeld; ++held) {
      if (tile < tiles()) f(held, tile, step);
      tile += tiles_on, step += steps_on;
      if (step >= params.steps) step -= params.steps, ++tile;
    }
  }

  // Filters and taps that do not exist become zeros once others have been read in their place: all reads are under way
  // together.
  __device__ __forceinline__ void load(int32_t round, Values& values) const {
#pragma unroll
    for (StemValues<1>& each : values) each = {};
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t first = first_set * kFilters;
    for_pieces(round, [&](int held, int32_t tile, int32_t step) {
      const int32_t filter = first + stem_filter(tile, lane / 4);
      const uint4 taps = ptx::load_shared16(smem + params.filter_table_at + step * 64 + lane % 4 * 16);
      // Kept, so that a tap takes one addition, not two.
      const float* source = kept_global(w + min(filter, params.filters - 1) * params.filter.n);
      float (&value)[4] = values[held].value;
      value[0] = source[taps.x], value[1] = source[taps.y], value[2] = source[taps.z], value[3] = source[taps.w];
    });
    for_pieces(round, [&](int held, int32_t tile, int32_t step) {
      if (first + stem_filter(tile, lane / 4) >= params.filters) values[held] = {};
      if (step == params.steps - 1) values[held].cut(params.depth - step * kStemStep);
    });
  }
  template <int kParts, Operand kOperand>
  __device__ __forceinline__ void store(int32_t round, const Values& values, float scale) const {
    const uint32_t to = smem + params.filter_at + threadIdx.x % 32 * 8;
    for_pieces(round, [&](int held, int32_t tile, int32_t step) {
      StemFragment<kParts, 1, kOperand> fragment;
      fragment.split(values[held], scale);
      const int32_t set = static_cast<uint32_t>(tile) / kTiles;
      const int32_t place = ((set * params.steps + step) * kTiles + (tile & (kTiles - 1))) * kParts;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        ptx::store_shared8(to + (place + part) * 256, make_uint2(fragment.part[part][0], fragment.part[part][1]));
      }
    });
  }

  template <int kParts, Operand kOperand>
  __device__ __forceinline__ void pack() const {
#pragma unroll 1
    for (int32_t round = 0; round < rounds(); ++round) {
      Values values;
      load(round, values);
      store<kParts, kOperand>(round, values, 1);
    }
  }
  // The same, scaled, which may not fit. The last round's values need not be loaded twice.
  template <int kParts>
  __device__ __forceinline__ void pack_scaled() const {
    Values values;
    float largest = 0;
#pragma unroll 1
    for (int32_t round = 0; round < rounds(); ++round) {
      load(round, values);
#pragma unroll
      for (const StemValues<1>& each : values) add_largest(each.value, largest);
    }
    range().write_most(largest);
    __syncthreads();
    const uint32_t most = range().most(), least = least_order(most);
    const float scale = power_of_two(Fp16Shift(most).exponent);
    uint32_t small = 0;
#pragma unroll 1
    for (int32_t round = rounds() - 1; round >= 0; --round) {
      if (round < rounds() - 1) load(round, values);
#pragma unroll
      for (const StemValues<1>& each : values) add_small(each.value, least, small);
      store<kParts, Operand::kFp16>(round, values, scale);
    }
    range().write_small(small);
  }
};

// Sums of a unit, [block of pixels][tile of filters].
template <int kFilters>
struct StemUnit {
  static constexpr int kBlocks = StemConfig::pixel_blocks(), kTiles = kFilters / 8;
  static constexpr int kRows = 2 * kBlocks, kLaneFilters = 2 * kTiles;  // a lane's
  static constexpr int kTogether = 2;  // tiles, so that products that follow each other do not wait
  float sum[kBlocks][kTiles][4];

  // `filter`, `table`: a lane's. kFinite: see add_stem_products().
  template <bool kFinite, int kParts, Operand kOperand>
  __device__ __forceinline__ void multiply(const uint32_t (&rows)[kBlocks][2], uint32_t filter, uint32_t table,
                                           int32_t depth, const StemScale& scale) {
#pragma unroll
    for (auto& tiles : sum) {
#pragma unroll
      for (auto& tile : tiles) tile[0] = tile[1] = tile[2] = tile[3] = 0.f;
    }
    // See multiply_stem_apart(): where there are registers for that, otherwise `small` is not used.
    constexpr bool kApart = kOperand == Operand::kFp16 && kParts == 2 && kFilters == 32;
    float small[kApart ? kBlocks : 1][kTiles][4] = {};
#pragma unroll 1
    for (int32_t left = depth; left > 0; left -= kStemStep) {
      const uint4 offsets = ptx::load_shared16(table);
      StemValues<2> values[kBlocks];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) values[m].load(rows[m], offsets);
      if (left < kStemStep) {
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) values[m].cut(left);
      }
      StemFragment<kParts, 2, kOperand> pixels[kBlocks];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) pixels[m].split(values[m], scale.first);
#pragma unroll
      for (int t = 0; t < kTiles; t += kTogether) {
        StemFragment<kParts, 1, kOperand> filters[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            const uint2 words = ptx::load_shared8(filter + ((t + i) * kParts + part) * 256);
            filters[i].part[part][0] = words.x, filters[i].part[part][1] = words.y;
          }
        }
        // So that filters are not loaded far ahead: there is no register left for them.
        __syncwarp();
        auto sum_of = [&](int m, int i) -> float (&)[4] { return sum[m][t + i]; };
        if constexpr (kApart) {
          multiply_stem_apart(pixels, filters, sum_of, [&](int m, int i) -> float (&)[4] { return small[m][t + i]; });
        } else {
          multiply_stem<kFinite>(pixels, filters, sum_of, scale.back);
        }
      }
      filter += StemConfig::step_bytes(kTiles, kParts), table += 64;
    }
    if constexpr (kApart) {
      // Scaled sums are far from what float32 holds; back is last, so that overflow is the whole sum's.
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            sum[m][t][v] = __fmaf_rn(small[m][t][v], 1 / split_scale(kParts, kOperand), sum[m][t][v]) * scale.back;
          }
        }
      }
    }
  }

  // Whether all sums of the warp are.
  __device__ __forceinline__ bool is_finite() const {
    float zeros[kTiles] = {};
#pragma unroll
    for (const auto& tiles : sum) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (const float value : tiles[t]) zeros[t] = __fmaf_rn(value, 0.f, zeros[t]);
      }
    }
    float zero = 0;
#pragma unroll
    for (const float each : zeros) zero += each;
    return __all_sync(~0u, zero == 0);
  }

  // Of a lane's pixel and filter of the set.
  __device__ __forceinline__ float& at(int row, int filter) {
    return sum[row / 2][filter / 2][row % 2 * 2 + filter % 2];
  }
  static __device__ __forceinline__ int32_t filter_of(int32_t lane, int filter) {
    return stem_filter(filter / 2, lane % 4 * 2 + filter % 2);
  }

  // Of filters from `first` on.
  __device__ __forceinline__ void finish(const Epilogue<float>& epilogue, int32_t first, int32_t filters) {
    if (epilogue.does_nothing()) return;
    const int lane = ptx::lane();
#pragma unroll
    for (int k = 0; k < kLaneFilters; ++k) {
      const int32_t filter = first + filter_of(lane, k);
      const FilterEpilogue<float> finish = epilogue.of(filter, filter < filters);
#pragma unroll
      for (int row = 0; row < kRows; ++row) at(row, k) = finish(at(row, k));
    }
  }

  // y: of the tile's first pixel and the set's first filter, of which there are so many.
  template <StemStores kStores>
  __device__ __forceinline__ void store(const StemParams& params, const StemTile& tile, float* y, int32_t pixel,
                                        int32_t filters) {
    constexpr int kPixels = stem_run(kStores), kSome = kStores == StemStores::kFilters ? 4 : 1;  // side by side
    constexpr int kCount = kPixels * kSome;
    const int lane = ptx::lane();
    // Offsets within an image fit 32 bits.
    const auto next = static_cast<int32_t>(kSome > 1 ? 1 : params.target.c);
#pragma unroll
    for (int row = 0; row < kRows; row += kPixels) {
      const int32_t of_pixel = tile.target_of(params, params.target, pixel + stem_pixel(kPixels, lane, row));
      const int32_t left = of_pixel >= 0 ? filters : 0;
#pragma unroll
      for (int k = 0; k < kLaneFilters; k += kSome) {
        const int32_t filter = filter_of(lane, k);
        if (filter >= left) continue;
        float* to = y + (of_pixel + filter * next);
        uint32_t words[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) words[i] = __float_as_uint(at(row + i % kPixels, k + i % kSome));
        if constexpr (kCount == 4) {
          ptx::store_global16_once(to, words);
        } else if constexpr (kCount == 2) {
          ptx::store_global8_once(to, words);
        } else {
          *to = __uint_as_float(words[0]);
        }
      }
    }
  }
};

// A warp's units of a tile that has been staged, with the block's filters in parts.
template <int kParts, int kFilters, Operand kOperand>
__device__ __forceinline__ void multiply_stem_tile(const StemParams& params, const StemBuffers& buffers,
                                                   const StemTile& tile, uint32_t stage, int32_t first_set,
                                                   uint32_t smem, const StemScale& scale) {
  using Unit = StemUnit<kFilters>;
  constexpr int kPixels = StemConfig::unit_pixels();
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  const auto sets = static_cast<int32_t>(params.by_sets.divisor);
  const int32_t run = stem_run(params.stores);
  const uint32_t first_pixel = stage + params.x.lead(tile.source_w) * 4;
  float* y = buffers.y + (tile.image * params.target.n + tile.p * params.target.h + tile.q * params.target.w);
  const int32_t units = (tile.pixels(params) + kPixels - 1) / kPixels * sets;
#pragma unroll 1
  for (int32_t index = thread / 32; index < units; index += kStemWarps) {
    int32_t pixel, set;
    params.by_sets.divmod(index, pixel, set);
    pixel *= kPixels;
    uint32_t rows[Unit::kBlocks][2];
#pragma unroll
    for (int row = 0; row < Unit::kRows; ++row) {
      rows[row / 2][row % 2] = first_pixel + StemTile::source_of(params, pixel + stem_pixel(run, lane, row)) * 4;
    }
    const uint32_t lane_filter =
        smem + params.filter_at + set * params.steps * StemConfig::step_bytes(Unit::kTiles, kParts) + lane * 8;
    const uint32_t lane_table = smem + params.table_at + lane % 4 * 16;
    Unit unit;
    unit.template multiply<false, kParts, kOperand>(rows, lane_filter, lane_table, params.depth, scale);
    // Overflow is seldom, so that each step need not look for it.
    if (kParts == 3 && !unit.is_finite()) {
      unit.template multiply<true, kParts, kOperand>(rows, lane_filter, lane_table, params.depth, scale);
    }
    const int32_t filter = (first_set + set) * kFilters;
    unit.finish(buffers.epilogue, filter, params.filters);
    float* to = y + filter * params.target.c;
    const int32_t filters = params.filters - filter;
    switch (params.stores) {
      case StemStores::kFilters: unit.template store<StemStores::kFilters>(params, tile, to, pixel, filters); break;
      case StemStores::kPixels: unit.template store<StemStores::kPixels>(params, tile, to, pixel, filters); break;
      case StemStores::kPixelPairs:
        unit.template store<StemStores::kPixelPairs>(params, tile, to, pixel, filters);
        break;
      case StemStores::kSingles: unit.template store<StemStores::kSingles>(params, tile, to, pixel, filters); break;
    }
  }
}

template <int kParts, int kFilters, Operand kOperand>
__global__ void __launch_bounds__(kStemThreads, 1)
    stem_fprop(const __grid_constant__ StemParams params, const StemBuffers buffers) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  constexpr StemConfig kConfig{kParts, kFilters, kOperand};
  constexpr bool kScaled = kConfig.is_scaled();
  constexpr int kMostParts = kConfig.most_parts();
  extern __shared__ uint4 stem_smem[];
  const uint32_t smem = ptx::smem_address(stem_smem);
  int32_t walker, first_set;
  params.by_set_blocks.divmod(static_cast<int32_t>(blockIdx.x), walker, first_set);
  first_set *= static_cast<int32_t>(params.by_sets.divisor);
  const StemFilter<kFilters> filter{params, buffers.w, first_set, smem};
  // A small number in one of a block's tiles is not rare, and would send it to the slower products for good.
  [[maybe_unused]] StemBoxRange pixels{params.x, 1};
  [[maybe_unused]] bool scaled = true;  // until numbers do not fit
  if constexpr (kScaled) {
    clear_stages(params, smem);
    __syncthreads();
  }

  walk_stem_tiles(
      params, walker, smem,
      [&](const StemTile& tile, uint32_t stage) {
        copy_stem_box(params.x, buffers.x, tile.image, 0, tile.source_h, tile.source_w, stage);
      },
      [&] {
        write_stem_tables(params, smem);
        __syncthreads();
        if constexpr (kScaled) {
          filter.template pack_scaled<kParts>();
        } else {
          filter.template pack<kParts, kOperand>();
        }
      },
      [&](const StemTile& tile, uint32_t stage) {
        if constexpr (kScaled) {
          if (scaled) {
            const StemRange range{stage + params.range_at}, filter_range = filter.range();
            pixels.look(stage, range);
            __syncthreads();
            if (pixels.needs_second_look(range)) {
              pixels.look_again(stage, range);
              __syncthreads();
              pixels.finish(range);
            }
            const StemScale scale(pixels.most, filter_range.most());
            scaled = scale.fits && pixels.fits && filter_range.small() == 0;
            if (scaled) {
              return multiply_stem_tile<kParts, kFilters, kOperand>(params, buffers, tile, stage, first_set, smem,
                                                                    scale);
            }
            filter.template pack<kMostParts, Operand::kBf16>();
            __syncthreads();
          }
        }
        multiply_stem_tile<kMostParts, kFilters, Operand::kBf16>(params, buffers, tile, stage, first_set, smem,
                                                                 StemScale());
      });
#endif
}

}  // namespace fastconv
