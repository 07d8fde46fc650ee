// What was chosen for a problem: the kernel, and everything about the launch that depends on sizes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iosfwd>
#include <vector>

#include "fastconv/core/problem.h"
#include "fastconv/planner/opaque.h"

namespace fastconv {

struct KernelEntry;
struct InnerPlan;

struct Plan {
  const KernelEntry* kernel = nullptr;
  Precision precision{};  // of float32 products: the problem's, or what was chosen where that allows TF32
  int64_t grid = 0;       // blocks, one-dimensional: kernels unfold the index themselves
  int32_t block_threads = 0;
  int32_t smem_bytes = 0;
  int64_t first_grid = 0;       // of a cooperative launch, which comes first: so many of the blocks, if not 0
  int64_t split = 1;            // parts a reduction is cut into, added in fixed order
  int64_t workspace_bytes = 0;  // at most max_workspace_bytes()
  double cost_us = 0;           // model's estimate; compared between kernels only
  Opaque<48> tiling;            // the family's own
  // None or one of each. NOTES: pointers would do, but every kernel's file would have to read <memory>.
  std::vector<InnerPlan> inner;  // what computes with the tensors that the kernel writes
  std::vector<Plan> others;      // of the same problem, for numbers that the kernel does not take: scaled.h
};
// The convolution that is left where a plan rewrites tensors, with its plan.
struct InnerPlan {
  ConvProblem problem;
  Plan plan;
};
std::ostream& operator<<(std::ostream& out, const Plan& plan);

inline constexpr int64_t kMaxWorkspaceBytes = int64_t{256} << 20;
// The same, or a quarter more than input, weight and output take if that is more: tensors may be written anew, and sums
// of slices beside them. Those of float32 may be written as parts, which takes up to twice as much.
inline int64_t max_workspace_bytes(const ConvProblem& problem) {
  const double most = compulsory_bytes(problem) * (problem.dtype == DType::kFloat32 ? 2 : 1.25);
  return std::max(kMaxWorkspaceBytes, static_cast<int64_t>(std::min(most, 0x1p62)));
}

}  // namespace fastconv
