// Host side of the kernels for images of few channels: from a plan to a launch.
#pragma once

#include "fastconv/families/few_channels/launchers.h"
#include "fastconv/families/few_channels/stem.cuh"
#include "fastconv/families/few_channels/stem_plan.h"
#include "fastconv/families/few_channels/stem_wgrad.cuh"
#include "fastconv/launch/launch.cuh"

namespace fastconv {

template <int kParts, int kFilters, Operand kOperand>
void launch_stem_wgrad(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  const StemWgradParams params =
      stem_wgrad_params(plan.kernel->config.as<StemConfig>(), problem, plan.tiling.as<StemTiling>());
  const StemWgradBuffers tensors{static_cast<const float*>(buffers.x), static_cast<const float*>(buffers.y),
                                 static_cast<float*>(buffers.w), static_cast<float4*>(buffers.workspace)};
  launch(plan.kernel->name, stem_wgrad<kParts, kFilters, kOperand>,
         LaunchShape{plan.grid, plan.block_threads, plan.smem_bytes}, stream, params, tensors);
  if (params.walkers == 1) return;
  const int strands = reduce_strands(params.walkers);
  const int64_t quads = int64_t{params.by_jobs.divisor} * params.job_quads;
  launch(plan.kernel->name, reduce_stem_wgrad<kParts, kFilters, kOperand>,
         LaunchShape{reduce_blocks(quads, strands), kReduceThreads}, stream, params, tensors, strands);
}

template <int kParts, int kFilters, Operand kOperand>
void launch_stem(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  if (problem.pass == Pass::kWgrad)
    return launch_stem_wgrad<kParts, kFilters, kOperand>(plan, problem, buffers, stream);
  if (plan.grid == 0) return;
  const StemBuffers tensors{static_cast<const float*>(buffers.x), static_cast<const float*>(buffers.w),
                            Epilogue<float>(epilogue_params(problem, buffers)), static_cast<float*>(buffers.y)};
  launch(plan.kernel->name, stem_fprop<kParts, kFilters, kOperand>,
         LaunchShape{plan.grid, plan.block_threads, plan.smem_bytes}, stream,
         stem_params(plan.kernel->config.as<StemConfig>(), problem, plan.tiling.as<StemTiling>()), tensors);
}

template <typename T>
Launcher stem_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define STEM_KERNEL(name, parts, filters, operand) launch_stem<parts, filters, Operand::operand>,
#include "fastconv/families/few_channels/stem.def"
#undef STEM_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
