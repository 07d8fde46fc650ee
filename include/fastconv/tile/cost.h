#pragma once

#include <algorithm>

#include "fastconv/core/problem.h"
#include "fastconv/planner/cost.h"

namespace fastconv::cost {
#include "fastconv/tile/costs.def"
}

namespace fastconv {

// Of a strided input gradient whose phases are written one after the other. Neighbours in a row are of different
// phases: each reads a sector again and writes it, where L2 does not hold the whole gradient.
inline double phase_bytes(const ConvProblem& problem, const DeviceSpec& device) {
  constexpr int64_t kSectorBytes = 32;
  const double bytes =
      double(problem.n) * double(problem.c * problem.h) * double(problem.w * element_size(problem.dtype));
  if (problem.pass != Pass::kDgrad || problem.x_strides.w != 1 || bytes <= double(device.l2_bytes)) return 0;
  const int64_t phases = std::min(problem.stride.w, kSectorBytes / element_size(problem.dtype));
  return 2 * bytes * double(phases - 1);
}

}  // namespace fastconv
