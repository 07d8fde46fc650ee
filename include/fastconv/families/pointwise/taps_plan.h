// What the planner and the launcher of the kernels of several taps must agree on.
#pragma once

#include "fastconv/families/pointwise/config.h"
#include "fastconv/families/pointwise/taps.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"
#include "fastconv/tile/split.h"

namespace fastconv {

Offer tap_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

// A strided input gradient is a launch for each phase: pixels that agree modulo the stride see the same taps.
Pair tap_phases(const ConvProblem& problem);
TapParams tap_params(const ConvProblem& problem, OperandForm operands, const TapTiling& tiling, int64_t slices,
                     int32_t phase_h, int32_t phase_w);

// Without addresses; no units of what is read as it lies.
struct TapSplits {
  Split source, other;
};
TapSplits tap_splits(const Plan& plan, const ConvProblem& problem);
inline constexpr int64_t kMostPackBlocks = 2048;

}  // namespace fastconv
