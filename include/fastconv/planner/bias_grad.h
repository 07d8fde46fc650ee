// The sums of grad_output over all but its channels: in slices, which a second kernel adds up.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"
#include "fastconv/planner/device_spec.h"

namespace fastconv {

// grad_output as rows of `length` units: a whole image where its rows follow each other without gaps, else one row of
// it. A unit is what a thread reads at once: a pixel, or 16 bytes of pixels or of channels.
struct BiasGradParams {
  int64_t channels, units;                         // units: of a channel, or a run of channels
  int64_t rows_per_image, length;                  // units
  int64_t stride_n, stride_c, stride_row, stride;  // elements; the last from unit to unit
  int64_t slices, slice_units;
  int32_t lanes_c;       // of a block's threads: so many have different channels
  bool channels_beside;  // and are neighbours; otherwise those of one channel are
};

inline constexpr int kBiasThreads = 256;
inline constexpr int kBiasUnitBytes = 16;

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
