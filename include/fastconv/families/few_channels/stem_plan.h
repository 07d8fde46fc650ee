// What the planner and the launcher of the kernels for images of few channels must agree on.
#pragma once

#include <cstdint>

#include "fastconv/families/few_channels/stem_walk.cuh"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer stem_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

StemParams stem_params(const StemConfig& config, const ConvProblem& problem, const StemTiling& tiling);

// Weight gradient: the sums of several walkers are added by a second kernel.
Offer stem_wgrad_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

StemWgradParams stem_wgrad_params(const StemConfig& config, const ConvProblem& problem, const StemTiling& tiling);

}  // namespace fastconv
