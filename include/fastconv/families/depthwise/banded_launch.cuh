// Host side of the banded depthwise kernels: from a plan to a launch.
#pragma once

#include "fastconv/families/depthwise/banded.cuh"
#include "fastconv/families/depthwise/banded_plan.h"
#include "fastconv/families/depthwise/buffers.h"
#include "fastconv/families/depthwise/launchers.h"
#include "fastconv/launch/dtype_of.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/reduce_slices.cuh"

namespace fastconv {

// One line of the .def as a type: nvcc knows no kernels whose template arguments are objects.
template <DepthwiseKind kKind, int kTaps, int kStride, int kSteps, int kVector, int kAhead, int kWarps>
struct DepthwiseBandedLine {
  static constexpr DepthwiseBandedConfig kConfig{kKind, kTaps, kStride, kSteps, kVector, kAhead, kWarps};
};

template <typename T, typename Line>
void launch_depthwise_banded(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  constexpr DepthwiseBandedConfig kConfig = Line::kConfig;
  if (plan.grid == 0) return;
  DepthwiseBandedParams params = depthwise_banded_params(plan, problem);
  const LaunchShape shape{plan.grid, plan.block_threads, plan.smem_bytes};
  const char* name = plan.kernel->name;
  bind_buffers(params, plan, problem, buffers, !kConfig.transposed());
  if constexpr (kConfig.kind == DepthwiseKind::kWeights) {
    if constexpr (kConfig.staged()) {
      launch(name, depthwise_banded_wgrad_sm90<T, Line>, shape, stream, params);
    } else {
      launch(name, depthwise_banded_wgrad<T, Line>, shape, stream, params);
    }
    if (plan.split > 1) launch_reduce_slices<T>(plan, problem, buffers, stream);
  } else if constexpr (kConfig.any_rows()) {
    launch(name, depthwise_banded_any_rows<T, Line>, shape, stream, params);
  } else if constexpr (kConfig.staged()) {
    launch(name, depthwise_banded_sm90<T, Line>, shape, stream, params);
  } else {
    launch(name, depthwise_banded<T, Line>, shape, stream, params);
  }
}

template <typename T, typename Line, unsigned kDtypes>
constexpr Launcher depthwise_banded_launcher_of() {
  if constexpr ((kDtypes & dtype_bit(kDTypeOf<T>)) != 0) return launch_depthwise_banded<T, Line>;
  return nullptr;
}

template <typename T>
Launcher depthwise_banded_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define DEPTHWISE_BANDED_KERNEL(name, kind, taps, stride, steps, vector, ahead, warps, dtypes)                         \
  depthwise_banded_launcher_of<T, DepthwiseBandedLine<DepthwiseKind::kind, taps, stride, steps, vector, ahead, warps>, \
                               dtypes>(),
#include "fastconv/families/depthwise/banded.def"
#undef DEPTHWISE_BANDED_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
