// Host side of the depthwise kernels: from a plan to a launch.
#pragma once

#include "fastconv/families/depthwise/buffers.h"
#include "fastconv/families/depthwise/kernel.cuh"
#include "fastconv/families/depthwise/launchers.h"
#include "fastconv/families/depthwise/plan.h"
#include "fastconv/families/depthwise/wgrad.cuh"
#include "fastconv/launch/dtype_of.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/reduce_slices.cuh"
#include "fastconv/launch/tensor_map.h"

namespace fastconv {

// One line of the .def as a type: nvcc knows no kernels whose template arguments are objects.
template <DepthwiseKind kKind, int kTaps, int kStride, Lanes kLanes, int kVector, int kColumns, int kAhead, int kUnroll,
          int... kAcross>
struct DepthwiseLine {
  static constexpr DepthwiseConfig kConfig{kKind,    kTaps,  kStride, kLanes,    kVector,
                                           kColumns, kAhead, kUnroll, kAcross...};
};

template <typename T, typename Line>
void launch_depthwise(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  constexpr DepthwiseConfig kConfig = Line::kConfig;
  if (plan.grid == 0) return;
  DepthwiseParams params = depthwise_params(plan, problem);
  const LaunchShape shape{plan.grid, plan.block_threads, plan.smem_bytes};
  const char* name = plan.kernel->name;
  bind_buffers(params, plan, problem, buffers, !kConfig.transposed());
  CUtensorMap source_map, target_map;
  if constexpr (kConfig.staged()) {
    const DepthwiseMaps maps = depthwise_maps(plan, problem);
    source_map = encode_tensor_map(maps.source, problem.dtype, params.source);
    if (problem.pass == Pass::kWgrad) target_map = encode_tensor_map(maps.target, problem.dtype, params.target);
  }
  if constexpr (kConfig.kind == DepthwiseKind::kWeights) {
    if constexpr (kConfig.staged()) {
      launch(name, depthwise_wgrad_sm90<T, Line>, shape, stream, params, source_map, target_map);
    } else {
      launch(name, depthwise_wgrad<T, Line>, shape, stream, params);
    }
    if (plan.split > 1) launch_reduce_slices<T>(plan, problem, buffers, stream);
  } else if constexpr (kConfig.staged()) {
    launch(name, depthwise_sm90<T, Line>, shape, stream, params, source_map);
  } else {
    launch(name, depthwise<T, Line>, shape, stream, params);
  }
}

template <DepthwiseKind kKind, typename T, typename Line, unsigned kDtypes>
constexpr Launcher depthwise_launcher_of() {
  if constexpr (Line::kConfig.kind == kKind && (kDtypes & dtype_bit(kDTypeOf<T>)) != 0)
    return launch_depthwise<T, Line>;
  return nullptr;
}

template <DepthwiseKind kKind, typename T>
Launcher depthwise_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define DEPTHWISE_KERNEL(name, dtypes, kind, taps, stride, lanes, ...)                                         \
  depthwise_launcher_of<kKind, T, DepthwiseLine<DepthwiseKind::kind, taps, stride, Lanes::lanes, __VA_ARGS__>, \
                        dtypes>(),
#include "fastconv/families/depthwise/kernels.def"
#undef DEPTHWISE_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
