// Host side of the depthwise kernels along one dimension: from a plan to a launch.
#pragma once

#include "fastconv/families/depthwise/buffers.h"
#include "fastconv/families/depthwise/launchers.h"
#include "fastconv/families/depthwise/sequence_plan.h"
#include "fastconv/families/depthwise/sequence_wgrad.cuh"
#include "fastconv/launch/dtype_of.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/reduce_slices.cuh"

namespace fastconv {

// One line of the .def as a type: nvcc knows no kernels whose template arguments are objects.
template <DepthwiseKind kKind, int kSteps, int kThreads, int kBytes, bool kGaps>
struct DepthwiseSequenceLine {
  static constexpr DepthwiseSequenceConfig kConfig{kKind, kSteps, kThreads, kBytes, kGaps};
};

template <typename T, typename Line>
void launch_depthwise_sequence(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers,
                               Stream& stream) {
  if (plan.grid == 0) return;
  DepthwiseSequenceParams params = depthwise_sequence_params(plan, problem);
  bind_buffers(params, plan, problem, buffers, true);
  params.filter_step = problem.r > 1 ? params.filter_strides.h : params.filter_strides.w;
  const LaunchShape shape{plan.grid, plan.block_threads, plan.smem_bytes};
  if constexpr (Line::kConfig.weights()) {
    launch(plan.kernel->name, depthwise_sequence_wgrad<T, Line>, shape, stream, params);
    if (plan.split > 1) launch_reduce_slices<T>(plan, problem, buffers, stream);
  } else {
    launch(plan.kernel->name, depthwise_sequence<T, Line>, shape, stream, params);
  }
}

template <typename T, typename Line, unsigned kDtypes>
constexpr Launcher depthwise_sequence_launcher_of() {
  if constexpr ((kDtypes & dtype_bit(kDTypeOf<T>)) != 0) return launch_depthwise_sequence<T, Line>;
  return nullptr;
}

template <typename T>
Launcher depthwise_sequence_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define DEPTHWISE_SEQUENCE_KERNEL(name, kind, steps, threads, bytes, gaps, dtypes) \
  depthwise_sequence_launcher_of<T, DepthwiseSequenceLine<DepthwiseKind::kind, steps, threads, bytes, gaps>, dtypes>(),
#include "fastconv/families/depthwise/sequence.def"
#undef DEPTHWISE_SEQUENCE_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
