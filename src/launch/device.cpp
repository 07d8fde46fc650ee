#include <cuda_runtime_api.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/launch.h"
#include "fastconv/planner/gpus.h"

namespace fastconv {
namespace {

DeviceSpec query_device(int device_index) {
  int driver = 0;
  check_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  if (const std::string reason = why_not_with_driver(CUDART_VERSION, driver); !reason.empty()) {
    throw std::runtime_error("fastconv: " + reason);
  }
  auto attribute = [&](cudaDeviceAttr name) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, name, device_index), "cudaDeviceGetAttribute");
    return value;
  };
  DeviceSpec spec;
  spec.is_cuda = true;
  spec.arch = 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
  const std::string capability = std::to_string(spec.arch / 10) + "." + std::to_string(spec.arch % 10);
  spec.arch = arch_of_code(FASTCONV_CUDA_ARCHS, spec.arch);
  if (spec.arch == 0) {
    throw std::runtime_error("fastconv: the kernels are compiled for " FASTCONV_CUDA_ARCHS ", and this device is " +
                             capability + ": build with TORCH_CUDA_ARCH_LIST=" + capability);
  }
  spec.sm_count = attribute(cudaDevAttrMultiProcessorCount);
  spec.smem_optin_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  spec.l2_bytes = attribute(cudaDevAttrL2CacheSize);
  // Drivers of parts of a GPU may not tell its clocks. Memory moves two words a clock.
  const double khz = attribute(cudaDevAttrClockRate), memory_khz = attribute(cudaDevAttrMemoryClockRate);
  if (khz > 0) spec.clock_mhz = khz / 1e3;
  if (memory_khz > 0) spec.memory_gbps = memory_khz * attribute(cudaDevAttrGlobalMemoryBusWidth) / 4e6;
  const char* asked = std::getenv("FASTCONV_ARCH");
  if (asked == nullptr || *asked == '\0') return spec;
  const std::string what = "fastconv: FASTCONV_ARCH";
  return acting_as(spec, gpu_of(asked, what), what);
}

}  // namespace

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
