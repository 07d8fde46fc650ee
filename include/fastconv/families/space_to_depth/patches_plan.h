// Convolutions whose filters are as large as their strides: patches are written anew, and another kernel multiplies.
#pragma once

#include <cstdint>

#include "fastconv/families/space_to_depth/moves.h"
#include "fastconv/families/space_to_depth/patches.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer patches_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

// How patches are moved, from x to the workspace or, of an input gradient, from there to x.
Patches make_patches(const PatchesConfig& config, const ConvProblem& problem);
// What they take up at the beginning of the workspace; the inner plan's follows.
int64_t patches_bytes(const PatchesConfig& config, const ConvProblem& problem);

}  // namespace fastconv
