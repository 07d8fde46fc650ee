// From what families count to microseconds, which are only compared between kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "fastconv/planner/device_spec.h"

// A line of a costs.def: FASTCONV_COST(group, name, value), or values of an array.
#ifdef FASTCONV_FIT  // in the tests' module, where bench.fit varies them
#include <string>
#include <vector>

namespace fastconv {
struct FittedCost {
  std::string name;  // as "group.name"
  double* values;
  int count;
};
inline std::vector<FittedCost>& fitted_costs() {
  static std::vector<FittedCost> all;
  return all;
}
inline bool fit(const char* name, double* values, int count = 1) {
  fitted_costs().push_back({name, values, count});
  return true;
}
}  // namespace fastconv
#define FASTCONV_COST(group, name, value)                                      \
  namespace group {                                                            \
  inline double name = value;                                                  \
  inline const bool name##_is_listed = fastconv::fit(#group "." #name, &name); \
  }
#define FASTCONV_COSTS(group, name, ...)                                                       \
  namespace group {                                                                            \
  inline double name[] = {__VA_ARGS__};                                                        \
  inline const bool name##_is_listed = fastconv::fit(#group "." #name, name, std::size(name)); \
  }
#else
#define FASTCONV_COST(group, name, value) \
  namespace group {                       \
  inline constexpr double name = value;   \
  }
#define FASTCONV_COSTS(group, name, ...)          \
  namespace group {                               \
  inline constexpr double name[] = {__VA_ARGS__}; \
  }
#endif

namespace fastconv {
namespace cost {
#include "fastconv/planner/costs.def"
}
using cost::device::kLaunchUs;

inline constexpr int32_t kReservedSmemBytes = 1024;  // of an SM, a block, besides what it asks for

// Blocks of an SM.
inline int64_t resident_blocks(int64_t smem, const DeviceSpec& device, int64_t at_most) {
  return std::min((device.smem_optin_bytes + kReservedSmemBytes) / (smem + kReservedSmemBytes), at_most);
}

// What a kernel takes of a device.
struct Workload {
  double clocks = 0;   // of the SM that is busy longest
  double bytes = 0;    // that pass through device memory
  double shown = 0;    // of the one that takes less time, the share that the other does not hide
  bool fades = false;  // that share falls with the cube of their ratio
  double us = 0;       // that pass on any device: launches, and what waits for them
};

// By the clocks and the memory that kernels find under load.
inline double compute_us(double clocks, const DeviceSpec& device) {
  return clocks / (cost::device::kClock * device.clock_mhz);
}
inline double memory_us(double bytes, const DeviceSpec& device) {
  return bytes / (cost::device::kMemory * 1e3 * device.memory_gbps);
}
// Clocks of an SM that waits for its own bytes while all others do.
inline double wait_clocks(double bytes, const DeviceSpec& device) {
  return device.sm_count * memory_us(bytes, device) * cost::device::kClock * device.clock_mhz;
}

inline double time_us(const Workload& work, const DeviceSpec& device) {
  const double compute = compute_us(work.clocks, device), memory = memory_us(work.bytes, device);
  const double more = std::max(compute, memory), less = std::min(compute, memory);
  const double ratio = more > 0 ? less / more : 0;
  return work.us + more + work.shown * less * (work.fades ? ratio * ratio * ratio : 1);
}

}  // namespace fastconv
