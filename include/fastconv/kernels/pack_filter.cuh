// Packs the filter for the halo engine, see packed_filter.cuh. A block's first loads are under way before it looks up
// where taps go, and it is done soon: the next kernel needs its shared memory.
#pragma once

#include <type_traits>

#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/packed_filter.cuh"

namespace fastconv {

// step_of_tap[tap]: of the block's channel block, or -1 if the tap reaches no output.
__device__ __forceinline__ void find_steps(const HaloParams& params, const PackParams& pack, const PackBlock& block,
                                           int32_t* step_of_tap) {
  for (int tap = threadIdx.x; tap < block.count; tap += kPackThreads) step_of_tap[tap] = -1;
  __syncthreads();
  for (int p = 0; p < params.phase_count; ++p) {
    const OutputPhase& phase = params.phase[p];
    int step = phase.first_step + block.c_block * phase.taps;
    for (int g = phase.group_begin; g < phase.group_end; ++g) {
      const TapGroup& group = params.group[g];
      for (int t = threadIdx.x; t < group.rows * group.cols; t += kPackThreads) {
        const int i = t / group.cols, j = t - i * group.cols, filter_w = static_cast<int>(pack.filter_w.divisor);
        const int tap = (group.r0 + i * group.dr) * filter_w + group.s0 + j * group.ds - block.first_tap;
        if (tap >= 0 && tap < block.count) step_of_tap[tap] = step + t;
      }
      step += group.rows * group.cols;
    }
  }
}

// kWhole: 16 bytes a load.
template <bool kWhole>
__device__ __forceinline__ void pack_block(const HaloParams& params, const PackParams& pack, uint16_t* tile,
                                           int32_t* step_of_tap) {
  using Value = std::conditional_t<kWhole, uint4, uint16_t>;
  constexpr int kBatch = kWhole ? 4 : 8;  // loads in flight together
  const PackBlock block(params, pack, static_cast<int32_t>(blockIdx.x));
  const auto* source = static_cast<const uint16_t*>(pack.filter);
  const int units = (pack.along_cols ? pack.block_rows : pack.channels) * static_cast<int>(pack.units.divisor);
  for (int first = threadIdx.x; first - static_cast<int>(threadIdx.x) < units; first += kBatch * kPackThreads) {
    Value value[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      value[b] = {};
      if (first + b * kPackThreads >= units) continue;
      const PackUnit unit(pack, block, first + b * kPackThreads);
      const uint16_t* from = source + pack_source(pack, block, unit.outer, unit.at);
      if constexpr (!kWhole) {
        if (unit.exist > 0) value[b] = __ldg(from);
      } else if (unit.exist == 8) {
        value[b] = __ldg(reinterpret_cast<const uint4*>(from));
      } else {
        auto* words = reinterpret_cast<uint32_t*>(&value[b]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (i < unit.exist) words[i / 2] |= uint32_t{__ldg(from + i)} << (i % 2 * 16);
        }
      }
    }
    if (first < kPackThreads) find_steps(params, pack, block, step_of_tap);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (first + b * kPackThreads >= units) continue;
      const PackUnit unit(pack, block, first + b * kPackThreads);
      *reinterpret_cast<Value*>(tile + pack_slot(pack, unit.outer, unit.at)) = value[b];
    }
  }
  __syncthreads();
  const int64_t step_size = int64_t{pack.block_k} * pack.channels;
  auto* packed = static_cast<uint16_t*>(pack.packed) + block.filter_tile * params.steps_per_filter_tile * step_size;
  const int chunks = (pack.block_rows * static_cast<int>(pack.slab.divisor)) << pack.chunks_log2;
  for (int index = threadIdx.x; index < chunks; index += kPackThreads) {
    const PackChunk chunk(pack, block, index);
    const int step = chunk.tap < block.count ? step_of_tap[chunk.tap] : -1;
    if (step < 0) continue;
    auto pair = [&](int i) { return tile[chunk.slot(pack, i)] | uint32_t{tile[chunk.slot(pack, i + 1)]} << 16; };
    *reinterpret_cast<uint4*>(packed + step * step_size + chunk.at) = {pair(0), pair(2), pair(4), pair(6)};
  }
}

__global__ __launch_bounds__(kPackThreads, 6) void pack_filter(const __grid_constant__ HaloParams params,
                                                               const __grid_constant__ PackParams pack) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint4 pack_smem[];
  __shared__ int32_t step_of_tap[kPackTaps];
  ptx::allow_next_kernel();
  auto* tile = reinterpret_cast<uint16_t*>(pack_smem);
  if (pack.whole) {
    pack_block<true>(params, pack, tile, step_of_tap);
  } else {
    pack_block<false>(params, pack, tile, step_of_tap);
  }
#endif
}

// A thread a chunk: filters of folded convolutions are small.
__global__ __launch_bounds__(kPackThreads) void pack_folded_filter(const __grid_constant__ HaloParams params,
                                                                   const __grid_constant__ PackParams pack,
                                                                   const __grid_constant__ Fold fold) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ptx::allow_next_kernel();
  const int index = static_cast<int>(blockIdx.x * kPackThreads + threadIdx.x);
  const int chunks = params.k_tiles.divisor * params.steps_per_filter_tile * pack.block_k << pack.chunks_log2;
  if (index >= chunks) return;
  const FoldedPackChunk chunk(params, pack, index);
  uint16_t value[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t source = chunk.source(pack, fold, i);
    value[i] = source < 0 ? uint16_t{0} : __ldg(static_cast<const uint16_t*>(pack.filter) + source);
  }
  auto pair = [&](int i) { return value[i] | uint32_t{value[i + 1]} << 16; };
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(pack.packed) + chunk.at) = {pair(0), pair(2), pair(4), pair(6)};
#endif
}

}  // namespace fastconv
