// Weight gradient for sm_90a, 16-bit operands, fp32 accumulation. Both operands of the matrix product are MN-major
// views of staged pixel rows: pixels are its K dimension, so that a filter tap is a shift of the x tile by whole rows.
// Blocks of a cluster add their sums through each other's shared memory, reduce_wgrad those of several clusters; both
// in a fixed order. Geometry is run-time data; see wgrad_params.h.
#pragma once

#include "fastconv/ptx/cluster.cuh"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/mainloop_wgrad_sm90.cuh"
#include "fastconv/tile/store_wgrad.cuh"

namespace fastconv {

template <int kWarpgroups, WgradStaging kStaging>
struct WgradThreads {
  static constexpr int kThreads = (kWarpgroups + 1) * 128;
  // NOTES: setmaxnreg moves registers within the block's allotment: 168 x 384 threads or 128 x 512.
  static constexpr bool kTma = !has_staging_warps(kStaging);
  static constexpr int kProducerRegisters = kTma ? (kWarpgroups == 2 ? 40 : 32) : kWarpgroups == 2 ? 168 : 104;
  static constexpr int kConsumerRegisters = kTma ? (kWarpgroups == 2 ? 232 : 160) : kWarpgroups == 2 ? 168 : 136;
};

// The sum, in the order of their ranks, of what the cluster's blocks hold at this address.
__device__ __forceinline__ float4 add_cluster(uint32_t smem, int blocks) {
  float4 v[kMaxWgradCluster];
#pragma unroll
  for (int b = 0; b < kMaxWgradCluster; ++b) {
    if (b < blocks) v[b] = ptx::cluster_load(smem, b);
  }
  float4 sum = v[0];
#pragma unroll
  for (int b = 1; b < kMaxWgradCluster; ++b) {
    if (b < blocks) sum.x += v[b].x, sum.y += v[b].y, sum.z += v[b].z, sum.w += v[b].w;
  }
  return sum;
}

template <typename T, int kChannels, int kBlocks, int kUnits, int kWarpgroups, WgradStaging kStaging>
__global__ __launch_bounds__(WgradThreads<kWarpgroups, kStaging>::kThreads,
                             1) void conv_wgrad_sm90(const __grid_constant__ WgradParams params,
                                                     const __grid_constant__ CUtensorMap x_map,
                                                     const __grid_constant__ CUtensorMap y_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Threads = WgradThreads<kWarpgroups, kStaging>;
  using Loop = WgradMainloop<T, kChannels, kBlocks, kUnits, kStaging>;
  constexpr int kSlots = kUnits * kWarpgroups, kQuads = 16 * Loop::kN;  // of four sums, of a unit

  extern __shared__ uint8_t smem_raw[];
  const uint32_t smem = (ptx::smem_address(smem_raw) + 1023) & ~1023u;  // swizzling goes by absolute address
  Ring ring;
  ring.data = smem, ring.stage_bytes = params.stage_bytes, ring.stages = params.stages;
  ring.barriers = smem + params.data_bytes;

  int32_t cluster, rank, partial, job_index;
  params.cluster.divmod(blockIdx.x, cluster, rank);
  params.jobs.divmod(cluster, partial, job_index);
  const int32_t split = partial * static_cast<int32_t>(params.cluster.divisor) + rank;
  const WgradJob job(params, job_index);
  const WgradTapGroup& group = params.tap_group[job.tap_group];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (warp == 0) {
    ring.init(lane, Threads::kTma ? 1 : 32 * kWgradStagingWarps, 4 * kWarpgroups);
    ptx::mbarrier_init_fence();
    if (lane == 0) {
      ptx::tma_prefetch(&x_map);
      ptx::tma_prefetch(&y_map);
    }
    ptx::allow_next_kernel();  // it waits for this one's results, but can be launched
  }
  clear_wgrad_tails(params, smem, group.part_end - group.part_begin);
  __syncthreads();

  if (warp < kWgradStagingWarps) {
    ptx::release_registers<Threads::kProducerRegisters>();
    if constexpr (!Threads::kTma) {
      stage_wgrad_warps<kChannels, kStaging>(params, job, split, &x_map, &y_map, ring, warp, lane);
    } else if (threadIdx.x == 0) {
      stage_wgrad_tma<kChannels, kStaging>(params, job, split, &x_map, &y_map, ring);
    }
  } else {
    ptx::acquire_registers<Threads::kConsumerRegisters>();
    const int first_slot = (warp / 4 - 1) * kUnits;
    const int tiles = (params.tiles - split + params.splits - 1) / params.splits;
    float acc[kUnits][Loop::kAccumulators];
    Loop::run(params, group, first_slot, tiles, ring, lane == 0, acc);

    // In register order: 16 bytes a thread, no bank conflicts. store_quad knows what they are.
    ptx::barrier_sync(1, kWarpgroups * 128);  // all stages have been read
    uint32_t to = smem + (first_slot * kQuads + threadIdx.x % 128) * 16;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < Loop::kAccumulators / 4; ++i, to += 128 * 16) {
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(acc[u][4 * i]), "f"(acc[u][4 * i + 1]),
                     "f"(acc[u][4 * i + 2]), "f"(acc[u][4 * i + 3])
                     : "memory");
      }
    }

    // NOTES: the barrier waits for threads that have not exited; the producers are done. All this stays in the
    // consumers' branch because code after it must do with the producers' registers.
    ptx::cluster_sync();
    const int blocks = static_cast<int>(params.cluster.divisor), share = kSlots * kQuads / blocks;
    auto* out = reinterpret_cast<float4*>(params.partial) +
                (int64_t{partial} * params.jobs.divisor + job_index) * (kSlots * kQuads);
    for (int i = rank * share + threadIdx.x - 128; i < (rank + 1) * share; i += kWarpgroups * 128) {
      const float4 sum = add_cluster(smem + i * 16, blocks);
      if (params.partials > 1) {
        out[i] = sum;
      } else {
        store_quad<T, kChannels>(params, job, i / kQuads, i % kQuads, sum);
      }
    }
    ptx::cluster_sync();  // nobody leaves while others read its shared memory
  }
#endif
}

}  // namespace fastconv
