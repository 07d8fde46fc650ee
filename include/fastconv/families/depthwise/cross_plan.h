// What the planner and the launcher of the depthwise weight gradient by products of rows must agree on.
#pragma once

#include "fastconv/families/depthwise/cross.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"
#include "fastconv/tile/copies.h"

namespace fastconv {

Offer depthwise_cross_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

// All but the addresses.
DepthwiseCrossParams depthwise_cross_params(const Plan& plan, const ConvProblem& problem);
PixelMaps depthwise_cross_maps(const Plan& plan, const ConvProblem& problem);

}  // namespace fastconv
