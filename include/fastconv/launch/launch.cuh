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

template <typename... Params, typename... Args>
void launch(const char* name, void (*kernel)(Params...), int64_t grid, int threads, int smem_bytes, cudaStream_t stream,
            Args&&... args) {
  allow_shared_memory(reinterpret_cast<const void*>(kernel), smem_bytes, name);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(smem_bytes);
  config.stream = stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

}  // namespace fastconv
