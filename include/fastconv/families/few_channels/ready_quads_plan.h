// What the planner and the launcher of the kernels for images that consist of quads must agree on.
#pragma once

#include "fastconv/families/few_channels/ready_quads.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer ready_quads_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

// Of a tiling only the pixels of a block matter, tile_q.
ReadyQuadsParams ready_quads_params(const ConvProblem& problem, const QuadsTiling& tiling);

}  // namespace fastconv
