// Host side of the kernels for patch embeddings and small images: from a plan to a launch.
#pragma once

#include "fastconv/kernels/depthwise_reduce_launch.cuh"
#include "fastconv/kernels/embed.cuh"
#include "fastconv/kernels/embed_wgrad.cuh"
#include "fastconv/launch/dtype_of.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/launchers.h"
#include "fastconv/planner/embed_family.h"

namespace fastconv {

template <typename T, int kParts, bool kChannelsInner>
void launch_embed_wgrad(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  const EmbedWgradBuffers<T> tensors{static_cast<const T*>(buffers.x), static_cast<const T*>(buffers.y),
                                     static_cast<float*>(buffers.workspace)};
  launch(plan.kernel->name, embed_wgrad<T, kParts, kChannelsInner>,
         LaunchShape{plan.grid, plan.block_threads, plan.smem_bytes}, stream,
         embed_params(plan.kernel->embed, problem, plan.embed), tensors);
  launch_depthwise_reduce<T>(plan, problem, buffers, stream);
}

template <typename T, int kParts, bool kChannelsInner, bool kGathers>
void launch_embed(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  if constexpr (!kGathers) {
    if (problem.pass == Pass::kWgrad)
      return launch_embed_wgrad<T, kParts, kChannelsInner>(plan, problem, buffers, stream);
  }
  const EmbedBuffers<T> tensors{static_cast<const T*>(buffers.x), static_cast<const T*>(buffers.w),
                                static_cast<const T*>(buffers.bias), static_cast<T*>(buffers.y)};
  launch(plan.kernel->name, embed_fprop<T, kParts, kChannelsInner, kGathers>,
         LaunchShape{plan.grid, plan.block_threads, plan.smem_bytes}, stream,
         embed_params(plan.kernel->embed, problem, plan.embed), tensors);
}

template <typename T, int kParts, bool kChannelsInner, bool kGathers, unsigned kDtypes>
constexpr Launcher embed_launcher_of() {
  if constexpr ((kDtypes & dtype_bit(kDTypeOf<T>)) != 0) return launch_embed<T, kParts, kChannelsInner, kGathers>;
  return nullptr;
}

template <typename T>
Launcher embed_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define EMBED_KERNEL(name, parts, channels_inner, gathers, dtypes) \
  embed_launcher_of<T, parts, channels_inner, gathers, dtypes>(),
#include "../../../src/launch/configs/embed.def"
#undef EMBED_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
