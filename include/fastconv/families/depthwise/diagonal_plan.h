// What the planner and the launcher of the depthwise kernels with diagonal products must agree on.
#pragma once

#include "fastconv/families/depthwise/diagonal.h"
#include "fastconv/families/depthwise/diagonal_wgrad.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/copies.h"

namespace fastconv {

Offer depthwise_diagonal_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

// All but the addresses.
DepthwiseDiagonalParams depthwise_diagonal_params(const Plan& plan, const ConvProblem& problem);
// Where TMA brings rows.
PixelMaps depthwise_diagonal_maps(const Plan& plan, const ConvProblem& problem);

// Of both: whether the kernel takes groups of so many channels.
const char* diagonal_groups_why_not(const DepthwiseDiagonalConfig& config, const ConvProblem& problem);
// Whether TMA, if the kernel needs it, can move the tensors.
const char* diagonal_boxes_why_not(const DepthwiseDiagonalConfig& config, const ConvProblem& problem);

// What both cost models know: chunks that device memory is read by, 64 bytes.
inline constexpr int64_t kChunksReadTogether = 4;

// The weight gradient.
Offer depthwise_diagonal_wgrad_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);
DiagonalWgradParams depthwise_diagonal_wgrad_params(const Plan& plan, const ConvProblem& problem);
PixelMaps depthwise_diagonal_wgrad_maps(const Plan& plan, const ConvProblem& problem);

}  // namespace fastconv
