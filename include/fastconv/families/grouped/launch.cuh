// Host side of the kernels for narrow groups: from a plan to a launch.
#pragma once

#include "fastconv/families/grouped/kernel.cuh"
#include "fastconv/families/grouped/launchers.h"
#include "fastconv/families/grouped/plan.h"
#include "fastconv/families/grouped/wgrad.cuh"
#include "fastconv/launch/dtype_of.cuh"
#include "fastconv/launch/launch.cuh"

namespace fastconv {

template <typename T, GroupedOperands kOperands, int kFilters>
void launch_grouped_wgrad(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  const GroupedWgradParams params = grouped_wgrad_params(plan.kernel->config.as<GroupedConfig>(), problem,
                                                         plan.tiling.as<GroupedTiling>(), plan.split);
  auto* w = static_cast<T*>(buffers.w);
  auto* partial = static_cast<float4*>(buffers.workspace);
  const GroupedWgradBuffers<T> tensors{static_cast<const T*>(buffers.x), static_cast<const T*>(buffers.y), w, partial};
  launch(plan.kernel->name, grouped_wgrad<T, kOperands, kFilters>,
         LaunchShape{plan.grid, plan.block_threads, plan.smem_bytes}, stream, params, tensors);
  if (params.parts == 1) return;
  const int strands = reduce_strands(params.parts);
  const int64_t quads = int64_t{params.by_jobs.divisor} * params.job_quads;
  launch(plan.kernel->name, reduce_grouped_wgrad<T>, LaunchShape{reduce_blocks(quads, strands), kReduceThreads}, stream,
         params, plan.kernel->config.as<GroupedConfig>(), w, static_cast<const float4*>(partial), strands);
}

template <typename T, GroupedOperands kOperands, int kFilters>
void launch_grouped(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  if (problem.pass == Pass::kWgrad) return launch_grouped_wgrad<T, kOperands, kFilters>(plan, problem, buffers, stream);
  if (plan.grid == 0) return;
  const bool dgrad = problem.pass == Pass::kDgrad;
  const GroupedBuffers<T> tensors{static_cast<const T*>(dgrad ? buffers.y : buffers.x),
                                  static_cast<const T*>(buffers.w), Epilogue<T>(epilogue_params(problem, buffers)),
                                  static_cast<T*>(dgrad ? buffers.x : buffers.y)};
  launch(plan.kernel->name, grouped_conv<T, kOperands, kFilters>,
         LaunchShape{plan.grid, plan.block_threads, plan.smem_bytes}, stream,
         grouped_params(plan.kernel->config.as<GroupedConfig>(), problem, plan.tiling.as<GroupedTiling>()), tensors);
}

template <typename T, GroupedOperands kOperands, int kFilters, unsigned kDtypes>
constexpr Launcher grouped_launcher_of() {
  if constexpr ((kDtypes & dtype_bit(kDTypeOf<T>)) != 0) return launch_grouped<T, kOperands, kFilters>;
  return nullptr;
}

template <typename T>
Launcher grouped_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define GROUPED_KERNEL(name, operands, filters, dtypes) \
  grouped_launcher_of<T, GroupedOperands::operands, filters, dtypes>(),
#include "fastconv/families/grouped/kernels.def"
#undef GROUPED_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
