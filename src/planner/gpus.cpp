#include "fastconv/planner/gpus.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <stdexcept>

#include "fastconv/planner/registry.h"

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

std::string dotted(int tens) { return std::to_string(tens / 10) + "." + std::to_string(tens % 10); }

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

SmRates sm_rates(int arch) {
  switch (arch) {
    case 70:
    case 75: return {64, 512};
    case 80: return {64, 1024};
    case 86:
    case 87:
    case 89:
    case 120:
    case 121: return {128, 512};
    default: return {128, 1024};
  }
}

DeviceSpec acting_as(const DeviceSpec& device, const DeviceSpec& other, const std::string& what) {
  if (other.arch > device.arch || (kSm90a.includes(other.arch) && !kSm90a.includes(device.arch))) {
    throw std::runtime_error(what + " asks for kernels of compute capability " + dotted(other.arch) +
                             ", which do not run on this device of " + dotted(device.arch));
  }
  DeviceSpec acting = other;
  acting.sm_count = std::min(other.sm_count, device.sm_count);
  acting.smem_optin_bytes = std::min(other.smem_optin_bytes, device.smem_optin_bytes);
  return acting;
}

int arch_of_code(std::string_view archs, int arch) {
  int newest = 0;
  bool own_features = false;
  for (size_t at = 0; at < archs.size(); ++at) {
    if (!std::isdigit(static_cast<unsigned char>(archs[at]))) continue;
    const size_t end = std::min(archs.find_first_of("; ,", at), archs.size());
    const std::string_view entry = archs.substr(at, end - at);
    at = end;
    int compiled = 0;
    for (const char c : entry.substr(0, entry.find_first_not_of("0123456789."))) {
      if (c != '.') compiled = 10 * compiled + (c - '0');
    }
    const bool own = entry.find('a') < entry.find_first_of("+-");
    const bool of_cmake = entry.find('.') == std::string_view::npos;  // "80" is both kinds of code
    const bool ptx = entry.ends_with("PTX") || (of_cmake && !own && !entry.ends_with("-real"));
    const bool follows = !own && compiled < arch && (ptx || compiled / 10 == arch / 10);
    if (compiled != arch && !follows) continue;
    newest = std::max(newest, compiled);
    own_features = own_features || own;
  }
  if (newest < kSm80.least) return newest;
  return kSm90a.includes(arch) && !own_features ? kSm90a.least - 1 : arch;
}

int oldest_driver(int runtime_version) { return runtime_version >= 13000 ? 580 : runtime_version >= 12000 ? 525 : 450; }

std::string why_not_with_driver(int runtime_version, int driver_version) {
  const auto dotted_cuda = [](int version) { return dotted(version / 1000 * 10 + version % 1000 / 10); };
  if (driver_version / 1000 >= runtime_version / 1000) return "";
  const bool other_build = runtime_version >= 13000 && driver_version >= 12000;
  return "this build for CUDA " + dotted_cuda(runtime_version) + " needs an NVIDIA driver from " +
         std::to_string(oldest_driver(runtime_version)) + " on, and the one here is for CUDA " +
         dotted_cuda(driver_version) + ": update it" + (other_build ? ", or install fastconv's build for CUDA 12" : "");
}

}  // namespace fastconv
