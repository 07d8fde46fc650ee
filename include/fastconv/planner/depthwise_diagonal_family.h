// What the planner and the launcher of the depthwise kernels with diagonal products must agree on.
#pragma once

#include "fastconv/planner/planner.h"
#include "fastconv/planner/registry.h"
#include "fastconv/tile/depthwise_diagonal.h"
#include "fastconv/tile/depthwise_diagonal_wgrad.h"

namespace fastconv {

const char* depthwise_diagonal_why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);
Plan depthwise_diagonal_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

// All but the addresses.
DepthwiseDiagonalParams depthwise_diagonal_params(const Plan& plan, const ConvProblem& problem);

// The weight gradient.
const char* depthwise_diagonal_wgrad_why_not(const KernelEntry& entry, const ConvProblem& problem,
                                             const DeviceSpec& device);
Plan depthwise_diagonal_wgrad_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);
DiagonalWgradParams depthwise_diagonal_wgrad_params(const Plan& plan, const ConvProblem& problem);

}  // namespace fastconv
