// What the planner and the launcher of the weight gradient of images of few channels, 16 bits, must agree on.
#pragma once

#include "fastconv/families/few_channels/quads_wgrad.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer quads_wgrad_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

QuadsWgradParams quads_wgrad_params(const QuadsWgradConfig& config, const ConvProblem& problem,
                                    const QuadsTiling& tiling);

}  // namespace fastconv
