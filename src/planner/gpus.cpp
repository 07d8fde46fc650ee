#include "fastconv/planner/gpus.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace fastconv {
namespace {

constexpr DeviceSpec gpu(int arch, int sm_count, int smem_kib, double clock_mhz, double memory_gbps, int l2_mib) {
  return {true, arch, sm_count, int64_t{smem_kib} << 10, clock_mhz, memory_gbps, int64_t{l2_mib} << 20};
}

constexpr Gpu kGpus[] = {
    {"v100", gpu(70, 80, 96, 1530, 900, 6)},        {"t4", gpu(75, 40, 64, 1590, 320, 4)},
    {"a100", gpu(80, 108, 163, 1410, 1555, 40)},    {"a10", gpu(86, 72, 99, 1695, 600, 6)},
    {"rtx3090", gpu(86, 82, 99, 1695, 936, 6)},     {"l4", gpu(89, 58, 99, 2040, 300, 48)},
    {"rtx4090", gpu(89, 128, 99, 2520, 1008, 72)},  {"h200", gpu(90, 132, 227, 1980, 4917, 60)},
    {"h100", gpu(90, 132, 227, 1980, 3352, 50)},    {"b200", gpu(100, 148, 227, 1965, 8000, 126)},
    {"rtx5090", gpu(120, 170, 99, 2407, 1792, 96)},
};

}  // namespace

std::span<const Gpu> known_gpus() { return kGpus; }

const DeviceSpec& gpu_of(std::string_view name_or_arch, const std::string& what) {
  const auto* found = std::find_if(std::begin(kGpus), std::end(kGpus), [&](const Gpu& known) {
    return name_or_arch == known.name || name_or_arch == std::to_string(known.spec.arch);
  });
  if (found != std::end(kGpus)) return found->spec;
  std::string message = what + " must be a GPU or its compute capability times 10:";
  for (const Gpu& known : kGpus) {
    message += std::string(&known == kGpus ? " " : ", ") + known.name + " (" + std::to_string(known.spec.arch) + ")";
  }
  throw std::runtime_error(message + "; but got '" + std::string(name_or_arch) + "'");
}

DeviceSpec acting_as(const DeviceSpec& device, const DeviceSpec& other, const std::string& what) {
  if (other.arch > device.arch) {
    throw std::runtime_error(what + " asks for kernels of compute capability " + std::to_string(other.arch / 10) + "." +
                             std::to_string(other.arch % 10) + ", which do not run on this device of " +
                             std::to_string(device.arch / 10) + "." + std::to_string(device.arch % 10));
  }
  DeviceSpec acting = other;
  acting.sm_count = std::min(other.sm_count, device.sm_count);
  acting.smem_optin_bytes = std::min(other.smem_optin_bytes, device.smem_optin_bytes);
  return acting;
}

}  // namespace fastconv
