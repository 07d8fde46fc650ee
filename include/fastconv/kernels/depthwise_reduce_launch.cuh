// Host side of the second pass of a depthwise weight gradient.
#pragma once

#include <algorithm>
#include <bit>

#include "fastconv/core/buffers.h"
#include "fastconv/core/integers.h"
#include "fastconv/kernels/depthwise_reduce.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

// Adds the plan's slices, whose sums are in the workspace.
template <typename T>
void launch_depthwise_reduce(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream,
                             bool taps_outer = false) {
  DepthwiseReduction params{};
  params.sums = static_cast<const float*>(buffers.workspace);
  params.dw = buffers.w;
  params.strides = problem.w_strides;
  params.taps_outer = taps_outer;
  params.channels = static_cast<int32_t>(problem.c_per_group());
  params.taps_h = static_cast<int32_t>(problem.r), params.taps_w = static_cast<int32_t>(problem.s);
  params.slices = static_cast<int32_t>(plan.split);
  params.slice_sums = problem.k * problem.c_per_group() * problem.r * problem.s;
  // A thread that waited for one slice after the other would take longer than the first pass.
  params.strands = static_cast<int32_t>(
      std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(plan.split / 4, 1, kDepthwiseReduceStrands))));
  const LaunchShape shape{ceil_div(params.slice_sums * params.strands, kDepthwiseReduceThreads),
                          kDepthwiseReduceThreads};
  launch(plan.kernel->name, depthwise_reduce<T>, shape, stream, params);
}

}  // namespace fastconv
