// What the planner and the launcher of the depthwise kernels must agree on.
#pragma once

#include "fastconv/families/depthwise/params.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"
#include "fastconv/tile/tensor_map_spec.h"

namespace fastconv {

Offer depthwise_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

// All but the addresses.
DepthwiseParams depthwise_params(const Plan& plan, const ConvProblem& problem);
// Where rows are staged: what TMA reads.
struct DepthwiseMaps {
  TensorMapSpec source, target;  // the latter of the weight gradient
};
DepthwiseMaps depthwise_maps(const Plan& plan, const ConvProblem& problem);

}  // namespace fastconv
