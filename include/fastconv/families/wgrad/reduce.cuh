// Second pass of the weight gradient, where a cluster does not hold all splits of a job: adds the clusters' sums in a
// fixed order.
#pragma once

#include "fastconv/families/wgrad/store.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/mbarrier.cuh"
#include "fastconv/tile/add_partials.cuh"
#include "fastconv/tile/operand_scale.cuh"

namespace fastconv {

// Of few clusters, where channels and taps make runs: a block has a slice of a job, see WgradJobStore.
inline constexpr int kReduceRowsThreads = 768;

template <typename T, int kChannels, int kBlocks, int kSlots>
__global__ __launch_bounds__(kReduceRowsThreads) void reduce_wgrad_rows(const __grid_constant__ WgradParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Store = WgradJobStore<T, kChannels, kBlocks, kSlots>;
  extern __shared__ uint4 reduce_smem[];
  const uint32_t rows = ptx::smem_address(reduce_smem);
  const int slices = 4 * params.m_blocks, index = static_cast<int>(blockIdx.x) / slices;
  const int slice = static_cast<int>(blockIdx.x) - index * slices;
  const WgradJob job(params, index);
  const int64_t all = int64_t{params.jobs.divisor} * Store::kAll;
  const auto* partial = reinterpret_cast<const float4*>(params.partial) + int64_t{index} * Store::kAll;

  ptx::follow_previous_kernel();
  if (is_closed(params.gate)) return;
  Store::template put_rows<kReduceRowsThreads / 32>(params, job, rows, slice, threadIdx.x, [&](int quad) {
    return add_in_order(0, 1, params.partials, [&](int part) { return partial[part * all + quad]; });
  });
  __syncthreads();
  Store::template copy_rows<kReduceRowsThreads / 32>(params, job, rows, slice, threadIdx.x);
#endif
}

template <typename T, int kChannels, int kBlocks, int kSlots>
__global__ __launch_bounds__(kReduceThreads) void reduce_wgrad(const __grid_constant__ WgradParams params,
                                                               int32_t strands) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kQuads = 16 * kChannels * kBlocks;  // of a unit
  const int64_t quads = int64_t{params.jobs.divisor} * kSlots * kQuads;
  ptx::follow_previous_kernel();
  if (is_closed(params.gate)) return;
  add_partials(reinterpret_cast<const float4*>(params.partial), quads, params.partials, strands,
               [&](int64_t at, const float4& sum) {
                 const int32_t unit = static_cast<int32_t>(at / kQuads);
                 const WgradJob job(params, unit / kSlots);
                 store_quad<T, kChannels>(params, job, unit % kSlots, static_cast<int>(at % kQuads), sum);
               });
#endif
}

}  // namespace fastconv
