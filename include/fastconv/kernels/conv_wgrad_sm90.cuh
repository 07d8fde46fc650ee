// Weight gradient for sm_90a, 16-bit operands, fp32 accumulation. Both operands of the matrix product are MN-major
// views of staged pixel rows: pixels are its K dimension, so that a filter tap is a shift of the x tile by whole rows.
// Blocks of a cluster add their sums through each other's shared memory, reduce_wgrad those of several clusters; both
// in a fixed order. Geometry is run-time data; see wgrad_params.h.
#pragma once

#include "fastconv/ptx/cluster.cuh"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/mainloop_wgrad_sm90.cuh"
#include "fastconv/tile/stage_wgrad.cuh"
#include "fastconv/tile/stage_wgrad_nchw.cuh"
#include "fastconv/tile/store_wgrad.cuh"

namespace fastconv {

struct Registers {
  int producer, consumer;  // a thread
};

template <int kChannels, int kBlocks, int kUnits, int kWarpgroups, WgradStaging kStaging>
struct WgradThreads {
  static constexpr WgradConfig kConfig{kChannels, kBlocks, kUnits, kWarpgroups, kStaging};
  static constexpr bool kTransposed = is_transposed(kStaging);
  static constexpr bool kTma = kStaging == WgradStaging::kTma || kStaging == WgradStaging::kTmaPixels;
  static constexpr int kProducerWarps = kConfig.producer_warps(), kProducers = 32 * kProducerWarps;
  static constexpr int kTransposingWarps = kProducerWarps - 1;
  // Arrivals that fill a stage.
  static constexpr int kFullArrivals = kTransposed ? kTransposingWarps : kTma ? 1 : 32 * kWgradStagingWarps;
  // NOTES: setmaxnreg moves registers within the block's allotment: 168 x 384 threads or 128 x 512. More threads do not
  // pay: no wgmma may then have 96 accumulators (C7602).
  static constexpr bool kWide = kWarpgroups == 2;
  static constexpr Registers kRegisters = kTransposed && kProducerWarps == 8 ? Registers{80, 176}
                                          : kTransposed ? (kWide ? Registers{56, 224} : Registers{80, 144})
                                          : kTma        ? (kWide ? Registers{40, 232} : Registers{32, 160})
                                          : kWide       ? Registers{168, 168}
                                                        : Registers{104, 136};
};

// Tensor maps of an operand.
template <bool kTransposed>
struct WgradMapsOf {
  using Type = CUtensorMap;
};
template <>
struct WgradMapsOf<true> {
  using Type = RawMaps;
};
template <WgradStaging kStaging>
using WgradMaps = typename WgradMapsOf<is_transposed(kStaging)>::Type;

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
__global__ __launch_bounds__((WgradConfig{kChannels, kBlocks, kUnits, kWarpgroups, kStaging}.threads()),
                             1) void conv_wgrad_sm90(const __grid_constant__ WgradParams params,
                                                     const __grid_constant__ WgradMaps<kStaging> x_maps,
                                                     const __grid_constant__ WgradMaps<kStaging> y_maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Threads = WgradThreads<kChannels, kBlocks, kUnits, kWarpgroups, kStaging>;
  using Loop = WgradMainloop<T, kChannels, kBlocks, kUnits, kStaging>;
  constexpr int kSlots = kUnits * kWarpgroups, kQuads = 16 * Loop::kN;  // of four sums, of a unit

  extern __shared__ uint8_t smem_raw[];
  const uint32_t smem = (ptx::smem_address(smem_raw) + 1023) & ~1023u;  // swizzling goes by absolute address
  Ring ring;
  ring.data = smem, ring.stage_bytes = params.stage_bytes, ring.stages = params.stages;
  ring.barriers = smem + params.data_bytes;
  Ring raw;  // and what else only transposition needs
  raw.data = smem + params.stages * params.stage_bytes;
  raw.stage_bytes = params.raw.stage_bytes, raw.stages = params.raw.stages;
  raw.barriers = ring.barriers + 16 * params.stages;
  const uint32_t y_barriers = raw.barriers + 16 * params.raw.stages, waste = y_barriers + 8 * kMaxWgradStages;

  int32_t cluster, rank, partial, job_index;
  params.cluster.divmod(blockIdx.x, cluster, rank);
  params.jobs.divmod(cluster, partial, job_index);
  const int32_t split = partial * static_cast<int32_t>(params.cluster.divisor) + rank;
  const WgradJob job(params, job_index);
  const WgradTapGroup& group = params.tap_group[job.tap_group];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (warp == 0) {
    ring.init(lane, Threads::kFullArrivals, 4 * kWarpgroups);
    if constexpr (Threads::kTransposed) {
      // Warps that transpose rows have raw stages of their own, slices they share.
      raw.init(lane, 1, kStaging == WgradStaging::kDense ? Threads::kTransposingWarps : 1);
      for (int i = lane; i < params.stages; i += 32) ptx::mbarrier_init(y_barriers + 8 * i, 1);
    }
    ptx::mbarrier_init_fence();
    if constexpr (!Threads::kTransposed) {
      if (lane == 0) {
        ptx::tma_prefetch(&x_maps);
        ptx::tma_prefetch(&y_maps);
      }
    }
    ptx::allow_next_kernel();  // it waits for this one's results, but can be launched
  }
  clear_wgrad_tails(params, smem, group.part_end - group.part_begin, kStaging == WgradStaging::kDense);
  __syncthreads();

  if (warp < Threads::kProducerWarps) {
    ptx::release_registers<Threads::kRegisters.producer>();
    constexpr int kTransposingWarps = Threads::kTransposingWarps;
    if constexpr (kStaging == WgradStaging::kDense) {
      if (warp > 0) {
        transpose_wgrad_slices<kTransposingWarps>(params, job, split, raw, ring, waste, warp - 1, lane);
      } else if (lane == 0) {
        load_wgrad_slices(params, job, split, x_maps, y_maps, raw);
      }
    } else if constexpr (kStaging == WgradStaging::kTransposed) {
      if (warp > 0) {
        transpose_wgrad<kChannels, kTransposingWarps>(params, job, split, y_maps, raw, ring, y_barriers, warp - 1,
                                                      {params.raw, waste, lane});
      } else if (lane == 0) {
        load_wgrad_raw<kChannels>(params, job, split, x_maps, raw);
      }
    } else if constexpr (!Threads::kTma) {
      stage_wgrad_warps<kChannels>(params, job, split, &x_maps, &y_maps, ring, warp, lane);
    } else if (threadIdx.x == 0) {
      stage_wgrad_tma<kChannels, kStaging>(params, job, split, &x_maps, &y_maps, ring);
    }
  } else {
    ptx::acquire_registers<Threads::kRegisters.consumer>();
    const int first_slot = (warp - Threads::kProducerWarps) / 4 * kUnits;
    const int tiles = (params.tiles - split + params.splits - 1) / params.splits;
    float acc[kUnits][Loop::kAccumulators];
    Loop::run(params, job, first_slot, tiles, ring, lane == 0, acc);

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
    for (int i = rank * share + threadIdx.x - Threads::kProducers; i < (rank + 1) * share; i += kWarpgroups * 128) {
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
