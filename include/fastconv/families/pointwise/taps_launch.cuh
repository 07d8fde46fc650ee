// Host side of the kernels of several taps: from a plan to launches.
#pragma once

#include "fastconv/families/pointwise/launch.cuh"
#include "fastconv/families/pointwise/taps_plan.h"

namespace fastconv {

template <Pass kPass, typename T, int kM, int kN>
void launch_taps(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  if (plan.grid == 0) return;
  const PointwiseBuffers<T> whole = pointwise_buffers<T>(problem, buffers, true, plan.split > 1);
  const Pair phases = tap_phases(problem);
  for (int32_t phase = 0; phase < phases.h * phases.w; ++phase) {
    const auto columns = static_cast<int32_t>(phases.w);
    const TapParams params =
        tap_params(problem, plan.tiling.as<TapTiling>(), plan.split, phase / columns, phase % columns);
    PointwiseBuffers<T> tensors = whole;
    tensors.out += params.out_first;
    const int64_t tiles = int64_t{params.by_inner.divisor} * params.by_outer.divisor * params.by_images.divisor;
    launch(plan.kernel->name, pointwise<T, TapOperands<T, kPass>, kM, kN>,
           LaunchShape{tiles * plan.split, kPointwiseThreads, plan.smem_bytes}, stream, params, tensors);
    if (plan.split == 1) continue;
    launch_pointwise_reduction(plan, params, params.group_filters, tensors, stream);
  }
}

template <Pass kPass, Pass kLinePass, typename T, int kM, int kN, unsigned kDtypes>
constexpr Launcher tap_launcher_of() {
  if constexpr (kPass == kLinePass && (kDtypes & dtype_bit(kDTypeOf<T>)) != 0) return launch_taps<kPass, T, kM, kN>;
  return nullptr;
}

template <Pass kPass, typename T>
Launcher tap_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define TAP_KERNEL(name, pass, m, n, dtypes) tap_launcher_of<kPass, Pass::pass, T, m, n, dtypes>(),
#include "fastconv/families/pointwise/taps.def"
#undef TAP_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
