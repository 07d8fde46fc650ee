// What the planner and the launcher of the halo engine must agree on.
#pragma once

#include "fastconv/planner/planner.h"
#include "fastconv/planner/registry.h"
#include "fastconv/tile/halo_params.h"
#include "fastconv/tile/tensor_map_spec.h"

namespace fastconv {

const char* halo_why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);
Plan halo_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

struct HaloLaunch {
  HaloParams params;         // without addresses
  TensorMapSpec in_map;      // c, group, w, h, n; where the copy engine stages the input
  TensorMapSpec filter_map;  // c, s, r, k, group; where params.filter_direct
};
HaloLaunch halo_launch(const Plan& plan, const ConvProblem& problem);

}  // namespace fastconv
