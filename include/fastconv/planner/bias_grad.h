// The sums of grad_output over all but its channels: in slices, which a second kernel adds up.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"
#include "fastconv/planner/device_spec.h"
#include "fastconv/tile/bias_grad.h"

namespace fastconv {

struct BiasGradPlan {
  BiasGradParams params;
  bool across, along;  // units are several channels, or pixels
  int64_t channel_blocks;
  int64_t workspace_bytes;  // at most max_workspace_bytes()

  int64_t grid() const { return params.slices * channel_blocks; }
};
// Of a problem with channels, whose y is grad_output.
BiasGradPlan plan_bias_grad(const ConvProblem& problem, const DeviceSpec& device);

}  // namespace fastconv
