// Into how many slices the depth of a product is cut, and how many stages a block's ring has.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastconv/core/integers.h"
#include "fastconv/families/pointwise/config.h"
#include "fastconv/planner/cost.h"
#include "fastconv/planner/device_spec.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

inline constexpr int64_t kMaxPointwiseSlices = 4096;
// Tensor cores truncate what they add to, so that a sum is of so many steps at most (docs/precision.md).
inline constexpr int64_t kMaxPointwiseChainBytes = 1024 * kPointwiseStepBytes;
inline constexpr int64_t kMaxPointwiseBlocks = INT32_MAX / 2;

// Turing's tensor cores multiply float16 alone.
inline const char* type_why_not(const ConvProblem& problem, const DeviceSpec& device) {
  return kSm80.includes(device.arch) || problem.dtype == DType::kFloat16 ? nullptr : kSm80.why_not;
}

// Of `blocks`: deep where each has an SM to itself, else as many as leave room for a second one, or for one.
// smem_bytes: of a ring of so many stages.
template <typename F>
int stages_of(const PointwiseTile& tile, int64_t blocks, const DeviceSpec& device, F&& smem_bytes) {
  if (blocks <= device.sm_count && smem_bytes(tile.deep_stages()) <= device.smem_optin_bytes) return tile.deep_stages();
  for (const int64_t resident : {2, 1}) {
    for (int stages = tile.stages(); stages >= tile.least_stages(); --stages) {
      if (resident_blocks(smem_bytes(stages), device, resident) >= resident) return stages;
    }
  }
  return tile.least_stages();
}

// Clocks of a block if others hide its latencies, and if none do.
struct BlockClocks {
  double busy, alone;
};
// Of the multiprocessor with the most of so many blocks, of which it has `resident` at once.
inline double clocks_of_blocks(const BlockClocks& block, int64_t blocks, int64_t resident, const DeviceSpec& device) {
  const int64_t most = ceil_div(blocks, int64_t{device.sm_count}), rest = most % resident;
  const auto at_once = [&](int64_t count) { return std::max(block.alone, static_cast<double>(count) * block.busy); };
  return static_cast<double>(most / resident) * at_once(resident) + (rest > 0 ? at_once(rest) : 0);
}

// The cheapest of plans of `least` to `most` slices that fit, or that of `least`, whether it does or not.
template <typename F>
Plan best_of_slices(int64_t tiles, int64_t least, int64_t most, const DeviceSpec& device, F&& plan_of_slices) {
  constexpr int64_t kMostRounds = 6;  // of a block an SM
  Plan best = plan_of_slices(least);
  for (int64_t rounds = 1; rounds <= kMostRounds; ++rounds) {
    const int64_t slices = std::min(most, rounds * device.sm_count / std::max<int64_t>(1, tiles));
    if (slices <= least) continue;
    Plan plan = plan_of_slices(slices);
    if (plan.smem_bytes <= device.smem_optin_bytes && plan.cost_us < best.cost_us) best = plan;
  }
  return best;
}

}  // namespace fastconv
