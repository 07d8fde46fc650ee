// What the planner and the launcher of the weight gradient of narrow groups by planes must agree on.
#pragma once

#include "fastconv/families/grouped/planes.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer grouped_planes_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

// All but the addresses.
GroupedPlanesParams grouped_planes_params(const Plan& plan, const ConvProblem& problem);

}  // namespace fastconv
