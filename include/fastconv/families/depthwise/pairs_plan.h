// What the planner and the launcher of the depthwise kernels with products of pairs of channels must agree on.
#pragma once

#include "fastconv/families/depthwise/pairs.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"
#include "fastconv/tile/copies.h"

namespace fastconv {

// What kernels of wide filters ask for to which TMA brings boxes of pixels, channels side by side. They are
// compiled for `taps` rows and columns, or one fewer of either or both.
const char* wide_pixels_why_not(int32_t taps, int32_t stride, const ConvProblem& problem);

Offer depthwise_pairs_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

// All but the addresses.
DepthwisePairsParams depthwise_pairs_params(const Plan& plan, const ConvProblem& problem);
PixelMaps depthwise_pairs_maps(const Plan& plan, const ConvProblem& problem);

}  // namespace fastconv
