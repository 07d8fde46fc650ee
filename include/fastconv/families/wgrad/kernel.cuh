// Weight gradient for sm_90a of 16-bit tensors, or of float32 as parts of 16 bits (split.h); fp32 accumulation. Both
// operands of the matrix product are MN-major views of staged pixel rows: pixels are its K dimension, so that a filter
// tap is a shift of the x tile by whole rows. Blocks of a cluster add their sums through each other's shared memory,
// reduce_wgrad those of several clusters; both in a fixed order. Geometry is run-time data; see params.h.
#pragma once

#include "fastconv/families/wgrad/mainloop.cuh"
#include "fastconv/families/wgrad/mainloop_floats.cuh"
#include "fastconv/families/wgrad/stage.cuh"
#include "fastconv/families/wgrad/store.cuh"
#include "fastconv/ptx/cluster.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/fold.cuh"
#include "fastconv/tile/grid_barrier.cuh"
#include "fastconv/tile/operand_scale.cuh"
#include "fastconv/tile/reorder.cuh"
#include "fastconv/tile/split.cuh"

namespace fastconv {

struct Registers {
  int producer, consumer;  // a thread
};

template <int kWarpgroups, WgradStaging kStaging>
struct WgradThreads {
  static constexpr int kProducers = kWgradProducers, kConsumers = 128 * kWarpgroups,
                       kWarps = (kProducers + kConsumers) / 32;
  static constexpr bool kTma = kStaging != WgradStaging::kWarps;
  static constexpr int kFullArrivals = kTma ? 1 : kProducers;  // that fill a stage
  // NOTES: setmaxnreg moves registers within the block's allotment: 168 x 384 threads or 128 x 512. More threads do not
  // pay: no wgmma may then have 96 accumulators (C7602).
  static constexpr bool kWide = kWarpgroups == 2;
  static constexpr Registers kRegisters =
      kStaging == WgradStaging::kTmaRows  ? (kWide ? Registers{56, 224} : Registers{56, 152})
      : kStaging == WgradStaging::kFloats ? (kWide ? Registers{24, 240} : Registers{32, 160})
      : kTma                              ? (kWide ? Registers{40, 232} : Registers{32, 160})
      : kWide                             ? Registers{168, 168}
                                          : Registers{104, 136};
};

struct WgradInMaps {
  CUtensorMap x, x_planes, y_planes;  // planes: what operands were before, if they are reordered
};

// Tensor maps of dy.
template <WgradStaging kStaging>
struct WgradMapsOf {
  using Type = CUtensorMap;
};
template <>
struct WgradMapsOf<WgradStaging::kTmaRows> {
  using Type = TensorMaps;
};
template <WgradStaging kStaging>
using WgradMaps = typename WgradMapsOf<kStaging>::Type;

// T: what is multiplied; Out: of the tensors' elements.
template <typename T, typename Out, int kChannels, int kBlocks, int kUnits, int kWarpgroups, WgradStaging kStaging,
          OperandForm kOperands>
__global__ __launch_bounds__((WgradConfig{kChannels, kBlocks, kUnits, kWarpgroups, kStaging, kOperands}.threads()),
                             1) void wgrad_sm90(const __grid_constant__ WgradParams params,
                                                const __grid_constant__ WgradInMaps in_maps,
                                                const __grid_constant__ WgradMaps<kStaging> y_maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Threads = WgradThreads<kWarpgroups, kStaging>;
  using Loop = std::conditional_t<kStaging == WgradStaging::kFloats,
                                  WgradFloatsMainloop<T, kChannels, kBlocks, kUnits, kWarpgroups>,
                                  WgradMainloop<T, kChannels, kBlocks, kUnits, kStaging, kOperands>>;
  using Store = WgradJobStore<Out, kChannels, kBlocks, kUnits * kWarpgroups>;
  constexpr bool kFloats = kOperands != OperandForm::kHalf;
  if constexpr (kFloats) {
    if (params.gate.range != nullptr) ptx::follow_previous_kernel();
    if (is_closed(params.gate)) return;
  }

  extern __shared__ uint8_t smem_raw[];
  const uint32_t smem = (ptx::smem_address(smem_raw) + 1023) & ~1023u;  // swizzling goes by absolute address
  Ring ring;
  ring.data = smem, ring.stage_bytes = params.stage_bytes, ring.stages = params.stages;
  ring.barriers = smem + params.data_bytes;
  const uint32_t y_barriers = ring.barriers + 16 * params.stages;

  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const bool margins = kStaging == WgradStaging::kTmaRows && params.rows.shifted;
  ring.init(warp, Threads::kWarps, lane, Threads::kFullArrivals + margins, 4 * kWarpgroups);
  for (int i = warp; margins && lane == 0 && i < params.stages; i += Threads::kWarps) {
    ptx::mbarrier_init(y_barriers + 8 * i, 1);
  }
  ptx::mbarrier_init_fence();
  if (warp == 0) {
    if (lane == 0 && params.x_copied) ptx::tma_prefetch(&in_maps.x);
    if constexpr (kStaging == WgradStaging::kTmaRows) {
      if (lane < 1 << (params.rows.row_log2 + params.rows.filter_log2)) ptx::tma_prefetch(&y_maps.map[lane]);
    } else {
      if (lane == 0 && params.y_copied) ptx::tma_prefetch(&y_maps);
    }
  }
  const uint32_t buffer = smem + warp * kReorderBytes;
  // Warps that x leaves idle begin with y.
  auto y_turn = [&](int x_units) {
    const int x_turns = (x_units + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
    return (warp + Threads::kWarps - x_turns % Threads::kWarps) % Threads::kWarps;
  };
  if constexpr (kFloats) {
    if (params.x_split.parts > 0) {
      ptx::follow_previous_kernel();
      constexpr Operand kOperand = operand_of(kOperands);
      split_to_rows<kOperand>(params.x_split, buffer, warp, Threads::kWarps, lane);
      split_to_rows<kOperand>(params.y_split, buffer, y_turn(params.x_split.units), Threads::kWarps, lane);
      sync_grid();
    }
  } else if constexpr (kStaging == WgradStaging::kTma || kStaging == WgradStaging::kTmaRows) {
    const bool reorder_x = params.x_order.units > 0, reorder_y = params.y_order.units > 0;
    const bool fold_x = params.x_fold.pixels > 0;
    if (reorder_x || reorder_y || fold_x) {  // NOTES: one branch past all of this, for the sake of fetching code
      ptx::follow_previous_kernel();
      if (reorder_x) reorder_to_rows(params.x_order, in_maps.x_planes, buffer, warp, Threads::kWarps, lane);
      if (reorder_y) {
        const int turn = y_turn(params.x_order.early);
        reorder_to_rows(params.y_order, in_maps.y_planes, buffer, turn, Threads::kWarps, lane);
      }
      if (fold_x) {
        write_folded_rows(params.x_fold, static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x),
                          static_cast<int>(gridDim.x * blockDim.x));
      }
      sync_grid();
    }
  }
  const WgradShare share(params, params.first_block + static_cast<int32_t>(blockIdx.x));
  clear_wgrad_tails(params, ring, warp, Threads::kWarps, lane);
  __syncthreads();
  ptx::follow_previous_kernel();

  if (warp < Threads::kProducers / 32) {
    ptx::release_registers<Threads::kRegisters.producer>();
    if constexpr (!Threads::kTma) {
      stage_wgrad_warps<kChannels>(params, share, &in_maps.x, &y_maps, ring, warp, lane);
    } else if (warp == 0) {
      stage_wgrad_tma<kChannels, kStaging>(params, share, &in_maps.x, y_maps, ring, y_barriers, lane);
    } else if (warp == 1) {
      if (margins) clear_wgrad_margins(params, share, ring, y_barriers, lane);
    } else if constexpr (streams_x(kStaging)) {
      const uint32_t buffers = smem + params.stream_offset + (warp - 2) * 2 * kReorderBytes;
      ReorderStream{params.x_order, in_maps.x_planes, buffers, warp - 2, lane}.run();
    }
  } else {
    ptx::acquire_registers<Threads::kRegisters.consumer>();
    const int first_slot = (warp - Threads::kProducers / 32) / 4 * kUnits;
    float acc[kUnits][Loop::kAccumulators];
    Loop::run(params, share, first_slot, ring, lane == 0, acc);
    if constexpr (is_scaled(kOperands)) unscale(acc, *params.gate.range);
    if (leaves_sums_alone(kStaging, params.cluster.divisor, params.partials)) {
      return Store::put_partial(params, share, first_slot, threadIdx.x % 128, acc);
    }
    auto sync = [] { ptx::barrier_sync<Threads::kConsumers>(1); };
    sync();  // all stages have been read
    Store::put_sums(smem, first_slot, threadIdx.x % 128, acc);
    // NOTES: the barrier waits for threads that have not exited; the producers are done, or go on streaming till they
    // are. All this stays in the consumers' branch because code after it must do with the producers' registers.
    ptx::cluster_sync();
    Store::template run<Threads::kConsumers>(params, share, smem, threadIdx.x - Threads::kProducers, sync);
    ptx::cluster_sync();  // nobody leaves while others read its shared memory
  }
#endif
}

}  // namespace fastconv
