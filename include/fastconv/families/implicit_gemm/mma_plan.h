// Planner of the tiled kernels on tensor cores.
#pragma once

#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer plan_mma(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

}  // namespace fastconv
