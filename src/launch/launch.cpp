#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "fastconv/launch/launch.cuh"

namespace fastconv {

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a refused launch leaves its error behind for whoever asks next
  throw std::runtime_error(std::string("fastconv: ") + what + ": " + cudaGetErrorString(status));
}

KernelState prepare_kernel(const void* kernel, int smem_bytes, const char* name) {
  constexpr int kDefaultBytes = 48 * 1024, kFollowing = 90;
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, KernelState> states;
  int device = 0;
  check_cuda(cudaGetDevice(&device), name);
  const std::lock_guard lock(mutex);
  auto found = states.find({kernel, device});
  if (found == states.end()) {
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), name);
    const bool follows = attributes.ptxVersion >= kFollowing;  // what it was compiled for, wherever it runs
    found = states.emplace(std::pair{kernel, device}, KernelState{kDefaultBytes, follows}).first;
  }
  KernelState& state = found->second;
  if (smem_bytes > state.allowed_bytes) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes), name);
    state.allowed_bytes = smem_bytes;
  }
  return state;
}

}  // namespace fastconv
