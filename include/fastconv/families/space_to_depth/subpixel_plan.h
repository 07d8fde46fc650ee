// Convolutions of few filters and input gradients of few channels: blocks of outputs become pixels of many channels,
// and another kernel computes those.
#pragma once

#include <cstdint>

#include "fastconv/families/space_to_depth/moves.h"
#include "fastconv/families/space_to_depth/subpixel.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer subpixel_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

struct SubpixelLaunch {
  ConvProblem inner;
  SubpixelFilter filter;
  Patches blocks;
  int64_t bias_offset, blocks_offset, inner_offset;  // of the workspace, which begins with the filter; bytes
};
// Only where why_not is null.
SubpixelLaunch make_subpixel(const SubpixelConfig& config, const ConvProblem& problem);

}  // namespace fastconv
