// Host side of the kernels of several taps: from a plan to launches.
#pragma once

#include <algorithm>

#include "fastconv/core/integers.h"
#include "fastconv/families/pointwise/launch.cuh"
#include "fastconv/families/pointwise/taps_pack.cuh"
#include "fastconv/families/pointwise/taps_plan.h"

namespace fastconv {

// Tensors of Given, multiplied as T.
template <typename Given, OperandForm kForm>
struct TapTypes {
  using T = OperandOf<Given, kForm>;
  using Buffers = PointwiseBuffers<T, Given>;
};

template <typename Given, OperandForm kForm>
void launch_packing(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  using T = typename TapTypes<Given, kForm>::T;
  const TapSplits splits = tap_splits(plan, problem);
  TapPacking packing{splits.source, splits.other, buffers.gate};
  const bool wgrad = problem.pass == Pass::kWgrad;
  packing.source.values = problem.pass == Pass::kDgrad ? buffers.y : buffers.x;
  packing.other.values = wgrad ? buffers.y : buffers.w;
  packing.source.rows = buffers.workspace;
  packing.other.rows = static_cast<char*>(buffers.workspace) + plan.tiling.as<TapTiling>().source_bytes;
  if constexpr (is_scaled(kForm)) {
    packing.source.scale = buffers.gate.range->scale, packing.other.scale = buffers.gate.range->scale + 1;
  }
  const int64_t units = int64_t{packing.source.units} + packing.other.units;
  const LaunchShape shape{std::min<int64_t>(kMostPackBlocks, ceil_div(units, kPackThreads / 32)), kPackThreads,
                          kPackBytes};
  launch(plan.kernel->name, pack_taps<Given, kOperandOf<T>>, shape, stream, packing);
}

template <typename Given, OperandForm kForm, bool kWgrad, bool kTurned, int kM, int kN>
void launch_phases(const Plan& plan, const ConvProblem& problem, const typename TapTypes<Given, kForm>::Buffers& whole,
                   Stream& stream) {
  using T = typename TapTypes<Given, kForm>::T;
  const Pair phases = tap_phases(problem);
  for (int32_t phase = 0; phase < phases.h * phases.w; ++phase) {
    const auto columns = static_cast<int32_t>(phases.w);
    const TapParams params =
        tap_params(problem, kForm, plan.tiling.as<TapTiling>(), plan.split, phase / columns, phase % columns);
    typename TapTypes<Given, kForm>::Buffers tensors = whole;
    tensors.out += params.out_first;
    const int64_t tiles = int64_t{params.by_inner.divisor} * params.by_outer.divisor * params.by_images.divisor;
    launch(plan.kernel->name, pointwise<T, TapOperands<T, Given, kForm, kWgrad, kTurned>, kM, kN>,
           LaunchShape{tiles * plan.split, kPointwiseThreads, plan.smem_bytes}, stream, params, tensors);
    if (plan.split == 1) continue;
    PointwiseReduction reduction{};
    reduction.group_filters = params.group_filters;
    reduction.out_group = params.out_group, reduction.by_groups = params.by_groups;
    launch_pointwise_reduction(plan, params, reduction, tensors, stream);
  }
}

// kPixels by kChannels of the output, of a weight gradient filters by taps and channels.
template <bool kWgrad, typename Given, OperandForm kForm, int kPixels, int kChannels>
void launch_taps(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  const auto& tiling = plan.tiling.as<TapTiling>();
  ConvBuffers read = buffers;
  char* packed = static_cast<char*>(buffers.workspace);
  if (tiling.packed_bytes() > 0) launch_packing<Given, kForm>(plan, problem, buffers, stream);
  if (tiling.source_bytes > 0) (problem.pass == Pass::kDgrad ? read.y : read.x) = packed;
  if (tiling.other_bytes > 0) (kWgrad ? read.y : read.w) = packed + tiling.source_bytes;
  read.workspace = packed + tiling.packed_bytes();
  using T = typename TapTypes<Given, kForm>::T;
  const auto tensors = pointwise_buffers<T, Given>(problem, read, !tiling.turned, plan.split > 1);
  if constexpr (!kWgrad) {
    if (tiling.turned) {
      return launch_phases<Given, kForm, false, true, kChannels, kPixels>(plan, problem, tensors, stream);
    }
  }
  launch_phases<Given, kForm, kWgrad, false, kPixels, kChannels>(plan, problem, tensors, stream);
}

template <bool kWgrad, OperandForm kForm, OperandForm kLineForm, typename T, int kM, int kN, unsigned kDtypes>
constexpr Launcher tap_launcher_of() {
  if constexpr (kForm == kLineForm && (kDtypes & dtype_bit(kDTypeOf<T>)) != 0)
    return launch_taps<kWgrad, T, kForm, kM, kN>;
  return nullptr;
}

template <OperandForm kForm, typename T>
Launcher tap_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define TAP_KERNEL(name, operands, m, n, dtypes) \
  tap_launcher_of<false, kForm, OperandForm::operands, T, m, n, dtypes>(),
#include "fastconv/families/pointwise/taps.def"
#undef TAP_KERNEL
  };
  return kLaunchers[line];
}

template <OperandForm kForm, typename T>
Launcher tap_wgrad_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define TAP_WGRAD_KERNEL(name, operands, m, n, dtypes) \
  tap_launcher_of<true, kForm, OperandForm::operands, T, m, n, dtypes>(),
#include "fastconv/families/pointwise/taps_wgrad.def"
#undef TAP_WGRAD_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
