// Weight gradient of a depthwise convolution for sm_90a, channels side by side, 16 bits, wide filters: see
// tile/depthwise_cross.h. Sums are float32, of which each warp keeps those of its channels and columns of taps.
#pragma once

#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/depthwise_cross.h"
#include "fastconv/tile/element.cuh"
#include "fastconv/tile/kept.cuh"
#include "fastconv/tile/ring.cuh"

namespace fastconv {

// Boxes of x and of dy, each in its own order.
struct CrossRings {
  Ring sources, targets;

  __device__ CrossRings(const DepthwiseCrossConfig& config, const DepthwiseCrossTiling& tiling, uint32_t data) {
    sources.data = data, targets.data = data + tiling.targets_offset();
    sources.stages = tiling.stages + 1, targets.stages = tiling.stages;
    sources.stage_bytes = tiling.source_bytes(), targets.stage_bytes = tiling.target_bytes();
    sources.barriers = data + tiling.barriers_offset(config);
    targets.barriers = sources.barriers + 16 * sources.stages;
  }
};

// The warp that moves: a box to each stage that all others are done with.
template <DepthwiseCrossConfig kConfig>
__device__ __forceinline__ void move_cross_boxes(const DepthwiseCrossParams& params, const CUtensorMap& source_map,
                                                 const CUtensorMap& target_map, int32_t slice, int32_t channel,
                                                 CrossRings rings) {
  auto move = [&](Ring& ring, const CUtensorMap& map, int32_t column, int32_t row, int32_t image) {
    ring.wait_empty();
    ptx::mbarrier_arrive_expect(ring.full(), ring.stage_bytes);
    ptx::tma_load(ring.stage(), &map, channel, column, row, image, 0, ring.full());
    ring.next();
  };
  for (CrossRun run(params, slice); run.exists(); run = run.next(params, slice)) {
    move(rings.sources, source_map, run.column, run.source_row, run.image);
    for (int32_t row = 0; row < run.boxes * kCrossRows; row += kCrossRows) {
      move(rings.sources, source_map, run.column, run.source_row + row + kCrossRows, run.image);
      move(rings.targets, target_map, params.target_column(kConfig, run.column), run.row + row, run.image);
    }
  }
}

// A channel's values of two pixels of a chunk.
__device__ __forceinline__ uint32_t of_channel(const uint4& first, const uint4& second, int channel) {
  auto word = [&](const uint4& v) { return channel < 2 ? v.x : channel < 4 ? v.y : channel < 6 ? v.z : v.w; };
  return __byte_perm(word(first), word(second), channel % 2 == 0 ? 0x5410 : 0x7632);
}

// Of a warp: sums of each channel and column of taps, 16 rows of x times 8 of dy.
template <DepthwiseCrossConfig kConfig>
using CrossSums = float[kCrossChunk][kConfig.shifts()][4];

// Adds up a slice's products for shifts kFirst and the next of a chunk's channels.
template <typename T, DepthwiseCrossConfig kConfig, int kFirst, int kShifts>
__device__ __forceinline__ void add_cross_products(const DepthwiseCrossParams& params, int32_t slice, int32_t chunk,
                                                   CrossRings rings, CrossSums<kConfig>& sums) {
  const DepthwiseCrossTiling& tiling = params.tiling;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  auto place = [&](int32_t pitch, int32_t column) {
    return params.swizzled((lane / 4 * pitch + lane % 4 + column) * kCrossPixelBytes + chunk * 2 * kCrossChunk);
  };
  // A lane has every fourth column of a row of x and of dy, two of each at a time.
  uint32_t of_x[2], of_dy[kShifts][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    of_x[i] = kept(place(tiling.source_pitch(), 4 * i));
#pragma unroll
    for (int shift = 0; shift < kShifts; ++shift) {
      of_dy[shift][i] = kept(place(tiling.target_pitch(), kFirst + shift + 4 * i));
    }
  }
  Ring &sources = rings.sources, &targets = rings.targets;
  auto release = [&](const Ring& ring) {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ring.empty());
  };

#pragma unroll 1
  for (CrossRun run(params, slice); run.exists(); run = run.next(params, slice)) {
    sources.wait_full();
    Ring before = sources;  // of x: the box before
    sources.next();
    sources.wait_full(), targets.wait_full();
    int32_t boxes = run.boxes, images = tiling.images, columns = tiling.columns;  // that are left
    uint32_t x[2] = {before.stage(), sources.stage()}, dy = targets.stage();
    uint4 rows[2][2], met[kShifts][2];
    auto read_x = [&] {
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[i / 2][i % 2] = ptx::load_shared16(x[i / 2] + of_x[i % 2]);
    };
    auto read_dy = [&](int shift) {
#pragma unroll
      for (int i = 0; i < 2; ++i) met[shift][i] = ptx::load_shared16(dy + of_dy[shift][i]);
    };
    uint32_t a[kCrossChunk][2];
    auto take_channel = [&](int channel) {
#pragma unroll
      for (int i = 0; i < 2; ++i) a[channel][i] = kept(of_channel(rows[i][0], rows[i][1], channel));
    };
    read_x();
#pragma unroll
    for (int shift = 0; shift < kShifts; ++shift) read_dy(shift);
#pragma unroll
    for (int channel = 0; channel < kCrossChunk; ++channel) take_channel(channel);
#pragma unroll 1
    while (boxes > 0) {
      // To the next columns, images, box, whose pixels are read while these are multiplied; at the end to the same
      // ones.
      constexpr uint32_t kStep = kCrossColumns * kCrossPixelBytes;
      bool box_done = false;
      if ((columns -= kCrossColumns) > 0) {
        x[0] += kStep, x[1] += kStep, dy += kStep;
      } else {
        columns = tiling.columns, box_done = --images == 0;
        if (!box_done) {
          const uint32_t gap = (kCrossRows * tiling.source_pitch() - columns + kCrossColumns) * kCrossPixelBytes;
          x[0] += gap, x[1] += gap;
          dy += (kCrossRows * tiling.target_pitch() - columns + kCrossColumns) * kCrossPixelBytes;
        } else if (--boxes > 0) {
          images = tiling.images;
          Ring next = sources;
          next.next(), next.wait_full();
          x[0] = sources.stage(), x[1] = next.stage();
          next = targets;
          next.next(), next.wait_full();
          dy = next.stage();
        }
      }
      read_x();
#pragma unroll
      for (int shift = 0; shift < kShifts; ++shift) {
#pragma unroll
        for (int channel = 0; channel < kCrossChunk; ++channel) {
          ptx::mma(T{}, sums[channel][shift], a[channel][0], a[channel][1],
                   of_channel(met[shift][0], met[shift][1], channel));
          if (shift + 1 == kShifts) take_channel(channel);
        }
        read_dy(shift);
      }
      if (box_done) {
        release(before), release(targets);
        before = sources;
        sources.next(), targets.next();
      }
    }
    release(before);
  }
}

// Adds up what belongs to each tap, for a block: taps[tap][channel]. `scratch`: of the warp, as its sums. The last
// shift of the second half of the warps may be no tap's.
template <DepthwiseCrossConfig kConfig>
__device__ __forceinline__ void gather_cross_taps(const CrossSums<kConfig>& sums, int32_t chunk, int32_t first_shift,
                                                  float* scratch, float* taps) {
  constexpr int kShifts = kConfig.shifts();
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  float* to = scratch + lane / 4 * kCrossRows + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kCrossChunk * kShifts; ++i) {
    if (first_shift + i % kShifts >= kConfig.taps) continue;
    const float (&product)[4] = sums[i / kShifts][i % kShifts];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<float2*>(to + i * kCrossProductSums + half * kCrossRows * kCrossRows) =
          make_float2(product[2 * half], product[2 * half + 1]);
    }
  }
  __syncwarp();
  for (int32_t i = lane; i < kCrossChunk * kShifts * kConfig.taps; i += 32) {
    const int32_t r = i % kConfig.taps, product = i / kConfig.taps;
    const int32_t s = cross_tap(kConfig, first_shift + product % kShifts);
    if (s < 0) continue;
    const float* from = scratch + product * kCrossProductSums + r * kCrossRows;
    float sum = 0;
#pragma unroll
    for (int row = 0; row < kCrossRows; ++row) sum += from[row * (kCrossRows + 1)];
    taps[(r * kConfig.taps + s) * kCrossChannels + chunk * kCrossChunk + product / kShifts] = sum;
  }
}

// A slice's sum for one tap by definition, slowly: where a product with a zero beside an image has met an infinity or
// NaN.
template <typename T>
__device__ float cross_tap_by_definition(const DepthwiseCrossParams& params, int32_t slice, int32_t channel, int32_t r,
                                         int32_t s) {
  const Strides &from = params.source_strides, &to = params.target_strides;
  const auto* x = static_cast<const T*>(params.source) + channel * from.c;
  const auto* dy = static_cast<const T*>(params.target) + channel * to.c;
  // Of dy: from those of x, which lie so much further on.
  const int32_t rows_on = r - params.padding_h, columns_on = s - params.padding_w;
  float sum = 0;
  for (CrossRun run(params, slice); run.exists(); run = run.next(params, slice)) {
    const int32_t first_p = max(run.row, -rows_on), first_w = max(run.column, columns_on);
    const int32_t last_p = min(run.row + run.boxes * kCrossRows, min(params.target_h, params.source_h - rows_on));
    const int32_t last_w = min(run.column + params.tiling.columns, min(params.source_w, params.target_w + columns_on));
    const int32_t last_image = min(run.image + params.tiling.images, params.images);
    for (int32_t image = run.image; image < last_image; ++image) {
      for (int32_t p = first_p; p < last_p; ++p) {
        for (int32_t w = first_w; w < last_w; ++w) {
          sum += widen(x[image * from.n + (p + rows_on) * from.h + w * from.w]) *
                 widen(dy[image * to.n + p * to.h + (w - columns_on) * to.w]);
        }
      }
    }
  }
  return sum;
}

template <typename T, typename Line>
__global__ void __launch_bounds__(kCrossThreads, 1)
    depthwise_cross(const __grid_constant__ DepthwiseCrossParams params, const __grid_constant__ CUtensorMap source_map,
                    const __grid_constant__ CUtensorMap target_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ptx::follow_previous_kernel();
  constexpr DepthwiseCrossConfig kConfig = Line::kConfig;
  constexpr int kTaps = kConfig.taps, kShifts = kConfig.shifts();
  static_assert(kTaps <= kCrossRows + 1);  // rows of x that 8 rows of dy meet
  extern __shared__ uint8_t smem_raw[];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  if (thread == 32 * kCrossWarps) ptx::tma_prefetch(&source_map), ptx::tma_prefetch(&target_map);
  // Swizzling goes by absolute address.
  const uint32_t smem = ptx::smem_address(smem_raw), data = (smem + 1023) & ~1023u;
  const CrossRings rings(kConfig, params.tiling, data);
  rings.sources.init(warp, kCrossThreads / 32, thread % 32, 1, kCrossWarps);
  rings.targets.init(warp, kCrossThreads / 32, thread % 32, 1, kCrossWarps);
  ptx::mbarrier_init_fence();
  __syncthreads();

  int32_t slice, first_channel;
  params.by_channel_blocks.divmod(static_cast<int32_t>(blockIdx.x), slice, first_channel);
  first_channel *= kCrossChannels;
  if (warp >= kCrossWarps) {
    ptx::release_registers<kCrossMoverRegisters>();
    if (thread == 32 * kCrossWarps) {
      move_cross_boxes<kConfig>(params, source_map, target_map, slice, first_channel, rings);
    }
    return;
  }
  ptx::acquire_registers<kCrossRegisters>();
  auto* taps = reinterpret_cast<float*>(smem_raw + (data - smem));
  float* scratch = taps + kConfig.tap_sums() + warp * kConfig.warp_sums();
  const int32_t chunk = warp % kCrossChunks;
  CrossSums<kConfig> sums = {};
  if (warp < kCrossChunks) {
    add_cross_products<T, kConfig, 0, kShifts>(params, slice, chunk, rings, sums);
  } else {
    add_cross_products<T, kConfig, kShifts, kTaps - kShifts>(params, slice, chunk, rings, sums);
  }
  ptx::barrier_sync<32 * kCrossWarps>(1);  // no box is read any more
  gather_cross_taps<kConfig>(sums, chunk, warp < kCrossChunks ? 0 : kShifts, scratch, taps);
  ptx::barrier_sync<32 * kCrossWarps>(1);
  for (int32_t i = thread; i < kConfig.tap_sums(); i += 32 * kCrossWarps) {
    const int32_t r = i / kCrossChannels / kTaps, s = i / kCrossChannels % kTaps;
    const int32_t channel = first_channel + i % kCrossChannels;
    if (r >= params.taps_h || s >= params.taps_w || channel >= params.channels) continue;
    float sum = taps[i];
    if (add_zeros<float>(__float_as_uint(sum), 0) != 0) sum = cross_tap_by_definition<T>(params, slice, channel, r, s);
    if (params.sums != nullptr) {
      const int64_t tap = (int64_t{slice} * params.taps_h + r) * params.taps_w + s;
      params.sums[tap * params.channels + channel] = sum;
    } else {
      const Strides& strides = params.filter_strides;
      static_cast<T*>(params.dw)[channel * strides.n + r * strides.h + s * strides.w] = narrow<T>(sum);
    }
  }
#endif
}

}  // namespace fastconv
