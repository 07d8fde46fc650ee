// Host side of the sm_90a weight gradient: partial sums, then their reduction.
#pragma once

#include "fastconv/kernels/conv_wgrad_sm90.cuh"
#include "fastconv/kernels/reduce_wgrad.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/launchers.h"
#include "fastconv/launch/tensor_map.h"
#include "fastconv/planner/wgrad_family.h"

namespace fastconv {

template <typename T, int kChannels, int kBlocks, int kUnits, int kWarpgroups, WgradStaging kStaging>
void launch_wgrad(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, cudaStream_t stream) {
  WgradLaunch wgrad = wgrad_launch(plan, problem);
  WgradParams& params = wgrad.params;
  params.x.data = buffers.x, params.y.data = buffers.y, params.w = buffers.w;
  params.partial = static_cast<float*>(buffers.workspace);
  RawMaps x_maps{}, y_maps{};
  for (int i = 0; i < wgrad.x_maps; ++i) x_maps.map[i] = encode_tensor_map(wgrad.x_map[i], problem.dtype, buffers.x);
  for (int i = 0; i < wgrad.y_maps; ++i) y_maps.map[i] = encode_tensor_map(wgrad.y_map[i], problem.dtype, buffers.y);

  LaunchShape shape{plan.grid, plan.block_threads, plan.smem_bytes};
  shape.cluster = params.cluster.divisor;
  const auto kernel = conv_wgrad_sm90<T, kChannels, kBlocks, kUnits, kWarpgroups, kStaging>;
  if constexpr (is_transposed(kStaging)) {
    launch(plan.kernel->name, kernel, shape, stream, params, x_maps, y_maps);
  } else {
    launch(plan.kernel->name, kernel, shape, stream, params, x_maps.map[0], y_maps.map[0]);
  }
  if (params.partials == 1) return;

  // Few results of many clusters: several threads share a sum.
  constexpr int kSlots = kUnits * kWarpgroups;
  const int64_t quads = int64_t{params.jobs.divisor} * kSlots * 16 * kChannels * kBlocks;
  int strands = 1;
  while (strands < 8 && strands * 8 < params.partials) strands *= 2;
  LaunchShape reduce{(quads * strands + kReduceThreads - 1) / kReduceThreads, kReduceThreads};
  reduce.early = true;
  launch(plan.kernel->name, reduce_wgrad<T, kChannels, kBlocks, kSlots>, reduce, stream, params, strands);
}

template <WgradStaging kStaging, typename T, int kChannels, int kBlocks, int kUnits, int kWarpgroups,
          WgradStaging kLineStaging>
constexpr Launcher wgrad_launcher_of() {
  if constexpr (kLineStaging == kStaging) return launch_wgrad<T, kChannels, kBlocks, kUnits, kWarpgroups, kStaging>;
  return nullptr;
}

template <WgradStaging kStaging, typename T>
Launcher wgrad_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define WGRAD_KERNEL(name, channels, blocks, units, warpgroups, staging) \
  wgrad_launcher_of<kStaging, T, channels, blocks, units, warpgroups, WgradStaging::staging>(),
#include "../../../src/launch/configs/wgrad.def"
#undef WGRAD_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
