// Host side of the kernels for patch embeddings: from a plan to a launch.
#pragma once

#include "fastconv/families/few_channels/embed.cuh"
#include "fastconv/families/few_channels/embed_plan.h"
#include "fastconv/families/few_channels/embed_wgrad.cuh"
#include "fastconv/families/few_channels/launchers.h"
#include "fastconv/launch/dtype_of.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/reduce_slices.cuh"

namespace fastconv {

template <typename T, int kParts, bool kChannelsInner>
void launch_embed(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  const LaunchShape shape{plan.grid, plan.block_threads, plan.smem_bytes};
  const EmbedParams params =
      embed_params(plan.kernel->config.as<EmbedConfig>(), problem, plan.tiling.as<EmbedTiling>());
  if constexpr (kParts > 1) {
    if (problem.pass == Pass::kWgrad) {
      const EmbedWgradBuffers tensors{static_cast<const float*>(buffers.x), static_cast<const float*>(buffers.y),
                                      static_cast<float*>(buffers.workspace)};
      launch(plan.kernel->name, embed_wgrad<kParts, kChannelsInner>, shape, stream, params, tensors);
      launch_reduce_slices<T>(plan, problem, buffers, stream);
      return;
    }
  }
  const EmbedBuffers<T> tensors{static_cast<const T*>(buffers.x), static_cast<const T*>(buffers.w),
                                Epilogue<T>(epilogue_params(problem, buffers)), static_cast<T*>(buffers.y)};
  launch(plan.kernel->name, embed_fprop<T, kParts, kChannelsInner>, shape, stream, params, tensors);
}

template <typename T, int kParts, bool kChannelsInner, unsigned kDtypes>
constexpr Launcher embed_launcher_of() {
  if constexpr ((kDtypes & dtype_bit(kDTypeOf<T>)) != 0) return launch_embed<T, kParts, kChannelsInner>;
  return nullptr;
}

template <typename T>
Launcher embed_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define EMBED_KERNEL(name, parts, channels_inner, dtypes) embed_launcher_of<T, parts, channels_inner, dtypes>(),
#include "fastconv/families/few_channels/embed.def"
#undef EMBED_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
