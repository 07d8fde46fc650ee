// Planner of the tiled kernels on tensor cores.
#pragma once

#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

const char* mma_why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);
Plan mma_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

}  // namespace fastconv
