// What the planner and the launcher of the kernels for narrow groups must agree on.
#pragma once

#include <cstdint>

#include "fastconv/families/grouped/walk.cuh"
#include "fastconv/families/grouped/wgrad_walk.cuh"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer grouped_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

GroupedParams grouped_params(const GroupedConfig& config, const ConvProblem& problem, const GroupedTiling& tiling);

// Weight gradient. `parts`: of the pixels, added by a second kernel if there are several.
Offer grouped_wgrad_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

GroupedWgradParams grouped_wgrad_params(const GroupedConfig& config, const ConvProblem& problem,
                                        const GroupedTiling& tiling, int64_t parts);

}  // namespace fastconv
