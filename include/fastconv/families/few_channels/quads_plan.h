// What the planner and the launcher of the kernels that stage images of few channels as quads must agree on.
#pragma once

#include "fastconv/families/few_channels/quads.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer quads_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

QuadsParams quads_params(const QuadsConfig& config, const ConvProblem& problem, const QuadsTiling& tiling);

}  // namespace fastconv
