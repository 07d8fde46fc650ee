// Host side of the depthwise kernels with products of pairs of channels: from a plan to a launch.
#pragma once

#include "fastconv/families/depthwise/boxed_launch.cuh"
#include "fastconv/families/depthwise/buffers.h"
#include "fastconv/families/depthwise/launchers.h"
#include "fastconv/families/depthwise/pairs.cuh"
#include "fastconv/families/depthwise/pairs_plan.h"

namespace fastconv {

// One line of the .def as a type: nvcc knows no kernels whose template arguments are objects.
template <int kTaps>
struct DepthwisePairsLine {
  static constexpr DepthwisePairsConfig kConfig{kTaps};
};

template <typename T, typename Line>
void launch_depthwise_pairs(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  if (plan.grid == 0) return;
  DepthwisePairsParams params = depthwise_pairs_params(plan, problem);
  bind_buffers(params, plan, problem, buffers, true);
  launch_boxed(plan.kernel->name, depthwise_pairs<T, Line>, LaunchShape{plan.grid, plan.block_threads, plan.smem_bytes},
               stream, params, depthwise_pairs_maps(plan, problem), problem.dtype);
}

template <typename T>
Launcher depthwise_pairs_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define DEPTHWISE_PAIRS_KERNEL(name, taps) launch_depthwise_pairs<T, DepthwisePairsLine<taps>>,
#include "fastconv/families/depthwise/pairs.def"
#undef DEPTHWISE_PAIRS_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
