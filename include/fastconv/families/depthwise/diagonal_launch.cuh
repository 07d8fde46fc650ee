// Host side of the depthwise kernels with diagonal products: from a plan to a launch.
#pragma once

#include "fastconv/families/depthwise/boxed_launch.cuh"
#include "fastconv/families/depthwise/buffers.h"
#include "fastconv/families/depthwise/diagonal.cuh"
#include "fastconv/families/depthwise/diagonal_plan.h"
#include "fastconv/families/depthwise/diagonal_sm90.cuh"
#include "fastconv/families/depthwise/diagonal_wgrad_sm90.cuh"
#include "fastconv/families/depthwise/launchers.h"
#include "fastconv/launch/dtype_of.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/reduce_slices.cuh"

namespace fastconv {

// One line of the .def as a type: nvcc knows no kernels whose template arguments are objects.
template <DepthwiseKind kKind, int kTaps, int kStride, int kAhead, int kWarps, int kBoxRows, int kGroupChunks,
          int kElementBytes>
struct DepthwiseDiagonalLine {
  static constexpr DepthwiseDiagonalConfig kConfig{kKind,  kTaps,    kStride,      kAhead,
                                                   kWarps, kBoxRows, kGroupChunks, kElementBytes};
};

template <typename T, typename Line>
void launch_depthwise_diagonal(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers,
                               Stream& stream) {
  if (plan.grid == 0) return;
  const LaunchShape shape{plan.grid, plan.block_threads, plan.smem_bytes};
  const char* name = plan.kernel->name;
  if constexpr (Line::kConfig.kind == DepthwiseKind::kWeights) {
    DiagonalWgradParams params = depthwise_diagonal_wgrad_params(plan, problem);
    bind_buffers(params, plan, problem, buffers, true);
    if constexpr (Line::kConfig.boxed()) {
      launch_boxed(name, depthwise_diagonal_wgrad_sm90<T, Line>, shape, stream, params,
                   depthwise_diagonal_wgrad_maps(plan, problem), problem.dtype);
    } else {
      launch(name, depthwise_diagonal_wgrad<T, Line>, shape, stream, params);
    }
    if (plan.split > 1) launch_reduce_slices<T>(plan, problem, buffers, stream, true);
  } else {
    DepthwiseDiagonalParams params = depthwise_diagonal_params(plan, problem);
    bind_buffers(params, plan, problem, buffers, !Line::kConfig.transposed());
    if constexpr (Line::kConfig.boxed()) {
      launch_boxed(name, depthwise_diagonal_sm90<T, Line>, shape, stream, params,
                   depthwise_diagonal_maps(plan, problem), problem.dtype);
    } else {
      launch(name, depthwise_diagonal<T, Line>, shape, stream, params);
    }
  }
}

template <typename T, typename Line, unsigned kDtypes>
constexpr Launcher depthwise_diagonal_launcher_of() {
  if constexpr ((kDtypes & dtype_bit(kDTypeOf<T>)) != 0) return launch_depthwise_diagonal<T, Line>;
  return nullptr;
}

template <typename T>
Launcher depthwise_diagonal_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define DEPTHWISE_DIAGONAL_KERNEL(name, kind, taps, stride, ahead, warps, box_rows, chunks, dtypes)           \
  depthwise_diagonal_launcher_of<                                                                             \
      T, DepthwiseDiagonalLine<DepthwiseKind::kind, taps, stride, ahead, warps, box_rows, chunks, sizeof(T)>, \
      dtypes>(),
#include "fastconv/families/depthwise/diagonal.def"
#undef DEPTHWISE_DIAGONAL_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
