// Kernels that multiply float32 tensors as fp16, scaled: which tensors they can have, and what computes instead where
// one scale does not fit a tensor. That shows on the device alone, so that a plan has both kernels, and one that
// measures; see core/operand_range.h.
#pragma once

#include <algorithm>
#include <optional>

#include "fastconv/core/operand_range.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

inline bool is_scaled(const KernelEntry& entry) { return entry.scaled_parts > 0; }
// Sums of so few that two parts would be less exact than multiply-adds.
bool has_few_products(const ConvProblem& problem);
// Null if the problem's precision is that of so many fp16 parts.
const char* scaled_parts_why_not(int parts, const ConvProblem& problem);
// The same of images of few channels, whose tiles are scaled one by one as they are staged.
const char* tile_scaled_why_not(int parts, const ConvProblem& problem);
// Null if also the problem's tensors can be measured for a scaled kernel.
const char* scaled_why_not(const KernelEntry& entry, const ConvProblem& problem);
// With the time of what is measured first and of the other kernel's launch, if the plan's kernel scales.
Plan measured(Plan plan, const ConvProblem& problem, const DeviceSpec& device);

// The workspace begins with what is measured: an OperandRange, then TensorRanges of each tensor's blocks.
inline constexpr int64_t kMaxRangeBlocks = 512, kRangesAt = 256;
inline constexpr int64_t kRangeBytes = kRangesAt + 2 * kMaxRangeBlocks * int64_t{sizeof(TensorRange)};
static_assert(sizeof(OperandRange) <= kRangesAt && kRangeBytes % 256 == 0);
// What a kernel's own workspace may take.
inline int64_t workspace_room(const ConvProblem& problem, const DeviceSpec& device, bool scaled) {
  return std::min(max_workspace_bytes(problem), device.workspace_bytes) - (scaled ? kRangeBytes : 0);
}
inline int64_t range_blocks(const DeviceSpec& device) {
  return std::min<int64_t>(2 * device.sm_count, kMaxRangeBlocks);
}

// Values of the two tensors that are read: first the input's, or dy's, of the input gradient; then the other's.
struct ReadTensor {
  int64_t values;
  bool dense;  // they are all that lies there, from a multiple of 16 bytes to another
};
struct ReadTensors {
  ReadTensor first, second;
};
ReadTensors read_tensors(const ConvProblem& problem);

// The best plan for numbers that do not fit, if there is any.
std::optional<Plan> plan_for_others(const ConvProblem& problem, const DeviceSpec& device);
// `plan`, of a scaled kernel, and `others` as one.
Plan paired(Plan plan, const Plan& others);

}  // namespace fastconv
