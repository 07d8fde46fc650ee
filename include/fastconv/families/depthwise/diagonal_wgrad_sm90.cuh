// Weight gradient of a depthwise convolution by matrix products for sm_90a, channels side by side, 16 bits: as
// depthwise_diagonal_wgrad, but TMA brings rows of x and dy in boxes of a few, which a warp multiplies
// without a pause.
#pragma once

#include "fastconv/families/depthwise/diagonal_wgrad.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/ring.cuh"

namespace fastconv {

// The boxes of a block's units, one after the other, by one thread.
template <DiagonalWgradConfig kConfig>
class DiagonalWgradLoads {
 public:
  __device__ DiagonalWgradLoads(const DiagonalWgradParams& params, const CUtensorMap& source_map,
                                const CUtensorMap& target_map, int32_t channel, int32_t first_unit)
      : params_(params),
        source_map_(source_map),
        target_map_(target_map),
        channel_(channel),
        index_(first_unit),
        unit_(params, index_) {}

  // To the ring's stage, which is free: a ring has as many boxes on their way as stages.
  __device__ void next(const Ring& ring) {
    if (index_ >= params_.boxes.units) return;
    const DiagonalWgradBoxes& boxes = params_.boxes;
    ptx::mbarrier_arrive_expect(ring.full(), boxes.bytes());
#pragma unroll
    for (int a = 0; a < kConfig.stride; ++a) {
      ptx::tma_load(ring.stage() + a * boxes.plane_bytes(), &source_map_, channel_,
                    unit_.column * kConfig.stride - params_.padding_w + a, unit_.source_row + box_ * kConfig.box_rows,
                    unit_.image, 0, ring.full());
    }
    ptx::tma_load(ring.stage() + boxes.target_offset(), &target_map_, channel_, unit_.column,
                  unit_.row + box_ * kConfig.box_targets(), unit_.image, 0, ring.full());
    if (++box_ * kConfig.box_rows < unit_.steps) return;
    box_ = 0, index_ += params_.boxes.slices;
    unit_ = DiagonalWgradUnit(params_, index_);
  }

 private:
  const DiagonalWgradParams& params_;
  const CUtensorMap &source_map_, &target_map_;
  int32_t channel_, index_, box_ = 0;
  DiagonalWgradUnit unit_;
};

// A block has some chunks of channels, a warp each, and every so manieth unit.
template <typename T, typename Line>
__global__ void __launch_bounds__(kDiagonalWgradThreads, DiagonalWgradConfig{Line::kConfig}.blocks())
    depthwise_diagonal_wgrad_sm90(const __grid_constant__ DiagonalWgradParams params,
                                  const __grid_constant__ CUtensorMap source_map,
                                  const __grid_constant__ CUtensorMap target_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ptx::follow_previous_kernel();
  constexpr DiagonalWgradConfig kConfig{Line::kConfig};
  constexpr int kTaps = kConfig.taps, kUnits = kConfig.units(), kTapPairs = kConfig.tap_pairs();
  constexpr int kStride = kConfig.stride, kBoxRows = kConfig.box_rows, kBoxTargets = kConfig.box_targets();
  constexpr int kEarlier = kConfig.earlier_targets(), kSources = kConfig.sources();
  static_assert(kBoxRows % kStride == 0 && kStride <= 2 && kUnits == 2 && kBoxTargets > kEarlier);
  static_assert(kConfig.ahead > 1);  // a box is asked for when the next one is there
  extern __shared__ uint8_t smem_raw[];
  const DiagonalWgradBoxes& boxes = params.boxes;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0);
  Ring ring;
  ring.data = (ptx::smem_address(smem_raw) + 1023) & ~1023u;  // swizzling goes by absolute address
  ring.stage_bytes = boxes.stage_bytes(), ring.stages = kConfig.ahead;
  ring.barriers = ring.data + ring.stages * ring.stage_bytes;
  ring.init(warp, kDiagonalWgradWarps, lane, 1, kDiagonalWgradWarps);
  ptx::mbarrier_init_fence();
  __syncthreads();

  int32_t slice, first_channel;
  params.by_chunks.divmod(static_cast<int32_t>(blockIdx.x), slice, first_channel);
  first_channel *= kDiagonalWgradWarps * kChunk;
  DiagonalWgradLoads<kConfig> loads(params, source_map, target_map, first_channel, slice);
  const bool copies = threadIdx.x == 0;
  if (copies) {
    Ring stages = ring;
    for (int i = 0; i < kConfig.ahead; ++i, stages.next()) loads.next(stages);
  }

  // Lane i names pixel i % 8 of a matrix. Of x matrices are eight columns at a pair's first tap, at its second, and
  // then the next eight; of dy the four of both units.
  constexpr int kOfSource = kUnits * kTapPairs, kColumns = kSources * kOfSource;
  uint32_t windows[kColumns];
  auto place_windows = [&](const DiagonalWgradUnit& unit) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int32_t column = i % kOfSource / kTapPairs * kDiagonalWgradPixels + lane / 16 * 8 + lane % 8;
      const int32_t tap = i % kTapPairs * 2 + lane / 8 % 2;
      const int32_t pixel = boxes.source_pixel(column, params.target_w - unit.column) + tap / kStride;
      const int32_t chunk = warp / kSources * kSources + i / kOfSource;
      windows[i] = ring.data + tap % kStride * boxes.plane_bytes() +
                   boxes.swizzled(pixel * boxes.kPixelBytes + chunk * kChunkBytes);
    }
  };
  const uint32_t target = ring.data + boxes.target_offset() +
                          boxes.swizzled(boxes.target_pixel(lane) * boxes.kPixelBytes + warp * kChunkBytes);

  // To where the box before this one was, once all warps have left it: by a thread that has begun with this one, so
  // that its warp need not wait for the others.
  bool begun = false;
  auto refill = [&] {
    if (copies && begun) {
      const Ring left = ring.previous();
      left.wait_left();
      loads.next(left);
    }
    begun = true;
    __syncwarp();
  };

  float sums[kSources][kTaps][kTapPairs][4] = {};
  // Rows of dy: of this box those that were read, and of the one before the others.
  uint32_t rows[kBoxTargets][4] = {};
#pragma unroll 1
  for (int32_t index = slice; index < boxes.units; index += boxes.slices) {
    const DiagonalWgradUnit unit(params, index);
    place_windows(unit);
#pragma unroll 1
    for (int32_t step = 0; step < unit.steps; step += kBoxRows) {
      ring.wait_full();
      const uint32_t stage = ring.index * ring.stage_bytes;
      auto read_target = [&](int row) {  // that a row of x is the first to meet
        if (row % kStride != 0) return;
        ptx::ldmatrix4<true>(target + (stage + row / kStride * boxes.target_row_bytes()), rows[row / kStride]);
      };
      // Of 16 columns and a pair of taps.
      auto read_source = [&](int row, int i, uint32_t (&columns)[4]) {
        ptx::ldmatrix4<true>(windows[i] + (stage + row * boxes.source_row_bytes()), columns);
      };
      auto multiply = [&](int row, int i, int r, const uint32_t (&columns)[4]) {
        const uint32_t (&dy)[4] = rows[((row - r) / kStride + kBoxTargets) % kBoxTargets];
        const int u = i % kOfSource / kTapPairs;
        ptx::mma(T{}, sums[i / kOfSource][r][i % kTapPairs], columns, dy[2 * u], dy[2 * u + 1]);
      };
      const int32_t h = unit.source_row + step, output = step / kStride;
      if (output >= kEarlier && output + kBoxTargets <= unit.outputs && h >= 0 && h + kBoxRows <= params.source_h) {
#pragma unroll
        for (int row = 0; row < kBoxRows; ++row) {
          read_target(row);
          uint32_t columns[2][4];
          read_source(row, 0, columns[0]);
#pragma unroll
          for (int i = 0; i < kColumns; ++i) {
            if (i + 1 < kColumns) read_source(row, i + 1, columns[(i + 1) % 2]);
#pragma unroll
            for (int r = row % kStride; r < kTaps; r += kStride) multiply(row, i, r, columns[i % 2]);
          }
          if (row == 0) refill();
        }
      } else {
        refill();
        // Rows of dy that the run lacks are left out: what x has there may be no number.
#pragma unroll
        for (int row = 0; row < kBoxRows; ++row) {
          read_target(row);
          if (h + row < 0 || h + row >= params.source_h) continue;
          uint32_t columns[kColumns][4];
#pragma unroll
          for (int i = 0; i < kColumns; ++i) read_source(row, i, columns[i]);
#pragma unroll
          for (int r = row % kStride; r < kTaps; r += kStride) {
            const int p = output + (row - r) / kStride;
            if (p < 0 || p >= unit.outputs) continue;
            __syncwarp();  // a branch: products under a predicate take twice as long, and left out as long as others
#pragma unroll
            for (int i = 0; i < kColumns; ++i) multiply(row, i, r, columns[i]);
          }
        }
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(ring.empty());
      ring.next();
    }
  }
#pragma unroll
  for (int source = 0; source < kSources; ++source) {
    store_diagonal_sums<T, kConfig>(params, slice, first_channel + warp * kChunk, source, sums[source]);
  }
#endif
}

}  // namespace fastconv
