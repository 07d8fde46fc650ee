#pragma once

#include "fastconv/planner/cost.h"

namespace fastconv::cost {
#include "fastconv/families/depthwise/costs.def"
}

namespace fastconv {

// Until a kernel that begins after `launch_us` has added up slices, a thread each of its sums.
inline double slices_us(int64_t slices, double launch_us, const DeviceSpec& device) {
  return launch_us + compute_us(cost::depthwise::kSliceClocks * static_cast<double>(slices), device);
}

}  // namespace fastconv
