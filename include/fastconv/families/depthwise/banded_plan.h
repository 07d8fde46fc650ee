// What the planner and the launcher of the banded depthwise kernels must agree on.
#pragma once

#include "fastconv/families/depthwise/banded.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer depthwise_banded_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

// All but the addresses.
DepthwiseBandedParams depthwise_banded_params(const Plan& plan, const ConvProblem& problem);

}  // namespace fastconv
