// Weight gradient of a depthwise convolution by products of eight channels, see tile/depthwise_diagonal_wgrad.h. A warp
// has eight channels and keeps the sums of all their taps; rows of dy and x pass through shared memory.
#pragma once

#include "fastconv/ptx/async_copy.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/depthwise_diagonal_wgrad.h"
#include "fastconv/tile/element.cuh"

namespace fastconv {

// Of the rows of one tensor that a tile sees what one thread copies: eight channels of every 32nd pixel.
template <int kCopies>
class StagedPixels {
 public:
  // `pixel` by its position, for a tile.
  template <typename Pixel>
  __device__ void place(const void* tensor, const Strides& strides, int32_t image, int32_t channel, int32_t positions,
                        bool channels_exist, const Pixel& pixel) {
    positions_ = positions;
    tensor_ = static_cast<const uint16_t*>(tensor) + image * strides.n + channel;
    exists_ = 0;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const DiagonalPixel at = pixel(position() + i * kStep);
      const bool exists = channels_exist && at.exists;
      distances_[i] = exists ? static_cast<uint32_t>((at.image * strides.n + at.column * strides.w) * 2) : 0;
      exists_ |= uint32_t{exists} << i;
    }
  }

  __device__ void copy(uint32_t to, int64_t row_elements) const {
    const auto* row = reinterpret_cast<const char*>(tensor_ + row_elements);
    to = staged_address(to + position() * kStagedPixelBytes + chunk() * 2 * kDiagonalChannels);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (position() + i * kStep >= positions_) break;
      ptx::async_copy<16>(to + i * kStep * kStagedPixelBytes, row + distances_[i], (exists_ >> i & 1) != 0);
    }
  }

  static __device__ int32_t chunk() { return static_cast<int32_t>(threadIdx.x) % kDiagonalWgradWarps; }

 private:
  static constexpr int kStep = kDiagonalWgradThreads / kDiagonalWgradWarps;
  static __device__ int32_t position() { return static_cast<int32_t>(threadIdx.x) / kDiagonalWgradWarps; }

  const uint16_t* tensor_;
  int32_t positions_;
  uint32_t exists_;               // a bit each
  uint32_t distances_[kCopies];  // bytes
};

// A block has 32 channels and a slice of the rows of all tiles.
template <typename T, typename Line>
__global__ void __launch_bounds__(kDiagonalWgradThreads, Line::kConfig.blocks)
    depthwise_diagonal_wgrad(const __grid_constant__ DiagonalWgradParams params) {
  constexpr DiagonalWgradConfig kConfig = Line::kConfig;
  constexpr DepthwiseConfig kRows = kConfig.rows();
  constexpr int kSlots = kRows.slots(), kStride = kConfig.stride, kTaps = kConfig.taps, kUnits = kConfig.units;
  constexpr int kPairs = kConfig.pairs(), kAhead = kConfig.ahead;
  static_assert(kUnits % 2 == 0 && kStride <= 2);
  extern __shared__ __align__(128) uint4 diagonal_rows[];
  const uint32_t smem = ptx::smem_address(diagonal_rows);
  const uint32_t smem_end = smem + (kAhead + 1) * params.stage_bytes;
  const int32_t row_bytes = params.source_positions(kConfig) * kStagedPixelBytes;

  int32_t slice, first_channel;
  params.by_chunks.divmod(static_cast<int32_t>(blockIdx.x), slice, first_channel);
  first_channel *= kDiagonalWgradWarps * kDiagonalChannels;
  const int32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int32_t channel = first_channel + warp * kDiagonalChannels;

  DiagonalWgradWalk staged(kConfig, params, slice), used = staged;
  StagedPixels<kConfig.source_copies()> source;
  StagedPixels<kConfig.target_copies()> target;
  auto stage = [&](uint32_t to) {
    if (staged.exists()) {
      if (staged.step == 0) {
        const DiagonalWgradTile tile(params, staged.tile);
        const int32_t from = first_channel + source.chunk() * kDiagonalChannels;
        source.place(params.source, params.source_strides, tile.image, from, params.source_positions(kConfig),
                     from < params.channels, [&](int32_t i) { return diagonal_source(kConfig, params, tile, i); });
        target.place(params.target, params.target_strides, tile.image, from, kConfig.columns(), from < params.channels,
                     [&](int32_t i) { return diagonal_target(params, tile, i); });
      }
#pragma unroll
      for (int a = 0; a < kStride; ++a) {
        const int32_t row = staged.source_row(kConfig, params, a);
        if (row >= 0 && row < params.source_h) source.copy(to + a * row_bytes, row * params.source_strides.h);
      }
      if (staged.has_target()) {
        target.copy(to + kStride * row_bytes, (staged.row + staged.step) * params.target_strides.h);
      }
      staged.next(kConfig, params);
    }
    ptx::async_copy_commit();
  };
  uint32_t next = smem, current = smem;  // stages
  auto advance = [&](uint32_t& at) {
    at += params.stage_bytes;
    if (at == smem_end) at = smem;
  };
  for (int i = 0; i < kAhead; ++i, advance(next)) stage(next);

  float sums[kTaps][kPairs][4] = {};
  uint32_t slots[kSlots][kUnits][2];  // rows of dy
  uint32_t pixels[kUnits];            // of x, in bytes of a row: what a lane says of a product's matrices
  for (; used.exists(); used.next(kConfig, params), advance(current), advance(next)) {
    ptx::async_copy_wait<kAhead - 1>();
    __syncthreads();
    stage(next);
    if (channel >= params.channels) continue;
    const uint32_t chunk = current + warp * 2 * kDiagonalChannels;

    // Matrices of x are eight pixels at the first tap of a pair, at the second, and likewise the next eight.
    if (used.step == 0) {
      const DiagonalWgradTile tile(params, used.tile);
      const int32_t tap = diagonal_step(kConfig, params, lane / 8 % 2);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int32_t column = u * kDiagonalWgradPixels + lane / 16 * 8 + lane % 8;
        pixels[u] = (diagonal_position(kConfig, params, tile, column) + tap) * kStagedPixelBytes;
      }
    }
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t moved = slot + 1 < kSlots ? slots[(slot + 1) % kSlots][u][i] : 0;
          slots[slot][u][i] = used.step == 0 ? 0 : moved;
        }
      }
    }
    if (used.has_target()) {
#pragma unroll
      for (int u = 0; u < kUnits; u += 2) {
        uint32_t columns[4];
        const int32_t pixel = u * kDiagonalWgradPixels + lane;
        ptx::ldmatrix4<true>(staged_address(chunk + kStride * row_bytes + pixel * kStagedPixelBytes), columns);
#pragma unroll
        for (int i = 0; i < 4; ++i) slots[kSlots - 1][u + i / 2][i % 2] = columns[i];
      }
    }
#pragma unroll
    for (int a = 0; a < kStride; ++a) {
      const int32_t row = used.source_row(kConfig, params, a);
      if (row < 0 || row >= params.source_h) continue;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        if (u > 0 && u * kDiagonalWgradPixels >= params.columns) break;
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          uint32_t rows[4];
          constexpr int kPairBytes = 2 / kStride * kStagedPixelBytes;
          ptx::ldmatrix4<true>(staged_address(chunk + a * row_bytes + pixels[u] + pair * kPairBytes), rows);
#pragma unroll
          for (int slot = 0; slot < kSlots; ++slot) {
            const int r = kRows.row_tap(slot, a);
            if (r < kTaps) ptx::mma(T{}, sums[r][pair], rows, slots[slot][u][0], slots[slot][u][1]);
          }
        }
      }
    }
  }

  // Of each product a channel with itself: in lane 4 * c + c / 2.
  const int32_t c = lane / 4;
  if (lane % 4 != c / 2 || channel >= params.channels) return;
  const int32_t filter = channel + c;
#pragma unroll
  for (int r = 0; r < kTaps; ++r) {
#pragma unroll
    for (int s = 0; s < kTaps; ++s) {
      if (r >= params.taps_h || s >= params.taps_w) continue;
      const float(&pair)[4] = sums[r][s / 2];
      const float sum = c % 2 == 0 ? pair[s % 2 * 2] : pair[s % 2 * 2 + 1];
      if (params.sums != nullptr) {
        params.sums[(int64_t{slice} * params.channels + filter) * params.taps_h * params.taps_w + r * params.taps_w +
                    s] = sum;
      } else {
        const Strides& strides = params.filter_strides;
        static_cast<T*>(params.dw)[filter * strides.n + r * strides.h + s * strides.w] = narrow<T>(sum);
      }
    }
  }
}

}  // namespace fastconv
