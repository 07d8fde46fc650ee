// Launches one compiled configuration of the weight gradient: partial sums, then their reduction.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "fastconv/kernels/conv_wgrad_sm90.cuh"
#include "fastconv/kernels/reduce_wgrad.cuh"
#include "fastconv/planner/wgrad_sm90.h"

namespace fastconv {

template <typename T, int kChannels, int kBlocks, int kUnits, int kWarpgroups, WgradStaging kStaging>
cudaError_t launch_wgrad(const WgradPlan& plan, const WgradParams& params, const CUtensorMap& x_map,
                         const CUtensorMap& y_map, cudaStream_t stream) {
  const auto kernel = conv_wgrad_sm90<T, kChannels, kBlocks, kUnits, kWarpgroups, kStaging>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448 /* sm_90's limit */);
  if (allowed != cudaSuccess) return allowed;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {params.cluster.divisor, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.grid));
  config.blockDim = dim3(WgradThreads<kWarpgroups, kStaging>::kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(plan.smem_bytes);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  const cudaError_t launched = cudaLaunchKernelEx(&config, kernel, params, x_map, y_map);
  if (launched != cudaSuccess || params.partials == 1) return launched;

  // Few results of many clusters: several threads share a sum.
  constexpr int kSlots = kUnits * kWarpgroups;
  const int64_t quads = int64_t{params.jobs.divisor} * kSlots * 16 * kChannels * kBlocks;
  int strands = 1;
  while (strands < 8 && strands * 8 < params.partials) strands *= 2;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.gridDim = dim3(static_cast<unsigned>((quads * strands + kReduceThreads - 1) / kReduceThreads));
  config.blockDim = dim3(kReduceThreads);
  config.dynamicSmemBytes = 0;
  config.attrs = &early;
  return cudaLaunchKernelEx(&config, reduce_wgrad<T, kChannels, kBlocks, kSlots>, params, strands);
}

}  // namespace fastconv
