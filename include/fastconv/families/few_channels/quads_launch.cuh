// Host side of the kernels that stage images of few channels as quads: from a plan to a launch.
#pragma once

#include "fastconv/families/few_channels/launchers.h"
#include "fastconv/families/few_channels/quads.cuh"
#include "fastconv/families/few_channels/quads_plan.h"
#include "fastconv/launch/dtype_of.cuh"
#include "fastconv/launch/launch.cuh"

namespace fastconv {

template <typename T, bool kChannelsInner, int kSteps, QuadsOperands kOperands, bool kSquares>
void launch_quads(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  if (plan.grid == 0) return;
  const QuadsBuffers<T> tensors{static_cast<const T*>(buffers.x), static_cast<const T*>(buffers.w),
                                Epilogue<T>(epilogue_params(problem, buffers)), static_cast<T*>(buffers.y)};
  QuadsParams params = quads_params(plan.kernel->config.as<QuadsConfig>(), problem, plan.tiling.as<QuadsTiling>());
  params.activation = buffers.activation;
  launch(plan.kernel->name, quads_fprop<T, kChannelsInner, kSteps, kOperands, kSquares>,
         LaunchShape{plan.grid, plan.block_threads, plan.smem_bytes}, stream, tensors, params);
}

template <typename T, bool kChannelsInner, int kSteps, QuadsOperands kOperands, bool kSquares, unsigned kDtypes>
constexpr Launcher quads_launcher_of() {
  if constexpr ((kDtypes & dtype_bit(kDTypeOf<T>)) != 0) {
    return launch_quads<T, kChannelsInner, kSteps, kOperands, kSquares>;
  }
  return nullptr;
}

template <typename T>
Launcher quads_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define QUADS_KERNEL(name, channels_inner, steps, operands, squares, dtypes) \
  quads_launcher_of<T, channels_inner, steps, QuadsOperands::operands, squares, dtypes>(),
#include "fastconv/families/few_channels/quads.def"
#undef QUADS_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
