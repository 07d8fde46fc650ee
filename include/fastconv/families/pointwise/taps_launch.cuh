// Host side of the kernels of several taps: from a plan to launches.
#pragma once

#include "fastconv/families/pointwise/launch.cuh"
#include "fastconv/families/pointwise/taps_pack.cuh"
#include "fastconv/families/pointwise/taps_plan.h"

namespace fastconv {

template <Pass kPass, typename T, TapReads kReads, bool kTurned, int kM, int kN>
void launch_phases(const Plan& plan, const ConvProblem& problem, const PointwiseBuffers<T>& whole, Stream& stream) {
  const Pair phases = tap_phases(problem);
  for (int32_t phase = 0; phase < phases.h * phases.w; ++phase) {
    const auto columns = static_cast<int32_t>(phases.w);
    const TapParams params =
        tap_params(problem, plan.tiling.as<TapTiling>(), plan.split, phase / columns, phase % columns);
    PointwiseBuffers<T> tensors = whole;
    tensors.out += params.out_first;
    const int64_t tiles = int64_t{params.by_inner.divisor} * params.by_outer.divisor * params.by_images.divisor;
    launch(plan.kernel->name, pointwise<T, TapOperands<T, kPass, kReads, kTurned>, kM, kN>,
           LaunchShape{tiles * plan.split, kPointwiseThreads, plan.smem_bytes}, stream, params, tensors);
    if (plan.split == 1) continue;
    PointwiseReduction reduction{};
    reduction.group_filters = params.group_filters;
    reduction.out_group = params.out_group, reduction.by_groups = params.by_groups;
    launch_pointwise_reduction(plan, params, reduction, tensors, stream);
  }
}

template <Pass kPass, typename T, TapReads kReads, int kPixels, int kChannels>
void launch_taps(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  if (plan.grid == 0) return;
  const auto& tiling = plan.tiling.as<TapTiling>();
  ConvBuffers given = buffers;
  if (tiling.packs()) {
    auto* packed = static_cast<T*>(buffers.workspace);
    const TapPacking packing = tap_packing(problem);
    launch(plan.kernel->name, pack_taps<T>,
           LaunchShape{(packing.chunks + kPackThreads - 1) / kPackThreads, kPackThreads}, stream, packing,
           static_cast<const T*>(buffers.w), packed);
    given.w = packed;
  }
  given.workspace = static_cast<char*>(buffers.workspace) + tiling.packed_bytes;
  const PointwiseBuffers<T> tensors = pointwise_buffers<T>(problem, given, !tiling.turned, plan.split > 1);
  if constexpr (kReads == TapReads::kElements && kPass != Pass::kWgrad) {
    if (tiling.turned) {
      return launch_phases<kPass, T, kReads, true, kChannels, kPixels>(plan, problem, tensors, stream);
    }
  }
  launch_phases<kPass, T, kReads, false, kPixels, kChannels>(plan, problem, tensors, stream);
}

template <Pass kPass, Pass kLinePass, typename T, TapReads kReads, int kM, int kN, unsigned kDtypes>
constexpr Launcher tap_launcher_of() {
  if constexpr (kPass == kLinePass && (kDtypes & dtype_bit(kDTypeOf<T>)) != 0)
    return launch_taps<kPass, T, kReads, kM, kN>;
  return nullptr;
}

template <Pass kPass, typename T>
Launcher tap_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define TAP_KERNEL(name, pass, reads, m, n, dtypes) \
  tap_launcher_of<kPass, Pass::pass, T, TapReads::reads, m, n, dtypes>(),
#include "fastconv/families/pointwise/taps.def"
#undef TAP_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
