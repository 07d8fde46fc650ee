// What the planner and the launcher of the kernels for patch embeddings must agree on.
#pragma once

#include "fastconv/families/few_channels/embed.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

Offer embed_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

EmbedParams embed_params(const EmbedConfig& config, const ConvProblem& problem, const EmbedTiling& tiling);

}  // namespace fastconv
