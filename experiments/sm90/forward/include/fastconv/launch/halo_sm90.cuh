// Launches one compiled configuration of the halo engine.
#pragma once

#include <cuda_runtime.h>

#include "fastconv/core/buffers.h"
#include "fastconv/kernels/conv_fprop_sm90.cuh"
#include "fastconv/kernels/pack_filter.cuh"
#include "fastconv/planner/halo_sm90.h"

namespace fastconv {

template <typename T, int kBlockK, int kMBlocks, int kChannels, HaloStaging kStaging, FilterTile kFilter>
cudaError_t launch_halo(const HaloPlan& plan, const HaloParams& params, const PackParams& pack,
                        const CUtensorMap& in_map, const CUtensorMap& filter_map, cudaStream_t stream) {
  const auto kernel = conv_fprop_sm90<T, kBlockK, kMBlocks, kChannels, kStaging, kFilter>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448 /* sm_90's limit */);
  if (allowed != cudaSuccess) return allowed;

  if (!params.filter_direct) {
    const int64_t pack_blocks = plan.packed_filter_bytes / (int64_t{kPackRows} * kChannels * 2) /
                                (params.steps_per_filter_tile / params.c_blocks);
    pack_filter<kBlockK, kChannels><<<static_cast<unsigned>(pack_blocks), kPackThreads, 0, stream>>>(params, pack);
  }

  cudaLaunchAttribute early{};  // the filter is packed while this kernel sets up and stages its first halo
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.grid));
  config.blockDim = dim3(HaloThreads<kStaging>::kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(plan.smem_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = params.filter_direct ? 0 : 1;
  return cudaLaunchKernelEx(&config, kernel, params, in_map, filter_map);
}

}  // namespace fastconv
