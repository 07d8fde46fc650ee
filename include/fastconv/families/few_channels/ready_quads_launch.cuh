// Host side of the kernels for images that consist of quads: from a plan to a launch.
#pragma once

#include "fastconv/families/few_channels/launchers.h"
#include "fastconv/families/few_channels/ready_quads.cuh"
#include "fastconv/families/few_channels/ready_quads_plan.h"
#include "fastconv/launch/launch.cuh"

namespace fastconv {

template <typename T, int kSteps>
void launch_ready_quads(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  if (plan.grid == 0) return;
  const QuadsBuffers<T> tensors{static_cast<const T*>(buffers.x), static_cast<const T*>(buffers.w),
                                static_cast<const T*>(buffers.bias), static_cast<T*>(buffers.y)};
  launch(plan.kernel->name, ready_quads<T, kSteps>, LaunchShape{plan.grid, plan.block_threads, plan.smem_bytes}, stream,
         tensors, ready_quads_params(problem, plan.tiling.as<QuadsTiling>()));
}

template <typename T>
Launcher ready_quads_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define READY_QUADS_KERNEL(name, steps) launch_ready_quads<T, steps>,
#include "fastconv/families/few_channels/ready_quads.def"
#undef READY_QUADS_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
