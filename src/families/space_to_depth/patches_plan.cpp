#include "fastconv/families/space_to_depth/patches_plan.h"

#include <optional>

#include "fastconv/core/integers.h"
#include "fastconv/planner/planner.h"
#include "fastconv/planner/scaled.h"

namespace fastconv {
namespace {

// As the filter has them.
PatchIndices indices_of(const ConvProblem& p) {
  return in_order({{{p.c, p.w_strides.c, p.x_strides.c, false, false},
                    {p.r, p.w_strides.h, p.x_strides.h, true, false},
                    {p.s, p.w_strides.w, p.x_strides.w, false, true}}});
}

// Whether one stride leads through all of a filter's elements.
bool one_stride(const PatchIndices& indices) {
  for (size_t i = 1; i < indices.size(); ++i) {
    if (indices[i - 1].size > 1 && indices[i - 1].order != indices[i].size * indices[i].order) return false;
  }
  return true;
}

Strides patches_strides(const PatchesConfig& config, const ConvProblem& p) {
  const int64_t elements = p.c * p.r * p.s, bytes = element_size(p.dtype);
  if (config.layout == PatchLayout::kRows) return patch_rows({p.p(), p.q()}, patch_pitch(elements, bytes));
  const int64_t plane = patch_pitch(p.p() * p.q(), bytes);
  return {elements * plane, plane, p.q(), 1};
}

// Of a gradient a patch is as large as the stride, and all of the image is in one: what no tap meets has a gradient
// too, zero.
PatchGrid grid_of(const PatchesConfig& config, const ConvProblem& p) {
  const bool gradient = p.pass == Pass::kDgrad;
  PatchIndices indices = indices_of(p);
  for (PatchIndex& index : indices) {
    if (index.is_row) index.size = p.stride.h, index.step = p.dilation.h;
    if (index.is_column) index.size = p.stride.w, index.step = p.dilation.w;
  }
  const Pair whole{p.p(), p.q()};
  const Pair all{ceil_div(p.h + p.padding.h, p.stride.h), ceil_div(p.w + p.padding.w, p.stride.w)};
  return {input_side(p), element_size(p.dtype),     in_order(indices), p.stride, p.padding, gradient ? all : whole,
          whole,         patches_strides(config, p)};
}

// Whether every pixel meets one tap at most.
bool meet_once(const ConvProblem& p) {
  if (p.pass != Pass::kDgrad) return is_patches(p);
  return p.r * p.s > 1 && p.dilation.h * (p.r - 1) < p.stride.h && p.dilation.w * (p.s - 1) < p.stride.w;
}

ConvProblem inner_problem(const PatchesConfig& config, const ConvProblem& problem) {
  const int64_t filter_stride = indices_of(problem)[2].order;
  ConvProblem inner = problem;
  inner.c = problem.c * problem.r * problem.s, inner.h = problem.p(), inner.w = problem.q();
  inner.r = inner.s = 1;
  inner.stride = inner.dilation = {1, 1}, inner.padding = {0, 0};
  inner.x_strides = patches_strides(config, problem), inner.x_align = 128;
  inner.w_strides = {problem.w_strides.n, filter_stride, filter_stride, filter_stride};
  return inner;
}

// None where nothing runs it in what the patches leave of the workspace.
std::optional<InnerPlan> inner_plan(const PatchesConfig& config, const ConvProblem& problem, const DeviceSpec& device) {
  const ConvProblem inner = inner_problem(config, problem);
  DeviceSpec rest = device;
  rest.workspace_bytes = workspace_room(problem, device, false) - patches_bytes(config, problem);
  if (rest.workspace_bytes < 0) return std::nullopt;
  const Plan plan = make_plan(inner, rest).plan;
  if (plan.kernel == nullptr) return std::nullopt;
  return InnerPlan{inner, plan};
}

}  // namespace

Patches make_patches(const PatchesConfig& config, const ConvProblem& problem) {
  return make_patches(grid_of(config, problem));
}

int64_t patches_bytes(const PatchesConfig& config, const ConvProblem& problem) {
  return round_up(problem.n * patches_strides(config, problem).n * element_size(problem.dtype), kPatchWorkspaceAlign);
}

namespace {

const char* why_not(const PatchesConfig& config, const ConvProblem& p) {
  if (!meet_once(p)) {
    return p.pass == Pass::kDgrad
               ? "needs a filter that is no larger than its stride, of several taps"
               : "needs a filter as large as its stride, of several taps, without padding or dilation";
  }
  if (p.groups != 1) return "takes one group alone";
  if (!one_stride(indices_of(p))) return "needs filters without gaps between their taps";
  if (!patches_fit_int32(grid_of(config, p))) {
    return "counts patches, their elements and what warps move with 32 bits";
  }
  return nullptr;
}

}  // namespace

Offer patches_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const PatchesConfig& config = entry.config.as<PatchesConfig>();
  if (const char* reason = why_not(config, problem)) return reason;
  const std::optional<InnerPlan> product = inner_plan(config, problem, device);
  if (!product) return "finds no kernel for the product";
  const Patches patches = make_patches(config, problem);
  Plan plan;
  plan.kernel = &entry;
  plan.inner = {*product};
  const Plan& inner = plan.inner.front().plan;
  plan.block_threads = kPatchThreads;
  plan.grid = ceil_div(patches.units, kPatchThreads / 32);
  plan.workspace_bytes = patches_bytes(config, problem) + inner.workspace_bytes;
  plan.cost_us = move_us(patches, element_size(problem.dtype), device) + inner.cost_us;
  return plan;
}

}  // namespace fastconv
