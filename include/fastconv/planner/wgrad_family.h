// What the planner and the launcher of the sm_90a weight gradient must agree on.
#pragma once

#include "fastconv/planner/planner.h"
#include "fastconv/planner/registry.h"
#include "fastconv/tile/tensor_map_spec.h"
#include "fastconv/tile/wgrad_params.h"

namespace fastconv {

const char* wgrad_why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);
Plan wgrad_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

struct WgradLaunch {
  WgradParams params;          // without addresses
  TensorMapSpec x_map, y_map;  // c, group, w, h, n; where the copy engine reads the operand
};
WgradLaunch wgrad_launch(const Plan& plan, const ConvProblem& problem);

}  // namespace fastconv
