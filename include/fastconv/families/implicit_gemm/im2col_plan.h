// What the planner and the launcher of im2col must agree on.
#pragma once

#include <cstdint>

#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

struct Im2colTiling {
  int64_t pixels;  // whose columns are materialised at a time
};

// The columns matrix is made in blocks of groups x taps x pixels. Sums are kept beside the columns where the reduction
// takes several blocks and the output is too short to add up in, or where slices of a block add up apart.
struct Im2colBlocks {
  int64_t groups, taps, pixels;  // of a block, at most
  int64_t slices;                // of a block's reduction
  bool keep_sums;
  int64_t column_bytes;  // the sums follow
  int64_t workspace_bytes;
  double launches;  // blocks of all the work
};
Im2colBlocks im2col_blocks(const KernelEntry& entry, const ConvProblem& problem);

Offer plan_im2col(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);
void describe_im2col(std::ostream& out, const Plan& plan);

}  // namespace fastconv
