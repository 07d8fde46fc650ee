// Host side of the depthwise weight gradient by products of rows: from a plan to launches.
#pragma once

#include "fastconv/families/depthwise/boxed_launch.cuh"
#include "fastconv/families/depthwise/buffers.h"
#include "fastconv/families/depthwise/cross.cuh"
#include "fastconv/families/depthwise/cross_plan.h"
#include "fastconv/families/depthwise/launchers.h"
#include "fastconv/launch/reduce_slices.cuh"

namespace fastconv {

// One line of the .def as a type: nvcc knows no kernels whose template arguments are objects.
template <int kTaps, int kStride>
struct DepthwiseCrossLine {
  static constexpr DepthwiseCrossConfig kConfig{kTaps, kStride};
};

template <typename T, typename Line>
void launch_depthwise_cross(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  DepthwiseCrossParams params = depthwise_cross_params(plan, problem);
  bind_buffers(params, plan, problem, buffers, true);
  launch_boxed(plan.kernel->name, depthwise_cross<T, Line>, LaunchShape{plan.grid, plan.block_threads, plan.smem_bytes},
               stream, params, depthwise_cross_maps(plan, problem), problem.dtype);
  if (plan.split > 1) launch_reduce_slices<T>(plan, problem, buffers, stream, true);
}

template <typename T>
Launcher depthwise_cross_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define DEPTHWISE_CROSS_KERNEL(name, taps, stride) launch_depthwise_cross<T, DepthwiseCrossLine<taps, stride>>,
#include "fastconv/families/depthwise/cross.def"
#undef DEPTHWISE_CROSS_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
