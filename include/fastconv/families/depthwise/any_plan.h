// What the planner and the launcher of the depthwise kernels for any filter must agree on.
#pragma once

#include "fastconv/families/depthwise/any.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer depthwise_any_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

// All but the addresses.
DepthwiseAnyParams depthwise_any_params(const DepthwiseAnyConfig& config, const ConvProblem& problem,
                                        const DepthwiseAnyTiling& tiling, int64_t split);

}  // namespace fastconv
