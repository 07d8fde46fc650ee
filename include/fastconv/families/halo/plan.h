// What the planner and the launcher of the halo engine must agree on.
#pragma once

#include "fastconv/families/halo/params.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"
#include "fastconv/tile/fold.h"
#include "fastconv/tile/tensor_map_spec.h"

namespace fastconv {

Offer halo_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

struct HaloLaunch {
  HaloParams params;  // without addresses
  int in_maps;        // how many there are
  // kTma: c, group, w, h, n. kPlanes: w, c, group, h, n. kTransposed: pixel, c, group, n, one map a phase of planes;
  // kFloats likewise, one map.
  TensorMapSpec in_map[kMaxTensorMaps];
  TensorMapSpec filter_map;  // c, s, r, k, group; where params.filter_direct
  DType in_values, operand;  // of the input's maps and of the filter's; groups are those of all parts, see split.h
  Fold fold;                 // kFolded
  // The workspace: filter, input and output.
  int64_t in_offset, out_offset, sums_offset;
  TensorMapSpec planes, out_planes;  // of a reordered input and output
};
HaloLaunch halo_launch(const Plan& plan, const ConvProblem& problem);

}  // namespace fastconv
