// Host side of the halo engine: from a plan to a launch.
#pragma once

#include "fastconv/families/halo/kernel.cuh"
#include "fastconv/families/halo/launchers.h"
#include "fastconv/families/halo/plan.h"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/tensor_map.h"

namespace fastconv {

template <typename T, typename Out, int kBlockK, int kMBlocks, int kChannels, HaloStaging kStaging, FilterTile kFilter,
          int kColumns, bool kLines, OperandForm kOperands>
void launch_halo(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  if (plan.grid == 0) return;
  const bool dgrad = problem.pass == Pass::kDgrad;
  HaloLaunch halo = halo_launch(plan, problem);
  HaloParams& params = halo.params;
  params.in = dgrad ? buffers.y : buffers.x;
  params.out = dgrad ? buffers.x : buffers.y;
  params.epilogue = epilogue_params(problem, buffers);
  params.packed_filter = buffers.workspace;
  params.gate = buffers.gate;
  if constexpr (is_scaled(kOperands)) {
    params.in_split.scale = &buffers.gate.range->scale[0], params.filter_split.scale = &buffers.gate.range->scale[1];
  }
  const void* filter = buffers.w;
  auto* workspace = static_cast<uint8_t*>(buffers.workspace);
  if (params.in_split.parts > 0) {
    params.in_split.values = params.in;
    params.in = params.in_split.rows = workspace + halo.in_offset;
  }
  if (params.filter_split.parts > 0) {
    params.filter_split.values = filter;
    filter = params.filter_split.rows = workspace;
  }
  if (plan.tiling.as<HaloTiling>().reorder_in) {
    params.in_order.planes = const_cast<void*>(params.in);
    params.in = params.in_order.rows = workspace + halo.in_offset;
  }
  if (plan.tiling.as<HaloTiling>().reorder_out) {
    params.out_order.planes = params.out;
    params.out = params.out_order.rows = workspace + halo.out_offset;
  }

  TensorMaps in_maps{};
  CUtensorMap filter_map{};
  for (int i = 0; i < halo.in_maps; ++i) {
    in_maps.map[i] = encode_tensor_map(halo.in_map[i], halo.in_values, params.in);
  }
  if (params.filter_direct) {
    filter_map = encode_tensor_map(halo.filter_map, halo.operand, filter);
  } else {
    params.pack.filter = filter;
  }
  params.share_sums = reinterpret_cast<float*>(workspace + halo.sums_offset);
  LaunchShape shape{plan.grid, HaloThreads<kStaging, kLines>::kThreads, plan.smem_bytes};
  shape.cluster = params.shares.divisor;
  shape.cooperative = params.prepare != Prepare::kNothing || plan.tiling.as<HaloTiling>().reorder_out;
  const auto kernel = halo_sm90<T, Out, kBlockK, kMBlocks, kChannels, kStaging, kFilter, kColumns, kLines, kOperands>;
  if constexpr (kStaging == HaloStaging::kTransposed || kStaging == HaloStaging::kShifted) {
    launch(plan.kernel->name, kernel, shape, stream, params, in_maps, filter_map);
  } else if constexpr (kStaging == HaloStaging::kTma) {
    ReorderedMaps maps{in_maps.map[0], {}, {}};
    if (halo.planes.size[0] > 0) maps.planes = encode_tensor_map(halo.planes, problem.dtype, params.in_order.planes);
    if (halo.out_planes.size[0] > 0) {
      maps.out_planes = encode_tensor_map(halo.out_planes, problem.dtype, params.out_order.planes);
    }
    launch(plan.kernel->name, kernel, shape, stream, params, maps, filter_map);
  } else if constexpr (kStaging == HaloStaging::kFolded) {
    launch(plan.kernel->name, kernel, shape, stream, params, halo.fold, filter_map);
  } else {
    launch(plan.kernel->name, kernel, shape, stream, params, in_maps.map[0], filter_map);
  }
}

// One line of the .def, compiled where staging, filter tile and operands are those of the file.
template <HaloStaging kStaging, FilterTile kFilter, OperandForm kOperands, typename T, int kBlockK, int kMBlocks,
          int kChannels, HaloStaging kLineStaging, FilterTile kLineFilter, int kColumns, bool kLines,
          OperandForm kLineOperands>
constexpr Launcher halo_launcher_of() {
  if constexpr (kLineStaging == kStaging && kLineFilter == kFilter && kLineOperands == kOperands) {
    return launch_halo<OperandOf<T, kOperands>, T, kBlockK, kMBlocks, kChannels, kStaging, kFilter, kColumns, kLines,
                       kOperands>;
  }
  return nullptr;
}

template <HaloStaging kStaging, FilterTile kFilter, OperandForm kOperands, typename T>
Launcher halo_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define HALO_KERNEL(name, block_k, m_blocks, channels, staging, filter, columns, lines, operands, dtypes) \
  halo_launcher_of<kStaging, kFilter, kOperands, T, block_k, m_blocks, channels, HaloStaging::staging,    \
                   FilterTile::filter, columns, lines, OperandForm::operands>(),
#include "fastconv/families/halo/kernels.def"
#undef HALO_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
