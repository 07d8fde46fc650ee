// Host side of the second pass of a weight gradient by split-K.
#pragma once

#include <algorithm>
#include <bit>

#include "fastconv/core/buffers.h"
#include "fastconv/core/integers.h"
#include "fastconv/launch/launch.cuh"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"
#include "fastconv/tile/reduce_slices.cuh"

namespace fastconv {

// Adds the plan's slices, whose sums are in the workspace.
template <typename T>
static void launch_reduce_slices(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers,
                                 Stream& stream, bool taps_outer = false) {
  const int64_t taps = problem.r * problem.s, sums = problem.k * problem.c_per_group() * taps;
  SliceReduction params{};
  params.sums = static_cast<const float*>(buffers.workspace);
  params.dw = buffers.w;
  params.strides = problem.w_strides;
  params.slices = static_cast<int32_t>(plan.split), params.slice_sums = static_cast<int32_t>(sums);
  params.taps_outer = taps_outer;
  params.by_inner = FastDivmod(taps_outer ? sums / taps : taps);
  params.by_channels = FastDivmod(problem.c_per_group()), params.by_taps_w = FastDivmod(problem.s);
  // A thread that waited for one slice after the other would take longer than the first pass.
  const auto strands = static_cast<uint64_t>(std::clamp<int64_t>(plan.split / 4, 1, kReduceSlicesStrands));
  params.strands_log2 = std::bit_width(strands) - 1;
  const LaunchShape shape{ceil_div(sums << params.strands_log2, kReduceSlicesThreads), kReduceSlicesThreads};
  launch(plan.kernel->name, reduce_slices<T>, shape, stream, params);
}

}  // namespace fastconv
