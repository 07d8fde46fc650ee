// Host side of the weight gradient of images of few channels, 16 bits: from a plan to launches.
#pragma once

#include "fastconv/families/few_channels/launchers.h"
#include "fastconv/families/few_channels/quads_wgrad.cuh"
#include "fastconv/families/few_channels/quads_wgrad_plan.h"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/reduce_slices.cuh"

namespace fastconv {

template <typename T, bool kChannelsInner, int kChannels>
void launch_quads_wgrad(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  const QuadsWgradBuffers<T> tensors{static_cast<const T*>(buffers.x), static_cast<const T*>(buffers.y),
                                     static_cast<float*>(buffers.workspace)};
  launch(plan.kernel->name, quads_wgrad<T, kChannelsInner, kChannels>,
         LaunchShape{plan.grid, plan.block_threads, plan.smem_bytes}, stream,
         quads_wgrad_params(plan.kernel->config.as<QuadsWgradConfig>(), problem, plan.tiling.as<QuadsTiling>()),
         tensors);
  launch_reduce_slices<T>(plan, problem, buffers, stream);
}

template <typename T>
Launcher quads_wgrad_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define QUADS_WGRAD_KERNEL(name, channels_inner, channels) launch_quads_wgrad<T, channels_inner, channels>,
#include "fastconv/families/few_channels/quads_wgrad.def"
#undef QUADS_WGRAD_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
