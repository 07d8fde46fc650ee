// The one way kernels are launched.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "fastconv/launch/stream.h"

namespace fastconv {

// Throws what went wrong.
void check_cuda(cudaError_t status, const char* what);

// What is known of a kernel on a device.
struct KernelState {
  int allowed_bytes;  // of dynamic shared memory: 48 KiB unless it has asked for more
  bool follows;       // waits for the kernel before it, see ptx/dependent_launch.cuh
};

// With room for so much shared memory.
KernelState prepare_kernel(const void* kernel, int smem_bytes, const char* name);

struct LaunchShape {
  int64_t grid;
  int threads;
  int smem_bytes = 0;
  unsigned cluster = 1;      // blocks
  bool cooperative = false;  // all blocks run at once, or the launch fails: they wait for each other
};

template <typename... Params, typename... Args>
cudaError_t start(const char* name, void (*kernel)(Params...), const LaunchShape& shape, Stream& stream,
                  Args&&... args) {
  const KernelState state = prepare_kernel(reinterpret_cast<const void*>(kernel), shape.smem_bytes, name);
  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.grid));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.smem_bytes);
  config.stream = stream.handle;
  config.attrs = attributes;
  if (stream.behind_ours && state.follows) {
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
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  stream.behind_ours = stream.behind_ours || status == cudaSuccess;
  return status;
}

template <typename... Params, typename... Args>
void launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape, Stream& stream, Args&&... args) {
  check_cuda(start(name, kernel, shape, stream, std::forward<Args>(args)...), name);
}

// False where the device does not run all blocks at once: a part of it, or one that is shared.
template <typename... Params, typename... Args>
bool launch_together(const char* name, void (*kernel)(Params...), LaunchShape shape, Stream& stream, Args&&... args) {
  shape.cooperative = true;
  const cudaError_t status = start(name, kernel, shape, stream, std::forward<Args>(args)...);
  if (status == cudaErrorCooperativeLaunchTooLarge || status == cudaErrorNotSupported) {
    cudaGetLastError();  // it leaves its error behind for whoever asks next
    return false;
  }
  check_cuda(status, name);
  return true;
}

}  // namespace fastconv
