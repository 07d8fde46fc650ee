// Weight gradient of a depthwise convolution for sm_90a, channels side by side, 16 bits, wide filters: see
// families/depthwise/cross.h. Sums are float32, of which each warp keeps those of its channels and columns of taps.
#pragma once

#include "fastconv/families/depthwise/cross.h"
#include "fastconv/families/depthwise/cross_definition.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/element.cuh"
#include "fastconv/tile/kept.cuh"
#include "fastconv/tile/ring.cuh"

namespace fastconv {

// Boxes of x and of dy, each in its own order.
struct CrossRings {
  Ring sources, targets;

  __device__ CrossRings(const DepthwiseCrossConfig& config, const DepthwiseCrossTiling& tiling, uint32_t data) {
    sources.data = data, targets.data = data + tiling.targets_offset(config);
    sources.stages = tiling.source_stages, targets.stages = tiling.stages;
    sources.stage_bytes = tiling.source_bytes(config), targets.stage_bytes = tiling.target_bytes(config);
    sources.barriers = data + tiling.barriers_offset(config);
    targets.barriers = sources.barriers + 16 * sources.stages;
  }
};

// The warp that moves: a box to each stage that all others are done with.
template <DepthwiseCrossConfig kConfig>
__device__ __forceinline__ void move_cross_boxes(const DepthwiseCrossParams& params, const CUtensorMap& source_map,
                                                 const CUtensorMap& target_map, int32_t slice, int32_t channel,
                                                 CrossRings rings) {
  const DepthwiseCrossTiling& tiling = params.tiling;
  const int32_t source_bytes = tiling.source_image_bytes(), target_bytes = tiling.target_image_bytes(kConfig);
  for (CrossRun run(kConfig, params, slice); run.exists(); run = run.next(kConfig, params, slice)) {
    Ring &sources = rings.sources, &targets = rings.targets;
    int32_t source_row = run.source_row, more = tiling.met_boxes(kConfig);
#pragma unroll 1
    for (int32_t box = 0; box < run.boxes; ++box, more = tiling.new_boxes(kConfig)) {
#pragma unroll 1
      for (; more > 0; --more, source_row += tiling.source_rows, sources.next()) {
        sources.wait_empty();
        ptx::mbarrier_arrive_expect(sources.full(), kConfig.stride * tiling.images * source_bytes);
        uint32_t to = sources.stage();
#pragma unroll
        for (int32_t plane = 0; plane < kConfig.stride; ++plane) {
#pragma unroll 1
          for (int32_t i = 0; i < tiling.images; ++i, to += tiling.apart(source_bytes)) {
            ptx::tma_load(to, &source_map, channel, kConfig.stride * run.column + plane, source_row, run.image + i, 0,
                          sources.full());
          }
        }
      }
      targets.wait_empty();
      ptx::mbarrier_arrive_expect(targets.full(), tiling.images * target_bytes);
#pragma unroll 1
      for (int32_t i = 0; i < tiling.images; ++i) {
        ptx::tma_load(targets.stage() + i * tiling.apart(target_bytes), &target_map, channel,
                      run.column + params.lead(kConfig), run.row + box * tiling.rows, run.image + i, 0, targets.full());
      }
      targets.next();
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

// Adds up a slice's products for a chunk's channels and a half of the columns of taps.
template <typename T, DepthwiseCrossConfig kConfig, int kHalf>
__device__ __forceinline__ void add_cross_products(const DepthwiseCrossParams& params, int32_t slice, int32_t chunk,
                                                   CrossRings rings, CrossSums<kConfig>& sums) {
  constexpr int kShifts = kConfig.shifts(kHalf);
  const DepthwiseCrossTiling& tiling = params.tiling;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t source_pitch = tiling.source_pitch(), target_pitch = tiling.target_pitch(kConfig);
  auto place = [&](int32_t pitch, int32_t row, int32_t column) {
    return params.swizzled((row * pitch + column) * kCrossPixelBytes + chunk * 2 * kCrossChunk);
  };
  // A lane has two columns side by side, of two rows of x and one of dy; of rows that no tap meets, any.
  const int32_t column = lane % 4 * 2;
  const CrossSourceRow x_rows[2] = {{kConfig, tiling, lane / 4}, {kConfig, tiling, lane / 4 + kCrossSourceRows / 2}};
  uint32_t of_x[2][2], of_dy[kShifts + 1];
  const uint32_t plane = kConfig.plane(kHalf, params.padding_w) * tiling.plane_bytes();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    of_x[i / 2][i % 2] = kept(plane + place(source_pitch, x_rows[i / 2].row, column + i % 2));
  }
#pragma unroll
  for (int i = 0; i <= kShifts; ++i) {
    const int32_t shift = params.first_shift(kConfig, kHalf) + i;
    of_dy[i] = kept(place(target_pitch, min(lane / 4, tiling.rows - 1), column + shift));
  }
  const CrossColumns first_columns(kConfig, tiling, column);
  Ring &sources = rings.sources, &targets = rings.targets;
  auto release = [&](Ring& ring, int32_t boxes) {
    __syncwarp();
    Ring done = ring;
    done.advance(lane);
    if (lane < boxes) ptx::mbarrier_arrive(done.empty());
    ring.advance(boxes);
  };
  const int32_t met_boxes = tiling.met_boxes(kConfig), new_boxes = tiling.new_boxes(kConfig);

#pragma unroll 1
  for (CrossRun run(kConfig, params, slice); run.exists(); run = run.next(kConfig, params, slice)) {
    Ring coming = sources;
    auto wait_sources = [&](int32_t boxes) {
      for (; boxes > 0; --boxes) coming.wait_full(), coming.next();
    };
    wait_sources(met_boxes), targets.wait_full();
    uint32_t x[2], dy = targets.stage();
    auto to_boxes = [&](int32_t first) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Ring box = sources;
        box.advance(first + x_rows[i].box);
        x[i] = box.stage();
      }
    };
    uint4 rows[2][2], met[kShifts + 1];
    auto read_x = [&] {
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[i / 2][i % 2] = ptx::load_shared16(x[i / 2] + of_x[i / 2][i % 2]);
    };
    auto read_dy = [&](int i) { met[i] = ptx::load_shared16(dy + of_dy[i]); };
    uint32_t a[kCrossChunk][2];
    auto take_channel = [&](int channel) {
#pragma unroll
      for (int i = 0; i < 2; ++i) a[channel][i] = kept(of_channel(rows[i][0], rows[i][1], channel));
    };
    // Multiplies what was read, and reads what comes next.
    auto multiply = [&] {
      read_x();
#pragma unroll
      for (int shift = 0; shift < kShifts; ++shift) {
#pragma unroll
        for (int channel = 0; channel < kCrossChunk; ++channel) {
          ptx::mma(T{}, sums[channel][shift], a[channel][0], a[channel][1],
                   of_channel(met[shift], met[shift + 1], channel));
          if (shift + 1 == kShifts) take_channel(channel);
        }
        read_dy(shift);
      }
      read_dy(kShifts);
    };
    to_boxes(0);
    read_x();
#pragma unroll
    for (int i = 0; i <= kShifts; ++i) read_dy(i);
#pragma unroll
    for (int channel = 0; channel < kCrossChunk; ++channel) take_channel(channel);
#pragma unroll 1
    for (int32_t box = 1;; ++box) {
      CrossColumns columns = first_columns;
#pragma unroll 1
      for (int32_t step = 1; step < tiling.steps(); ++step) {
        int32_t source_step, target_step;
        columns.next(source_step, target_step);
        x[0] += source_step, x[1] += source_step, dy += target_step;
        multiply();
      }
      const bool last = box == run.boxes;  // reads its last columns once more
      if (!last) {
        wait_sources(new_boxes);
        to_boxes(new_boxes);
        Ring next = targets;
        next.next(), next.wait_full();
        dy = next.stage();
      }
      multiply();
      release(sources, new_boxes), release(targets, 1);
      if (last) break;
    }
    release(sources, met_boxes - new_boxes);
  }
}

// To shared memory, all of a warp's. The last shift may be no tap's.
template <DepthwiseCrossConfig kConfig>
__device__ __forceinline__ void store_cross_products(const CrossSums<kConfig>& sums, int32_t shifts, float* to) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  to += lane / 4 * kCrossTargetRows + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kCrossChunk * kConfig.shifts(); ++i) {
    const int channel = i / kConfig.shifts(), shift = i % kConfig.shifts();
    if (shift >= shifts) continue;
    const float (&product)[4] = sums[channel][shift];
    float* first = to + channel * kConfig.channel_sums() + shift * kCrossProductSums;
    *reinterpret_cast<float2*>(first) = make_float2(product[0], product[1]);
    *reinterpret_cast<float2*>(first + kCrossProductSums / 2) = make_float2(product[2], product[3]);
  }
}

// Of a block's products, what belongs to a tap, for one of its channels.
template <DepthwiseCrossConfig kConfig>
__device__ __forceinline__ float cross_tap_sum(const float* products, int32_t rows, int32_t channel, int32_t r,
                                               int32_t s) {
  const int32_t shift = kConfig.shift_of(s), half = kConfig.half_of(s);
  const float* from = products + (half * kCrossChunks + channel / kCrossChunk) * kConfig.warp_sums() +
                      channel % kCrossChunk * kConfig.channel_sums() + shift * kCrossProductSums + r * kCrossTargetRows;
  float sum = 0;
#pragma unroll
  for (int row = 0; row < kCrossTargetRows; ++row) {
    if (row < rows) sum += from[row * (kConfig.stride * kCrossTargetRows + 1)];
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
  constexpr int kTaps = kConfig.taps;
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
  auto* products = reinterpret_cast<float*>(smem_raw + (data - smem));
  const int32_t chunk = warp % kCrossChunks, half = warp / kCrossChunks;
  float sums[kCrossChunk][kConfig.shifts()][4] = {};  // not by the alias: CUDA 12.4's compiler crashes
  if (half == 0) {
    add_cross_products<T, kConfig, 0>(params, slice, chunk, rings, sums);
  } else {
    add_cross_products<T, kConfig, 1>(params, slice, chunk, rings, sums);
  }
  ptx::barrier_sync<32 * kCrossWarps>(1);  // no box is read any more
  store_cross_products<kConfig>(sums, kConfig.shifts(half), products + warp * kConfig.warp_sums());
  ptx::barrier_sync<32 * kCrossWarps>(1);
  for (int32_t i = thread; i < kTaps * kTaps * kCrossChannels; i += 32 * kCrossWarps) {
    const int32_t r = i / kCrossChannels / kTaps, s = i / kCrossChannels % kTaps;
    const int32_t channel = first_channel + i % kCrossChannels;
    if (r >= params.taps_h || s >= params.taps_w || channel >= params.channels) continue;
    float sum = cross_tap_sum<kConfig>(products, params.tiling.rows, i % kCrossChannels, r, s);
    if (add_zeros<float>(__float_as_uint(sum), 0) != 0) {
      sum = cross_tap_by_definition<T, kConfig>(params, slice, channel, r, s);
    }
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
