// The one way kernels are launched.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace fastconv {

inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a refused launch leaves its error behind for whoever asks next
  throw std::runtime_error(std::string("fastconv: ") + what + ": " + cudaGetErrorString(status));
}

// Blocks have at most 48 KiB of dynamic shared memory unless their kernel has asked for more, on each device.
inline void allow_shared_memory(const void* kernel, int smem_bytes, const char* name) {
  constexpr int kDefaultBytes = 48 * 1024;
  if (smem_bytes <= kDefaultBytes) return;
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int> allowed_bytes;
  int device = 0;
  check_cuda(cudaGetDevice(&device), name);
  const std::lock_guard lock(mutex);
  int& allowed = allowed_bytes[{kernel, device}];
  if (smem_bytes <= allowed) return;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes), name);
  allowed = smem_bytes;
}

struct LaunchShape {
  int64_t grid;
  int threads;
  int smem_bytes = 0;
  // Starts as soon as the kernel before it allows; it waits for that kernel's results itself (griddepcontrol).
  bool early = false;
  unsigned cluster = 1;      // blocks
  bool cooperative = false;  // all blocks run at once, or the launch fails: they wait for each other
};

template <typename... Params, typename... Args>
void launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream,
            Args&&... args) {
  allow_shared_memory(reinterpret_cast<const void*>(kernel), shape.smem_bytes, name);
  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.grid));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.smem_bytes);
  config.stream = stream;
  config.attrs = attributes;
  if (shape.early) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {shape.cluster, 1, 1};
  }
  if (shape.cooperative) {
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs++].val.cooperative = 1;
  }
  check_cuda(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

}  // namespace fastconv
