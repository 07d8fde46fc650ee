// What the planner and the launcher of the pointwise kernels must agree on.
#pragma once

#include "fastconv/families/pointwise/config.h"
#include "fastconv/families/pointwise/params.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer pointwise_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

PointwiseParams pointwise_params(const ConvProblem& problem, const PointwiseTiling& tiling, int64_t slices);

}  // namespace fastconv
