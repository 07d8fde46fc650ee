// The halo-resident convolution kernel for sm_90a, fp32 accumulation: forward, and input gradient as a convolution over
// dy. T: what is multiplied, 16-bit values or float for TF32; Out: of the tensors' elements. Geometry is run-time data;
// see params.h.
#pragma once

#include "fastconv/families/halo/line_store.cuh"
#include "fastconv/families/halo/mainloop.cuh"
#include "fastconv/families/halo/mainloop_floats.cuh"
#include "fastconv/families/halo/pack_filter.cuh"
#include "fastconv/families/halo/share_sums.cuh"
#include "fastconv/families/halo/stage.cuh"
#include "fastconv/families/halo/stage_folded.cuh"
#include "fastconv/families/halo/stage_nchw.cuh"
#include "fastconv/families/halo/tile_store.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/grid_barrier.cuh"
#include "fastconv/tile/operand_scale.cuh"
#include "fastconv/tile/reorder.cuh"
#include "fastconv/tile/split.cuh"

namespace fastconv {

// Named barriers; 0 is __syncthreads. One of the first two a consumer warpgroup.
enum BlockBarrier : int {
  kEpilogueBarrier = 1,
  kTurnBarrier = 3,
  kPackBarrier = 5,
  kPackedBarrier = 6,
  kFilterBarrier = 7
};

// Warp 0 brings the filter, with those that nothing else needs; where raw input is copied for others to rearrange, warp
// 1 starts those copies, and warp 0 those of a second pipeline, once the filter is there; the next ones stage. Of kTma
// they are params.copy_warps, and the first one alone arrives when it has said what all of them bring.
template <HaloStaging kStaging, bool kLines>
struct HaloThreads {
  static constexpr int kPipelines = halo_pipelines(kLines);
  static constexpr bool kRaw = kStaging == HaloStaging::kTransposed || kStaging == HaloStaging::kShifted;
  static constexpr bool kByWarps = staged_by_warps(kStaging);
  static constexpr int kProducerWarpgroups = kByWarps ? 2 : 1;
  static constexpr int kConsumerWarpgroups = 2;
  static constexpr int kThreads = (kProducerWarpgroups + kConsumerWarpgroups) * 128;
  static_assert(kThreads == halo_threads(kStaging));
  static constexpr int kFirstStagingWarp = kRaw ? 2 : 1;
  static constexpr int kStagingWarps =  // of a pipeline
      kByWarps ? (4 * kProducerWarpgroups - kFirstStagingWarp) / kPipelines : 1;
  static constexpr int kMostFilterWarps =  // those that are left
      kByWarps || kStaging == HaloStaging::kFloats ? 1 : kProducerWarps - kStagingWarps;

  static __device__ __forceinline__ int staging_warps(const HaloParams& params) {
    return kStaging == HaloStaging::kTma ? params.copy_warps : kStagingWarps;
  }
  static __device__ __forceinline__ int filter_warps(const HaloParams& params) {
    return kMostFilterWarps == 1 ? 1 : kProducerWarps - staging_warps(params);
  }
};

// NOTES: setmaxnreg moves registers within the block's allotment: 168 x 384 threads or 128 x 512. `sums`: of a
// consumer, outside of its products.
template <HaloStaging kStaging>
constexpr int producer_registers(OperandForm operands, bool lines, int sums) {
  if (!staged_by_warps(kStaging)) {
    const bool roomy = kStaging == HaloStaging::kTma && operands != OperandForm::kHalf && !promotes(operands);
    return roomy ? 48 : 40;
  }
  if (operands == OperandForm::kHalf) {
    return kStaging == HaloStaging::kPixels || kStaging == HaloStaging::kFolded ? 72 : 80;
  }
  return sums > 64 && !lines ? 72 : 88;
}
template <HaloStaging kStaging>
constexpr int consumer_registers(int producer_registers) {
  // In eights. Of four warpgroups two are consumers, of three as well.
  return (staged_by_warps(kStaging) ? 4 * 128 - 2 * producer_registers : 3 * 168 - producer_registers) / 2 / 8 * 8;
}

struct ReorderedMaps {
  CUtensorMap in, planes, out_planes;  // planes: what in was, and out becomes, if they are reordered
};

// Tensor maps of the input, or how it is folded.
template <HaloStaging kStaging>
struct HaloMapsOf {
  using Type = CUtensorMap;
};
template <>
struct HaloMapsOf<HaloStaging::kTma> {
  using Type = ReorderedMaps;
};
template <>
struct HaloMapsOf<HaloStaging::kTransposed> {
  using Type = TensorMaps;
};
template <>
struct HaloMapsOf<HaloStaging::kShifted> {
  using Type = TensorMaps;
};
template <>
struct HaloMapsOf<HaloStaging::kFolded> {
  using Type = Fold;
};
template <HaloStaging kStaging>
using HaloMaps = typename HaloMapsOf<kStaging>::Type;

// Filter steps of the walk's tiles, in the order of use; or of all phases once, if they stay. A stage is kColumns
// steps, which follow each other. One thread.
template <int kBlockK, int kChannels, int kPixelBytes, FilterTile kFilter, int kColumns, int kParts, int kMost,
          typename Walk>
__device__ __forceinline__ void produce_filter(const HaloParams& params, Walk walk, const CUtensorMap* map, Ring& ring,
                                               FilterTurn<kMost> turn) {
  constexpr int kStepBytes = kBlockK * kPixelBytes;
  for (; walk.more(); walk.next()) {
    Tile tile(params, walk.index);
    if (params.filter_direct) {
      const int phases = params.filter_resident ? params.phase_count : 1;
      for (int i = 0; i < phases; ++i) {
        if (params.filter_resident) tile.phase = i;
        stage_filter_direct<kBlockK, kChannels, kPixelBytes, kFilter, kColumns, kParts>(params, tile, map, ring, turn);
      }
    } else {
      const OutputPhase& phase = params.phase[tile.phase];
      const int64_t filter_tile = int64_t{tile.group} * params.k_tiles.divisor + tile.k_tile;
      const int first = params.filter_resident ? 0 : phase.first_step + tile.share * phase.taps * params.c_blocks;
      const int steps = params.filter_resident ? params.steps_per_filter_tile : phase.taps * params.c_blocks;
      stage_filter<kColumns * kStepBytes>(params, (filter_tile * params.steps_per_filter_tile + first) / kColumns,
                                          steps / kColumns, ring, turn);
    }
    if (params.filter_resident) break;
  }
  // A block may have no tile that reads the last resident steps; it must not leave before they have landed.
  if (params.filter_resident) {
    for (int i = 0; i < params.b_stages; ++i) ptx::mbarrier_wait(ring.barriers + 16 * i, 0);
  }
}

// Halos of the walk's tiles. `warp` of the kWarps that stage, of kTma of params.copy_warps; -1 starts copies for them,
// or clears what they copied.
template <typename T, typename Value, int kChannels, int kParts, HaloStaging kStaging, int kWarps, bool kRuns,
          bool kPieces>
__device__ __forceinline__ void produce_halos(const HaloParams& params, TileWalk<kRuns> walk,
                                              const HaloMaps<kStaging>& maps, Ring raw, Ring halo, uint32_t waste,
                                              int warp, int lane) {
  if constexpr (kStaging == HaloStaging::kFolded) {
    stage_folded_halos<kChannels, kWarps>(params, walk, maps, halo, warp, lane);
  } else {
    for (; walk.more(); walk.next()) {
      const Tile tile(params, walk.index);
      if constexpr (kStaging == HaloStaging::kTma) {
        stage_halo_tma<kChannels, kChannels * sizeof(T), kPieces>(params, tile, &maps.in, halo, warp, lane);
      } else if constexpr (kStaging == HaloStaging::kPlanes) {
        stage_planes<kChannels>(params, tile, &maps, halo, lane);
      } else if constexpr (kStaging == HaloStaging::kShifted) {
        if (warp < 0) {
          copy_shifted<kChannels>(params, tile, maps, raw, halo, lane);
        } else {
          move_shifted<kChannels, kWarps>(params, tile, raw, halo, warp, lane);
        }
      } else if constexpr (kStaging == HaloStaging::kFloats) {
        if (warp >= 0) {
          stage_floats<kChannels>(params, tile, &maps, raw, halo, lane);
        } else {
          clear_floats<kChannels>(params, tile, raw, halo, lane);
        }
      } else if constexpr (kStaging == HaloStaging::kTransposed) {
        if (warp < 0) {
          RawLoads<Value, kChannels>(params, maps, lane).template tile<kRuns>(tile, raw);
        } else if constexpr (std::is_same_v<Value, float>) {
          const FloatTransposition<T, kChannels, kParts> turn{params, lane};
          transpose_halo<kWarps, kRuns>(params, tile, raw, halo, warp, turn);
        } else {
          transpose_halo<kWarps, kRuns>(params, tile, raw, halo, warp, Transposition<kChannels>{params, waste, lane});
        }
      } else {
        stage_halo_units<kChannels, kWarps>(params, tile, halo, warp, lane);
      }
    }
  }
}

// One consumer warpgroup, where lines are stored.
template <typename T, typename Out, int kBlockK, int kMBlocks, int kChannels, OperandForm kOperands, int kParts>
__device__ __forceinline__ void consume_runs(const HaloParams& params, TileWalk<true> walk, Ring halo,
                                             const Ring& filter, uint32_t buffer, int barrier) {
  const int thread = threadIdx.x % 128;
  for (int i = 0; i < filter.stages; ++i) ptx::mbarrier_wait(filter.barriers + 16 * i, 0);
  for (; walk.more(); walk.next()) {
    const Tile tile(params, walk.index);
    float acc[kMBlocks][kBlockK / 2];
    OneHaloMainloop<T, kBlockK, kMBlocks, kChannels, promotes(kOperands), kParts>::run(params, tile, halo, filter,
                                                                                       thread % 32 == 0, acc);
    if constexpr (is_scaled(kOperands)) unscale(acc, *params.gate.range);
    LineStore<Out, kBlockK, kMBlocks>(params, tile, thread, buffer, barrier)
        .store(acc, StreamPart(params, tile, walk, sizeof(Out)));
  }
}

// Writes anew what TMA cannot read as it is. All blocks together; the last warps pack the filter, the
// others begin with the tensor. Prepare::kFilter: nobody waits here, and those who bring the filter do so later.
template <HaloStaging kStaging, FilterTile kFilter, bool kLines, OperandForm kOperands>
__device__ __forceinline__ void prepare_operands(const HaloParams& params, const HaloMaps<kStaging>& maps,
                                                 uint32_t smem, int warp) {
  constexpr int kWarps = HaloThreads<kStaging, kLines>::kThreads / 32;
  const int lane = ptx::lane();  // NOTES: with what follows from it, it would stay in registers that producers lack
  const int packers = params.prepare_warps, packer = warp - (kWarps - packers);
  const uint32_t buffer = smem + params.prepare_buffer;
  if (packer >= 0) {
    if constexpr (kStaging == HaloStaging::kFolded) {
      pack_folded_filter(params, maps, (static_cast<int>(blockIdx.x) * packers + packer) * 32 + lane,
                         static_cast<int>(gridDim.x) * packers * 32);
    } else if constexpr (kOperands != OperandForm::kHalf) {
      split_to_rows<operand_of(kOperands)>(params.filter_split, buffer + packer * kReorderBytes, packer, packers, lane);
    } else if (params.pack.pieces > 0) {
      FilterPacker<columns_at_once(kFilter)>(params, buffer, packer * 32 + lane, 32 * packers, kPackBarrier).run();
    }
  }
  if (params.prepare == Prepare::kFilter) {
    if (packer < 0) return;
    ptx::async_proxy_fence_all();
    ptx::barrier_arrive(kPackedBarrier, 32 * (packers + HaloThreads<kStaging, kLines>::filter_warps(params)));
    return;
  }
  if constexpr (kOperands != OperandForm::kHalf) {
    split_to_rows<operand_of(kOperands)>(params.in_split, smem + warp * kReorderBytes, warp, kWarps, lane);
  } else if constexpr (reorders(kStaging)) {
    reorder_to_rows(params.in_order, maps.planes, smem + warp * kReorderBytes, warp, kWarps, lane);
  }
  sync_grid();
}

// Until all blocks have packed the filter. Those who bring it, all of a warp.
__device__ __forceinline__ void wait_for_filter(const HaloParams& params, int filter_warps) {
  ptx::barrier_sync(kPackedBarrier, 32 * (params.prepare_warps + filter_warps));
  if (threadIdx.x == 0) {
    const GridBarrier barrier;
    barrier.wait(barrier.arrive());
  }
  ptx::barrier_sync(kFilterBarrier, 32 * filter_warps);
  ptx::async_proxy_fence_all();
}

template <typename T, typename Out, int kBlockK, int kMBlocks, int kChannels, HaloStaging kStaging, FilterTile kFilter,
          int kColumns, bool kLines, OperandForm kOperands>
__global__ __launch_bounds__(HaloThreads<kStaging, kLines>::kThreads,
                             1) void halo_sm90(const __grid_constant__ HaloParams params,
                                               const __grid_constant__ HaloMaps<kStaging> in_maps,
                                               const __grid_constant__ CUtensorMap filter_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Threads = HaloThreads<kStaging, kLines>;
  constexpr int kSums = kMBlocks * kBlockK * kColumns / 2;
  constexpr int kProducerRegisters = producer_registers<kStaging>(kOperands, kLines, kSums);
  constexpr int kParts = parts_a_stage(kStaging, kOperands);
  constexpr int kPixelBytes = kChannels * sizeof(T), kFilterBytes = kParts * kColumns * kBlockK * kPixelBytes;
  constexpr int kPipelines = Threads::kPipelines, kEpilogue = epilogue_bytes(kLines, kBlockK, kMBlocks, sizeof(Out));
  constexpr bool kMMajor = staged_as_planes(kStaging), kNMajor = kFilter == FilterTile::kNMajor;
  using Loop =
      std::conditional_t<kStaging == HaloStaging::kFloats,
                         FloatsMainloop<T, kBlockK, kMBlocks, kChannels, kColumns, kOperands>,
                         Mainloop<T, kBlockK, kMBlocks, kChannels, kMMajor, kNMajor, kColumns, kOperands, kParts>>;

  // Parts side by side would add large products to sums of small ones, and truncate all of their bits.
  static_assert(kParts == 1 || kLines || kStaging == HaloStaging::kFloats || !promotes(kOperands));

  constexpr bool kShares = shares_tiles(kStaging, kMBlocks, kColumns, kLines);

  auto walk_of = [&](int pipeline) {
    return TileWalk<kLines>(params, blockIdx.x * kPipelines + pipeline, gridDim.x * kPipelines);
  };

  extern __shared__ uint8_t smem_raw[];
  const uint32_t smem = (ptx::smem_address(smem_raw) + kHaloAlignment - 1) &
                        ~(kHaloAlignment - 1u);  // swizzling goes by absolute address
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  constexpr bool kReordersOut = kOperands == OperandForm::kHalf && reorders(kStaging) && kFilter != FilterTile::kPairs;
  Ring halo, filter, raw;
  halo.data = smem, halo.stage_bytes = params.a_stage_bytes, halo.stages = params.a_stages;
  filter.data = halo.data + params.a_stages * params.a_stage_bytes;
  filter.stage_bytes = kFilterBytes, filter.stages = params.b_stages;
  raw.data = filter.data + params.b_stages * kFilterBytes;
  raw.stage_bytes = params.raw.stage_bytes, raw.stages = params.raw.stages;
  const uint32_t epilogue = raw.data + raw.stages * raw.stage_bytes;
  halo.barriers = smem + params.data_bytes;
  filter.barriers = halo.barriers + 16 * params.a_stages;
  raw.barriers = filter.barriers + 16 * params.b_stages;
  const uint32_t waste = raw.barriers + 16 * params.raw.stages;
  constexpr int kWarps = Threads::kThreads / 32;
  const int consumer_warps = 4 * params.warpgroups_per_tile;
  // Of shifted planes a part is copied as it lies.
  halo.init(warp, kWarps, lane, Threads::kStagingWarps + (kStaging == HaloStaging::kShifted), consumer_warps);
  filter.init(warp, kWarps, lane, 1, consumer_warps);
  raw.init(warp, kWarps, lane, 1, params.raw.shared ? Threads::kStagingWarps : 1);
  ptx::mbarrier_init_fence();
  if (threadIdx.x == 0) {
    if constexpr (kStaging == HaloStaging::kTma) ptx::tma_prefetch(&in_maps.in);
    if constexpr (kStaging == HaloStaging::kPlanes || kStaging == HaloStaging::kFloats) ptx::tma_prefetch(&in_maps);
    if (params.filter_direct) ptx::tma_prefetch(&filter_map);
  }
  __syncthreads();
  ptx::follow_previous_kernel();
  if constexpr (kOperands != OperandForm::kHalf) {
    if (is_closed(params.gate)) return;
  }
  if (params.prepare != Prepare::kNothing)
    prepare_operands<kStaging, kFilter, kLines, kOperands>(params, in_maps, smem, warp);

  if (warp < 4 * Threads::kProducerWarpgroups) {
    ptx::release_registers<kProducerRegisters>();
    constexpr int kStagers = Threads::kStagingWarps;
    auto produce = [&](int pipeline, int staging_warp) {
      produce_halos<T, Out, kChannels, kParts, kStaging, kStagers, kLines, is_large_tile(kMBlocks, kBlockK)>(
          params, walk_of(pipeline), in_maps, raw.part(pipeline, kPipelines), halo.part(pipeline, kPipelines), waste,
          staging_warp, lane);
    };
    const int stagers_end = Threads::kFirstStagingWarp + kPipelines * Threads::staging_warps(params);
    if (warp > 0 && warp < stagers_end) {
      const int place = warp - Threads::kFirstStagingWarp, pipeline = kLines && place >= kStagers;
      produce(pipeline, place - pipeline * kStagers);
    } else if (kStaging == HaloStaging::kFloats && warp > 0) {
      if (warp == stagers_end) produce(0, -1);
    } else {
      const int filter_warps = Threads::filter_warps(params);
      if (params.prepare == Prepare::kFilter) wait_for_filter(params, filter_warps);
      if (lane == 0 && (warp == 0 || Threads::kMostFilterWarps > 1)) {
        const FilterTurn<Threads::kMostFilterWarps> turn{filter_warps, warp == 0 ? 0 : warp - stagers_end + 1};
        produce_filter<kBlockK, kChannels, kPixelBytes, kFilter, kColumns, kParts>(params, walk_of(0), &filter_map,
                                                                                   filter, turn);
      }
      if constexpr (kLines && Threads::kRaw) produce(1, -1);
    }
    if constexpr (kShares) {
      __syncwarp();
      if (params.shares.divisor > 1) ptx::cluster_sync();  // with add_shares()
    }
  } else {
    ptx::acquire_registers<consumer_registers<kStaging>(kProducerRegisters)>();
    const int warpgroup = warp / 4 - Threads::kProducerWarpgroups;
    const int barrier = kEpilogueBarrier + warpgroup;
    const uint32_t buffer = epilogue + warpgroup * kEpilogue;
    if constexpr (kLines) {
      consume_runs<T, Out, kBlockK, kMBlocks, kChannels, kOperands, kParts>(
          params, walk_of(warpgroup), halo.part(warpgroup, 2), filter, buffer, barrier);
      return;
    }
    // NOTES: a warpgroup that takes turns skips the other's stages, and a barrier's parity tells only two rounds apart;
    // so it waits for its turn, which begins when the other has waited for all stages of its tile.
    const bool turns = params.warpgroups_per_tile == 1;
    const int my_turn = kTurnBarrier + warpgroup, next_turn = kTurnBarrier + 1 - warpgroup;
    if (turns && warpgroup == 1) ptx::barrier_arrive<256>(next_turn);
    const int first_block = turns ? 0 : warpgroup * kMBlocks;
    constexpr bool kRoomy = kOperands == OperandForm::kHalf && !is_large_tile(kMBlocks, kBlockK);  // others spill
    bool others_turn = turns && warpgroup == 1;
    for (auto walk = walk_of(0); walk.more(); walk.next(), others_turn = turns && !others_turn) {
      const PhaseTile of_phase(params, walk.index);
      const OutputPhase& phase = params.phase[of_phase.phase];
      if (others_turn) {
        halo.skip((phase.group_end - phase.group_begin) * params.c_blocks, params.a_rounds);
        if (!params.filter_resident) filter.skip(phase.taps / kColumns * params.c_blocks, params.b_rounds);
        continue;
      }
      const Tile tile(params, of_phase);
      if (params.filter_resident) filter.index = phase.first_step / kColumns, filter.parity = 0;
      float acc[kMBlocks][kColumns * kBlockK / 2];
      if (turns) ptx::barrier_sync<256>(my_turn);
      Loop::run(params, tile, first_block, halo, filter, !params.filter_resident, lane == 0, acc, [&] {
        if (turns) ptx::barrier_arrive<256>(next_turn);
      });
      if constexpr (kRoomy) filter.settled = params.filter_resident && params.phase_count == 1;
      if (phase.taps == 0) {
        if constexpr (kRoomy) asm volatile("");  // NOTES: a branch, not as many selections
        clear(acc);
      }
      if constexpr (is_scaled(kOperands)) unscale(acc, *params.gate.range);
      // NOTES: where a thread's pixels lie in a tile does not change, but to keep it would spill.
      int thread = threadIdx.x % 128;
      if constexpr (kColumns > 1 || is_large_tile(kMBlocks, kBlockK)) asm volatile("" : "+r"(thread));
      TileStore<Out, kBlockK, kMBlocks> store(params, tile, thread, buffer, barrier);
      if constexpr (kShares) {
        if (params.shares.divisor > 1) {
          add_shares(params, warpgroup, acc);
          const int filters = kBlockK / static_cast<int>(params.shares.divisor);
          store.take(static_cast<int>(ptx::cluster_rank()) * filters, filters);
        }
      }
      if constexpr (kFilter == FilterTile::kPairs) {
        store.store_pairs(acc, first_block);
      } else if constexpr (kColumns == 1) {
        store(acc, first_block);
      } else {
        float sum[kMBlocks][kBlockK / 2];
        add_columns<kBlockK, kColumns>(acc, params.column_step, lane, sum);
        store(sum, first_block);
      }
    }
    if constexpr (kReordersOut) {
      if (params.out_order.units == 0) return;
      // Steps of a resident filter that no tile of this block has read may be on their way to what is written here.
      for (int i = 0; params.filter_resident && i < filter.stages; ++i) {
        ptx::mbarrier_wait(filter.barriers + 16 * i, 0);
      }
      constexpr int kConsumerWarps = 4 * Threads::kConsumerWarpgroups;  // producers have too few registers
      const int mine = warp - 4 * Threads::kProducerWarpgroups;
      sync_grid(kPackBarrier, 32 * mine + lane, 32 * kConsumerWarps);
      reorder_to_planes(params.out_order, in_maps.out_planes, smem + mine * kReorderBytes, mine, kConsumerWarps, lane);
    }
  }
#endif
}

}  // namespace fastconv
