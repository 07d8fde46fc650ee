#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/launch.h"
#include "fastconv/launch/launchers.h"

namespace fastconv {
namespace {

#define FASTCONV_KERNEL(...) +1
constexpr int kDirectLines = 0
#include "configs/direct.def"
    ;
constexpr int kIm2colLines = 0
#include "configs/im2col.def"
    ;
#undef FASTCONV_KERNEL

template <Pass kPass, typename T>
Launcher launcher_of(int line) {
  if (line < kDirectLines) return direct_launcher<kPass, T>(line);
  return line < kDirectLines + kIm2colLines ? im2col_launcher<kPass, T>(line - kDirectLines) : nullptr;
}

template <Pass kPass>
Launcher launcher_of(DType dtype, int line) {
  switch (dtype) {
    case DType::kFloat32: return launcher_of<kPass, float>(line);
    case DType::kFloat64: return launcher_of<kPass, double>(line);
    case DType::kFloat16: return launcher_of<kPass, __half>(line);
    case DType::kBFloat16: return launcher_of<kPass, __nv_bfloat16>(line);
  }
  return nullptr;
}

Launcher launcher_of(Pass pass, DType dtype, int line) {
  switch (pass) {
    case Pass::kFprop: return launcher_of<Pass::kFprop>(dtype, line);
    case Pass::kDgrad: return launcher_of<Pass::kDgrad>(dtype, line);
    case Pass::kWgrad: return launcher_of<Pass::kWgrad>(dtype, line);
  }
  return nullptr;
}

DeviceSpec query_device(int device_index) {
  auto attribute = [&](cudaDeviceAttr name) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, name, device_index), "cudaDeviceGetAttribute");
    return value;
  };
  DeviceSpec spec;
  spec.is_cuda = true;
  spec.arch = 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
  spec.sm_count = attribute(cudaDevAttrMultiProcessorCount);
  spec.smem_optin_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return spec;
}

}  // namespace

void run_cuda(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, void* stream) {
  const auto line = static_cast<int>(plan.kernel - kernel_table().data());
  const Launcher launcher = launcher_of(plan.kernel->pass, problem.dtype, line);
  if (launcher == nullptr) {
    throw std::runtime_error(std::string("fastconv: ") + plan.kernel->name + " is no CUDA kernel for " +
                             to_string(problem.dtype));
  }
  launcher(plan, problem, buffers, static_cast<cudaStream_t>(stream));
}

int current_cuda_device() {
  int device_index = 0;
  check_cuda(cudaGetDevice(&device_index), "cudaGetDevice");
  return device_index;
}

const DeviceSpec& cuda_device_spec(int device_index) {
  static std::mutex mutex;
  static std::map<int, DeviceSpec> specs;
  const std::lock_guard lock(mutex);
  const auto found = specs.find(device_index);
  return found != specs.end() ? found->second : specs.emplace(device_index, query_device(device_index)).first->second;
}

}  // namespace fastconv
