// Host side of the sm_90a weight gradient: partial sums, then their reduction.
#pragma once

#include "fastconv/families/wgrad/kernel.cuh"
#include "fastconv/families/wgrad/launchers.h"
#include "fastconv/families/wgrad/plan.h"
#include "fastconv/families/wgrad/reduce.cuh"
#include "fastconv/launch/dtype_of.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/tensor_map.h"

namespace fastconv {

template <typename T, typename Out, int kChannels, int kBlocks, int kUnits, int kWarpgroups, WgradStaging kStaging,
          OperandForm kOperands>
void launch_wgrad(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  WgradLaunch wgrad = wgrad_launch(plan, problem);
  WgradParams& params = wgrad.params;
  params.x.data = buffers.x, params.y.data = buffers.y, params.w = buffers.w;
  auto* workspace = static_cast<uint8_t*>(buffers.workspace);
  params.partial = reinterpret_cast<float*>(workspace + wgrad.partial_offset);
  if (params.x_order.units > 0) {
    params.x_order.planes = const_cast<void*>(buffers.x);
    params.x.data = params.x_order.rows = workspace;
  }
  if (params.x_fold.pixels > 0) {
    params.x_fold.in = buffers.x;
    params.x.data = params.x_fold.rows = workspace;
  }
  if (params.y_order.units > 0) {
    params.y_order.planes = const_cast<void*>(buffers.y);
    params.y.data = params.y_order.rows = workspace + wgrad.y_offset;
  }
  if (params.x_split.parts > 0) {
    params.x_split.values = buffers.x;
    params.x.data = params.x_split.rows = workspace;
  }
  if (params.y_split.parts > 0) {
    params.y_split.values = buffers.y;
    params.y.data = params.y_split.rows = workspace + wgrad.y_offset;
  }
  params.x_order.done = reinterpret_cast<uint32_t*>(workspace + wgrad.done_offset);
  params.gate = buffers.gate;
  if constexpr (is_scaled(kOperands)) {
    params.x_split.scale = &buffers.gate.range->scale[0], params.y_split.scale = &buffers.gate.range->scale[1];
  }
  constexpr DType operand = kDTypeOf<T>;
  WgradInMaps in_maps{};
  if (params.x_copied) in_maps.x = encode_tensor_map(wgrad.x_map, operand, params.x.data);
  if (wgrad.x_planes.size[0] > 0) {
    in_maps.x_planes = encode_tensor_map(wgrad.x_planes, operand, params.x_order.planes);
  }
  if (wgrad.y_planes.size[0] > 0) {
    in_maps.y_planes = encode_tensor_map(wgrad.y_planes, operand, params.y_order.planes);
  }
  TensorMaps y_maps{};
  const DType y_operand = kStaging == WgradStaging::kFloats ? problem.dtype : operand;
  for (int i = 0; i < wgrad.y_maps; ++i) y_maps.map[i] = encode_tensor_map(wgrad.y_map[i], y_operand, params.y.data);

  LaunchShape shape{plan.grid, plan.block_threads, plan.smem_bytes};
  shape.cluster = params.cluster.divisor;
  auto start = [&] {
    const auto kernel = wgrad_sm90<T, Out, kChannels, kBlocks, kUnits, kWarpgroups, kStaging, kOperands>;
    if constexpr (kStaging == WgradStaging::kTmaRows) {
      launch(plan.kernel->name, kernel, shape, stream, params, in_maps, y_maps);
    } else {
      launch(plan.kernel->name, kernel, shape, stream, params, in_maps, y_maps.map[0]);
    }
  };
  if (plan.first_grid > 0) {
    shape.cooperative = true, shape.grid = plan.first_grid;
    start();
    // The rest find their operands in the workspace.
    params.x_order.units = params.x_order.rounds = params.y_order.units = params.x_fold.pixels = 0;
    params.x_split.parts = 0;
    params.first_block = static_cast<int32_t>(plan.first_grid);
    shape.cooperative = false, shape.grid = plan.grid - plan.first_grid;
  }
  if (shape.grid > 0) start();
  if (params.partials == 1) return;

  constexpr int kSlots = kUnits * kWarpgroups;
  if (params.store != WgradStore::kQuads) {
    LaunchShape reduce{int64_t{params.jobs.divisor} * 4 * params.m_blocks, kReduceRowsThreads,
                       kWgradStoreRows * params.store_pitch};
    return launch(plan.kernel->name, reduce_wgrad_rows<Out, kChannels, kBlocks, kSlots>, reduce, stream, params);
  }
  const int64_t quads = int64_t{params.jobs.divisor} * kSlots * 16 * kChannels * kBlocks;
  const int strands = reduce_strands(params.partials);
  LaunchShape reduce{reduce_blocks(quads, strands), kReduceThreads};
  launch(plan.kernel->name, reduce_wgrad<Out, kChannels, kBlocks, kSlots>, reduce, stream, params, strands);
}

template <WgradStaging kStaging, OperandForm kOperands, typename T, int kChannels, int kBlocks, int kUnits,
          int kWarpgroups, WgradStaging kLineStaging, OperandForm kLineOperands>
constexpr Launcher wgrad_launcher_of() {
  if constexpr (kLineStaging == kStaging && kLineOperands == kOperands) {
    return launch_wgrad<OperandOf<T, kOperands>, T, kChannels, kBlocks, kUnits, kWarpgroups, kStaging, kOperands>;
  }
  return nullptr;
}

template <WgradStaging kStaging, OperandForm kOperands, typename T>
Launcher wgrad_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define WGRAD_KERNEL(name, channels, blocks, units, warpgroups, staging, operands, dtypes)              \
  wgrad_launcher_of<kStaging, kOperands, T, channels, blocks, units, warpgroups, WgradStaging::staging, \
                    OperandForm::operands>(),
#include "fastconv/families/wgrad/kernels.def"
#undef WGRAD_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
