// What families estimate times with. Only compared between kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastconv/planner/device_spec.h"

namespace fastconv {

inline constexpr double kCyclesPerUs = 1600;         // an H200's clock under load, 1.98 GHz at most; others are near
inline constexpr double kTensorCyclesPerUs = 1755;   // its clock as the tensor-core families count
inline constexpr double kBytesPerUsPerSm = 25e3;     // 3.3 TB/s over 132, reached by mixed reads and writes
inline constexpr double kLaunchUs = 4;               // a kernel's start and drain on an idle stream
inline constexpr int32_t kReservedSmemBytes = 1024;  // of an SM, a block, besides what it asks for

// Blocks of an SM.
inline int64_t resident_blocks(int64_t smem, const DeviceSpec& device, int64_t at_most) {
  return std::min((device.smem_optin_bytes + kReservedSmemBytes) / (smem + kReservedSmemBytes), at_most);
}

}  // namespace fastconv
