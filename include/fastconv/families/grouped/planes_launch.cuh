// Host side of the weight gradient of narrow groups by planes: from a plan to a launch.
#pragma once

#include "fastconv/families/grouped/launchers.h"
#include "fastconv/families/grouped/planes.cuh"
#include "fastconv/families/grouped/planes_plan.h"
#include "fastconv/launch/dtype_of.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/reduce_slices.cuh"

namespace fastconv {

template <typename T, int kStride, int kWarps>
void launch_grouped_planes(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  if (plan.grid == 0) return;
  GroupedPlanesParams params = grouped_planes_params(plan, problem);
  params.x.data = buffers.x, params.y.data = buffers.y, params.dw = buffers.w;
  if (plan.split > 1) params.sums = static_cast<float*>(buffers.workspace);
  launch(plan.kernel->name, grouped_planes_wgrad<T, kStride, kWarps>,
         LaunchShape{plan.grid, plan.block_threads, plan.smem_bytes}, stream, params);
  if (plan.split > 1) launch_reduce_slices<T>(plan, problem, buffers, stream);
}

template <typename T, int kStride, int kWarps, unsigned kDtypes>
constexpr Launcher grouped_planes_launcher_of() {
  if constexpr ((kDtypes & dtype_bit(kDTypeOf<T>)) != 0) return launch_grouped_planes<T, kStride, kWarps>;
  return nullptr;
}

template <typename T>
Launcher grouped_planes_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define GROUPED_PLANES_KERNEL(name, stride, warps, dtypes) grouped_planes_launcher_of<T, stride, warps, dtypes>(),
#include "fastconv/families/grouped/planes.def"
#undef GROUPED_PLANES_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
