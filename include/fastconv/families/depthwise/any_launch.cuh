// Host side of the depthwise kernels for any filter: from a plan to a launch.
#pragma once

#include "fastconv/families/depthwise/any.cuh"
#include "fastconv/families/depthwise/any_plan.h"
#include "fastconv/families/depthwise/launchers.h"
#include "fastconv/launch/dtype_of.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/reduce_slices.cuh"

namespace fastconv {

template <typename T, int kRows, int kColumns>
void launch_depthwise_any(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  if (plan.grid == 0) return;
  DepthwiseAnyParams params = depthwise_any_params(plan.kernel->config.as<DepthwiseAnyConfig>(), problem,
                                                   plan.tiling.as<DepthwiseAnyTiling>(), plan.split);
  switch (problem.pass) {
    case Pass::kFprop:
      params.source = buffers.x, params.taps = buffers.w, params.target = buffers.y;
      params.epilogue = epilogue_params(problem, buffers);
      break;
    case Pass::kDgrad: params.source = buffers.y, params.taps = buffers.w, params.target = buffers.x; break;
    case Pass::kWgrad: params.source = buffers.x, params.taps = buffers.y, params.target = buffers.w; break;
  }
  if (plan.split > 1) params.sums = static_cast<float*>(buffers.workspace);
  launch(plan.kernel->name, depthwise_any<T, kRows, kColumns>,
         LaunchShape{plan.grid, plan.block_threads, plan.smem_bytes}, stream, params);
  if (plan.split > 1) launch_reduce_slices<T>(plan, problem, buffers, stream);
}

template <typename T, int kRows, int kColumns, unsigned kDtypes>
constexpr Launcher depthwise_any_launcher_of() {
  if constexpr ((kDtypes & dtype_bit(kDTypeOf<T>)) != 0) return launch_depthwise_any<T, kRows, kColumns>;
  return nullptr;
}

template <typename T>
Launcher depthwise_any_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define DEPTHWISE_ANY_KERNEL(name, rows, columns, dtypes) depthwise_any_launcher_of<T, rows, columns, dtypes>(),
#include "fastconv/families/depthwise/any.def"
#undef DEPTHWISE_ANY_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
