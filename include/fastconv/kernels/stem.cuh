// Output of convolutions of images of few channels, float32: blocks go through tiles of pixels with the filter in
// shared memory, see stem_walk.cuh.
#pragma once

#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/mainloop_stem.cuh"
#include "fastconv/tile/operand_scale.cuh"
#include "fastconv/tile/stage_stem.cuh"

namespace fastconv {

struct StemBuffers {
  const float* x;
  const float* w;
  const float* bias;
  float* y;
  RangeGate gate;
};

// A block's filters, in parts, as products read them.
template <int kParts, int kFilters, Operand kOperand>
__device__ __forceinline__ void pack_stem_filter(const StemParams& params, const float* w, float scale,
                                                 int32_t first_set, uint32_t smem) {
  constexpr int kTiles = StemConfig{kParts, kFilters, kOperand}.set_tiles();
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  const int32_t all = static_cast<int32_t>(params.by_sets.divisor) * params.steps * kTiles;
#pragma unroll 2
  for (int32_t i = thread / 32; i < all; i += kStemWarps) {
    int32_t set, step;
    params.by_steps.divmod(i / kTiles, set, step);
    const int32_t filter = (first_set + set) * kFilters + i % kTiles * 8 + lane / 4;
    StemValues<1> values;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int32_t depth = stem_depth(step, lane, j);
      const bool exists = filter < params.filters && depth < params.depth;
      values.at(j, 0) = exists ? w[filter * params.filter.n + StemTap(params, depth).filter] : 0.f;
    }
    StemFragment<kParts, 1, kOperand> fragment;
    fragment.split(values, scale);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      ptx::store_shared8(smem + (i * kParts + part) * 256 + lane * 8,
                         make_uint2(fragment.part[part][0], fragment.part[part][1]));
    }
  }
}

// Sums of a unit, [block of pixels][tile of filters].
template <int kParts, int kFilters, Operand kOperand>
struct StemUnit {
  static constexpr StemConfig kConfig{kParts, kFilters, kOperand};
  static constexpr int kBlocks = kConfig.pixel_blocks(), kTiles = kConfig.set_tiles();
  static constexpr int kTogether = 2;  // tiles, so that products that follow each other do not wait
  float sum[kBlocks][kTiles][4];

  // `filter`, `table`: a lane's. kFinite: see add_stem_products().
  template <bool kFinite>
  __device__ __forceinline__ void multiply(const uint32_t (&rows)[kBlocks][2], uint32_t filter, uint32_t table,
                                           int32_t depth, float scale) {
#pragma unroll
    for (auto& tiles : sum) {
#pragma unroll
      for (auto& tile : tiles) tile[0] = tile[1] = tile[2] = tile[3] = 0.f;
    }
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
      for (int m = 0; m < kBlocks; ++m) pixels[m].split(values[m], scale);
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
        multiply_stem<kFinite>(pixels, filters, [&](int m, int i) -> float (&)[4] { return sum[m][t + i]; });
      }
      filter += kConfig.step_bytes(), table += 64;
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

  // Of filters from `first` on.
  __device__ __forceinline__ void add_bias(const float* bias, int32_t first, int32_t filters) {
    first += ptx::lane() % 4 * 2;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float value = first + t * 8 + i < filters ? bias[first + t * 8 + i] : 0.f;
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) sum[m][t][i] += value, sum[m][t][2 + i] += value;
      }
    }
  }

  // y: of the tile's first pixel and the set's first filter, of which there are so many. kPairs of filters.
  template <bool kPairs>
  __device__ __forceinline__ void store(const StemParams& params, const StemTile& tile, float* y, int32_t pixel,
                                        int32_t filters) const {
    const int lane = ptx::lane();
    int32_t offset[kBlocks][2];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        offset[m][half] = tile.target_of(params, params.target, pixel + m * 16 + half * 8 + lane / 4);
      }
    }
    // Offsets within an image fit 32 bits.
    const auto step = static_cast<int32_t>(params.target.c);
    const int32_t lane_filter = lane % 4 * 2;
    filters -= lane_filter, y += lane_filter * params.target.c;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const bool one = t * 8 < filters, two = t * 8 + 1 < filters;
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int32_t at = offset[m][half] + t * 8 * step;
          const bool exists = offset[m][half] >= 0;
          const float (&s)[4] = sum[m][t];
          if constexpr (kPairs) {
            if (one && exists) *reinterpret_cast<float2*>(y + at) = make_float2(s[2 * half], s[2 * half + 1]);
          } else {
            if (one && exists) y[at] = s[2 * half];
            if (two && exists) y[at + step] = s[2 * half + 1];
          }
        }
      }
    }
  }
};

template <int kParts, int kFilters, Operand kOperand>
__global__ void __launch_bounds__(kStemThreads, 1)
    stem_fprop(const __grid_constant__ StemParams params, const StemBuffers buffers) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  using Unit = StemUnit<kParts, kFilters, kOperand>;
  constexpr bool kScaled = kOperand == Operand::kFp16;
  if (is_closed(buffers.gate)) return;
  constexpr StemConfig kConfig = Unit::kConfig;
  extern __shared__ uint4 stem_smem[];
  const uint32_t smem = ptx::smem_address(stem_smem), table = smem + params.table_at;
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  const auto sets = static_cast<int32_t>(params.by_sets.divisor);
  int32_t walker, first_set;
  params.by_set_blocks.divmod(static_cast<int32_t>(blockIdx.x), walker, first_set);
  first_set *= sets;

  walk_stem_tiles(
      params, walker, smem,
      [&](const StemTile& tile, uint32_t stage) {
        copy_stem_box(params.x, buffers.x, tile.image, 0, tile.source_h, tile.source_w, stage);
      },
      [&] {
        pack_stem_filter<kParts, kFilters, kOperand>(params, buffers.w, kScaled ? buffers.gate.range->scale[1] : 1,
                                                     first_set, smem + params.filter_at);
#pragma unroll 1
        for (int32_t i = thread; i < params.steps * kStemStep; i += kStemThreads) {
          const int32_t depth = stem_depth(i / kStemStep, i / 4, i % 4);
          ptx::store_shared4(table + i * 4, depth < params.depth ? StemTap(params, depth).place * 4 : 0);
        }
      },
      [&](const StemTile& tile, uint32_t stage) {
        const uint32_t first_pixel = stage + params.x.lead(tile.source_w) * 4;
        float* y = buffers.y + (tile.image * params.target.n + tile.p * params.target.h + tile.q * params.target.w);
        const int32_t pixels = tile.pixels(params);
        const int32_t units = (pixels + kConfig.unit_pixels() - 1) / kConfig.unit_pixels() * sets;
#pragma unroll 1
        for (int32_t index = thread / 32; index < units; index += kStemWarps) {
          int32_t pixel, set;
          params.by_sets.divmod(index, pixel, set);
          pixel *= kConfig.unit_pixels();
          uint32_t rows[Unit::kBlocks][2];
#pragma unroll
          for (int m = 0; m < Unit::kBlocks; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              rows[m][half] = first_pixel + StemTile::source_of(params, pixel + m * 16 + half * 8 + lane / 4) * 4;
            }
          }
          const uint32_t lane_filter = smem + params.filter_at + set * params.steps * kConfig.step_bytes() + lane * 8;
          const uint32_t lane_table = table + lane % 4 * 16;
          Unit unit;
          const float scale = kScaled ? buffers.gate.range->scale[0] : 1;
          unit.template multiply<false>(rows, lane_filter, lane_table, params.depth, scale);
          // Overflow is seldom, so that each step need not look for it.
          if (kParts == 3 && !unit.is_finite()) {
            unit.template multiply<true>(rows, lane_filter, lane_table, params.depth, scale);
          }
          if constexpr (kScaled) {
#pragma unroll
            for (auto& tiles : unit.sum) unscale(tiles, *buffers.gate.range);
          }
          const int32_t filter = (first_set + set) * kFilters;
          if (buffers.bias != nullptr) unit.add_bias(buffers.bias, filter, params.filters);
          float* to = y + filter * params.target.c;
          if (params.pairs) {
            unit.template store<true>(params, tile, to, pixel, params.filters - filter);
          } else {
            unit.template store<false>(params, tile, to, pixel, params.filters - filter);
          }
        }
      });
#endif
}

}  // namespace fastconv
