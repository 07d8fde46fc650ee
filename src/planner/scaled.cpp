#include "fastconv/planner/scaled.h"

#include <algorithm>
#include <array>
#include <utility>

#include "fastconv/core/integers.h"
#include "fastconv/planner/cost.h"
#include "fastconv/planner/planner.h"
#include "fastconv/planner/sides.h"

namespace fastconv {
namespace {

using Dimension = std::pair<int64_t, int64_t>;  // stride, size

ReadTensor read_tensor(const std::array<int64_t, 4>& sizes, const Strides& strides, int32_t align) {
  constexpr int64_t kQuad = 4;
  std::array<Dimension, 4> dimensions{
      {{strides.n, sizes[0]}, {strides.c, sizes[1]}, {strides.h, sizes[2]}, {strides.w, sizes[3]}}};
  std::sort(dimensions.begin(), dimensions.end());
  int64_t values = 1;
  bool dense = align >= 16;
  for (const auto& [stride, size] : dimensions) {
    dense = dense && (size == 1 || stride == values);
    values *= size;
  }
  return {values, dense && values % kQuad == 0};
}

// Two parts have 23 bits of a number, float32 has 24: that is 8e-8 of a product, which sums of multiply-adds lose from
// about so many products on. The forward pass of a 3x3 filter's three channels has 27.
constexpr int64_t kLeastProducts = 24;

}  // namespace

bool has_few_products(const ConvProblem& problem) { return products_of_a_sum(problem) < kLeastProducts; }

ReadTensors read_tensors(const ConvProblem& p) {
  const ReadTensor x = read_tensor({p.n, p.c, p.h, p.w}, p.x_strides, p.x_align);
  const ReadTensor w = read_tensor({p.k, p.c_per_group(), p.r, p.s}, p.w_strides, p.w_align);
  const ReadTensor y = read_tensor({p.n, p.k, p.p(), p.q()}, p.y_strides, p.y_align);
  switch (p.pass) {
    case Pass::kFprop: return {x, w};
    case Pass::kDgrad: return {y, w};
    case Pass::kWgrad: return {x, y};
  }
  return {x, w};
}

const char* scaled_parts_why_not(int parts, const ConvProblem& problem) {
  if (parts == 1 && problem.precision != Precision::kTf32) return "rounds as TF32 does";
  if (parts == 2 && problem.precision != Precision::kIeee) return "is for ieee alone";
  if (parts == 2 && has_few_products(problem)) return "is less exact than sums of so few products";
  return nullptr;
}

const char* tile_scaled_why_not(int parts, const ConvProblem& problem) {
  constexpr int64_t kLeastGreyProducts = 64;
  if (const char* reason = scaled_parts_why_not(parts, problem)) return reason;
  // Digits, masks: where most products are zero, sums have too few roundings to hide the bit that two parts lack.
  if (problem.c == 1 && parts == 2 && products_of_a_sum(problem) < kLeastGreyProducts) {
    return "is less exact than sums of few products of images of one channel, which are often mostly zeros";
  }
  return nullptr;
}

const char* scaled_why_not(const KernelEntry& entry, const ConvProblem& problem) {
  if (const char* reason = scaled_parts_why_not(entry.scaled_parts, problem)) return reason;
  const auto [first, second] = read_tensors(problem);
  return first.dense && second.dense ? nullptr : "measures tensors without gaps, of whole aligned units of 16 bytes";
}

Plan measured(Plan plan, const ConvProblem& problem, const DeviceSpec& device) {
  using namespace cost::scaled;
  if (!is_scaled(*plan.kernel)) return plan;
  const auto [first, second] = read_tensors(problem);
  const auto values = static_cast<double>(first.values + second.values);
  plan.cost_us += kMeasureUs + kClosedUs + memory_us(kBytes * values, device);
  return plan;
}

std::optional<Plan> plan_for_others(const ConvProblem& problem, const DeviceSpec& device) {
  std::optional<Plan> best;
  for (const KernelEntry& entry : kernel_table()) {
    if (entry.pass != problem.pass || !entry.gated || is_scaled(entry)) continue;
    Offer offered = offer(entry, problem, device);
    if (offered.why_not != nullptr || offered.plan.workspace_bytes > workspace_room(problem, device, true)) continue;
    if (!best || offered.plan.cost_us < best->cost_us) best = std::move(offered.plan);
  }
  return best;
}

Plan paired(Plan plan, const Plan& others) {
  plan.workspace_bytes = kRangeBytes + std::max(plan.workspace_bytes, others.workspace_bytes);
  plan.others = {others};
  return plan;
}

}  // namespace fastconv
