// What the planner and the launcher of the sm_90a weight gradient must agree on.
#pragma once

#include "fastconv/families/wgrad/params.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"
#include "fastconv/tile/tensor_map_spec.h"

namespace fastconv {

Offer wgrad_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

struct WgradLaunch {
  WgradParams params;  // without addresses
  // Where TMA reads the operand: c, group, w, h, n; rows of pixels: w, c, group, h, n.
  TensorMapSpec x_map;
  int32_t y_maps = 0;  // one, or one for each phase of its rows
  TensorMapSpec y_map[kMaxTensorMaps];
  TensorMapSpec x_planes{}, y_planes{};                       // of reordered operands
  int64_t y_offset = 0, done_offset = 0, partial_offset = 0;  // of the workspace
};
WgradLaunch wgrad_launch(const Plan& plan, const ConvProblem& problem);

}  // namespace fastconv
