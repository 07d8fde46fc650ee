// What the planner and the launcher of the depthwise kernels along one dimension must agree on.
#pragma once

#include "fastconv/families/depthwise/sequence.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer depthwise_sequence_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

// All but the addresses.
DepthwiseSequenceParams depthwise_sequence_params(const Plan& plan, const ConvProblem& problem);

}  // namespace fastconv
