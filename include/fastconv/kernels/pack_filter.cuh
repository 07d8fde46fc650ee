// The filter as the halo engine wants it: for each filter tile one [block_k][kChannels] operand a step (tap of a
// channel block), in the order of use, swizzled, zero where K or C end.
#pragma once

#include "fastconv/launch/pack_filter.h"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/halo_params.h"

namespace fastconv {

inline constexpr int kPackRows = 8, kPackThreads = 256, kPackTaps = 32, kPackBatch = 9;

// One block: 8 rows x one channel block, all taps. Elements pass through shared memory so that both sides are
// coalesced.
template <int kChannels>
__global__ __launch_bounds__(kPackThreads) void pack_filter(const __grid_constant__ HaloParams params,
                                                            const __grid_constant__ PackParams pack) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ uint16_t tile[kPackTaps][kPackRows][kChannels + 2];
  __shared__ int32_t step_of_tap[kPackTaps];
  ptx::allow_next_kernel();
  const int row_blocks = pack.block_k / kPackRows;
  int rest = blockIdx.x;
  const int c_block = rest % params.c_blocks;
  rest /= params.c_blocks;
  const int row_block = rest % row_blocks;
  const int filter_tile = rest / row_blocks;
  const int k_tiles = params.k_tiles.divisor;
  const int group = filter_tile / k_tiles;
  const int row0 = (filter_tile - group * k_tiles) * pack.block_k + row_block * kPackRows, col0 = c_block * kChannels;
  const auto* source = static_cast<const uint16_t*>(pack.filter) + group * pack.group;
  auto* packed = static_cast<uint16_t*>(pack.packed) +
                 int64_t{filter_tile} * params.steps_per_filter_tile * pack.block_k * kChannels;
  const int taps = pack.filter_h * pack.filter_w;
  const bool taps_fastest = taps > 1 && pack.s < pack.row && pack.s < pack.col;
  const bool cols_faster = pack.col <= pack.row;

  for (int first = 0; first < taps; first += kPackTaps) {
    const int count = min(kPackTaps, taps - first);
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kPackThreads) step_of_tap[i] = -1;
    __syncthreads();
    for (int p = 0; p < params.phase_count; ++p) {
      const OutputPhase& phase = params.phase[p];
      int step = phase.first_step + c_block * phase.taps;
      for (int g = phase.group_begin; g < phase.group_end; ++g) {
        const TapGroup& taps_of = params.group[g];
        const int size = taps_of.rows * taps_of.cols;
        for (int t = threadIdx.x; t < size; t += kPackThreads) {
          const int i = t / taps_of.cols, j = t - i * taps_of.cols;
          const int tap = (taps_of.r0 + i * taps_of.dr) * pack.filter_w + taps_of.s0 + j * taps_of.ds - first;
          if (tap >= 0 && tap < count) step_of_tap[tap] = step + t;
        }
        step += size;
      }
    }
    const int size = count * kPackRows * kChannels;
    for (int base = threadIdx.x; base < size; base += kPackBatch * kPackThreads) {
      uint16_t value[kPackBatch];
      uint16_t* to[kPackBatch];
#pragma unroll
      for (int b = 0; b < kPackBatch; ++b) {  // all loads of a batch are in flight together
        const int e = min(base + b * kPackThreads, size - 1);
        int tap, row, col, inner = e;
        if (taps_fastest) {
          inner = e / count, tap = e - inner * count;
        } else {
          tap = e / (kPackRows * kChannels), inner = e % (kPackRows * kChannels);
        }
        if (cols_faster) {
          col = inner % kChannels, row = inner / kChannels;
        } else {
          row = inner % kPackRows, col = inner / kPackRows;
        }
        const int r = (first + tap) / pack.filter_w, s = first + tap - r * pack.filter_w;
        const bool inside = row0 + row < pack.rows && col0 + col < pack.cols;
        to[b] = &tile[tap][row][col];
        value[b] = inside ? __ldg(source + (row0 + row) * pack.row + (col0 + col) * pack.col + r * pack.r + s * pack.s)
                          : uint16_t{0};
      }
#pragma unroll
      for (int b = 0; b < kPackBatch; ++b) *to[b] = value[b];
    }
    __syncthreads();
    constexpr int kChunks = kChannels / 8;
    for (int e = threadIdx.x; e < count * kPackRows * kChunks; e += kPackThreads) {
      const int chunk = e % kChunks, row = e / kChunks % kPackRows, tap = e / (kChunks * kPackRows);
      if (step_of_tap[tap] < 0) continue;  // reaches no output
      uint4 v;
      auto element = [&](int i) {
        return uint32_t{tile[tap][row][staged_channel(pack.channel_phases_log2, kChannels, chunk * 8 + i)]};
      };
      auto pair = [&](int i) { return element(i) | element(i + 1) << 16; };
      v.x = pair(0), v.y = pair(2), v.z = pair(4), v.w = pair(6);
      const uint32_t offset = ((row_block * kPackRows + row) * kChunks + chunk) * 16;
      const uint32_t swizzled = offset ^ (((offset >> 7) & (kChunks - 1)) << 4);
      *reinterpret_cast<uint4*>(packed + int64_t{step_of_tap[tap]} * pack.block_k * kChannels + swizzled / 2) = v;
    }
  }
#endif
}

}  // namespace fastconv
