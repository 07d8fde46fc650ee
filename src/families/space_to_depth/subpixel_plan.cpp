#include "fastconv/families/space_to_depth/subpixel_plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "fastconv/core/integers.h"
#include "fastconv/families/space_to_depth/cost.h"
#include "fastconv/planner/planner.h"
#include "fastconv/planner/scaled.h"
#include "fastconv/planner/sides.h"

namespace fastconv {
namespace {

// Other kernels waste little of their tiles from so many channels on. An inner problem has more and at most so many
// filters, so it is never of this family itself.
constexpr int64_t kMaxChannels = 8, kMaxOutputs = 64;
constexpr int64_t kMaxTaps = 256;  // of the inner filter

int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -ceil_div(-a, b); }

// One dimension of a problem, with what a block has of it.
struct Dimension {
  bool dgrad;
  int64_t taps, stride, padding, dilation, source, target;
  int64_t wanted;  // SubpixelConfig's factor

  int64_t reach() const { return dilation * (taps - 1); }
  // Whether neighbouring targets see the same source or, of an input gradient, neighbouring sources the same target.
  // Elsewhere larger blocks would have zeros alone.
  bool shares() const { return taps > 1 && reach() >= stride; }
  int64_t factor() const { return shares() ? wanted : 1; }
  int64_t block() const { return factor() * (dgrad ? stride : 1); }
  int64_t step() const { return factor() * (dgrad ? 1 : stride); }  // of the source, from block to block
};
Dimension rows_of(const SubpixelConfig& config, const ConvProblem& p) {
  return {p.pass == Pass::kDgrad, p.r,          p.stride.h, p.padding.h, p.dilation.h, source_side(p).h,
          target_side(p).h,       config.factor};
}
Dimension columns_of(const SubpixelConfig& config, const ConvProblem& p) {
  return {p.pass == Pass::kDgrad, p.s,          p.stride.w, p.padding.w, p.dilation.w, source_side(p).w,
          target_side(p).w,       config.factor};
}

// One dimension of the inner problem, and of its blocks of outputs.
struct Axis {
  int64_t block, before, moved;
  int64_t taps, stride, padding, outputs;
  SubpixelAxis filter;
};

// The inner problem is padded alike on both sides, so that blocks may begin some rows before the image: so many that
// the inner filter and output are the smallest, of such numbers one that leaves the outputs aligned, or else the least.
std::optional<Axis> axis_of(const Dimension& d) {
  const int64_t block = d.block(), stride = d.step();
  std::optional<Axis> best;
  auto cost = [](const Axis& axis) {
    constexpr int64_t kVector = 8;  // elements
    const int64_t aligned = axis.before == 0 ? kVector : std::min(axis.before & -axis.before, kVector);
    return std::tuple(axis.taps * axis.outputs, -aligned, axis.before);
  };
  for (int64_t before = 0; before < 4 * block; ++before) {
    // The pixels of the source that the first block sees.
    const int64_t first =
        d.dgrad ? -floor_div(d.reach() + before - d.padding, d.stride) : -before * d.stride - d.padding;
    const int64_t last = d.dgrad ? floor_div(block - 1 - before + d.padding, d.stride)
                                 : (block - 1 - before) * d.stride - d.padding + d.reach();
    const int64_t padding = -first, taps = last - first + 1, room = d.source + 2 * padding - taps;
    if (padding < 0 || room < 0) continue;
    Axis axis{block, before, ceil_div(d.target + before, block), taps, stride, padding, room / stride + 1, {}};
    if (axis.outputs < axis.moved) continue;
    if (!best || cost(axis) < cost(*best)) best = axis;
  }
  if (!best) return best;
  auto int32 = [](int64_t value) { return static_cast<int32_t>(value); };
  const int64_t distance = d.dgrad ? d.padding - best->before + d.stride * best->padding : 0;
  const auto apart = int32(d.stride), taps = int32(d.taps);
  const FastDivmod dilation(d.taps > 1 ? d.dilation : kMaxExtent);  // a single tap is at no distance alone
  best->filter = d.dgrad ? SubpixelAxis{int32(distance), 1, -apart, dilation, taps}
                         : SubpixelAxis{int32(distance), -apart, 1, dilation, taps};
  return best;
}

struct Geometry {
  Axis rows, columns;
};
std::optional<Geometry> geometry_of(const SubpixelConfig& config, const ConvProblem& p) {
  const auto rows = axis_of(rows_of(config, p)), columns = axis_of(columns_of(config, p));
  if (!rows || !columns) return std::nullopt;
  return Geometry{*rows, *columns};
}

// Outputs of a block, in the order in which they lie in memory.
PatchIndices indices_of(const Geometry& geometry, const ConvProblem& p) {
  const Side target = target_side(p);
  return in_order({{{target.c, target.stride.c, target.stride.c, false, false},
                    {geometry.rows.block, target.stride.h, target.stride.h, true, false},
                    {geometry.columns.block, target.stride.w, target.stride.w, false, true}}});
}

ConvProblem inner_problem(const Geometry& geometry, const ConvProblem& p) {
  const auto& [rows, columns] = geometry;
  const Side source = source_side(p);
  ConvProblem inner = p;
  inner.pass = Pass::kFprop;
  inner.c = source.c, inner.h = source.h, inner.w = source.w;
  // Whole vectors of filters: what fills them up costs less than storing single outputs.
  inner.k = patch_pitch(rows.block * columns.block * target_channels(p), element_size(p.dtype));
  inner.r = rows.taps, inner.s = columns.taps;
  inner.stride = {rows.stride, columns.stride};
  inner.padding = {rows.padding, columns.padding};
  inner.dilation = {1, 1};
  inner.x_strides = source.stride, inner.x_align = source.align;
  inner.w_strides = {inner.r * inner.s * inner.c, 1, inner.s * inner.c, inner.c};
  inner.y_strides = patch_rows({rows.outputs, columns.outputs}, inner.k);
  inner.w_align = inner.y_align = 128;
  return inner;
}

PatchGrid grid_of(const Geometry& geometry, const ConvProblem& p, const ConvProblem& inner) {
  const auto& [rows, columns] = geometry;
  return {target_side(p),
          element_size(p.dtype),
          indices_of(geometry, p),
          {rows.block, columns.block},
          {rows.before, columns.before},
          {rows.moved, columns.moved},
          {rows.outputs, columns.outputs},
          inner.y_strides};
}

int64_t filter_elements(const ConvProblem& inner) { return inner.k * inner.r * inner.s * inner.c; }

SubpixelFilter make_filter(const Geometry& geometry, const ConvProblem& p, const ConvProblem& inner) {
  const bool dgrad = p.pass == Pass::kDgrad;
  const PatchIndices indices = indices_of(geometry, p);
  SubpixelFilter out{};
  out.target = dgrad ? p.w_strides.c : p.w_strides.n, out.source = dgrad ? p.w_strides.n : p.w_strides.c;
  out.row = p.w_strides.h, out.column = p.w_strides.w;
  out.rows = geometry.rows.filter, out.columns = geometry.columns.filter;
  for (size_t i = 0; i < indices.size(); ++i) {
    const bool row = indices[i].is_row, column = indices[i].is_column;
    out.levels[i] = {!row && !column, row, column};
  }
  out.middle = FastDivmod(indices[1].size), out.inner = FastDivmod(indices[2].size);
  out.outputs = static_cast<int32_t>(indices[0].size * indices[1].size * indices[2].size);
  out.sources = FastDivmod(inner.c), out.width = FastDivmod(inner.s), out.taps = FastDivmod(inner.r * inner.s);
  out.filters = static_cast<int32_t>(inner.k), out.elements = static_cast<int32_t>(filter_elements(inner));
  return out;
}

bool fits_int32(const SubpixelConfig& config, const ConvProblem& p) {
  for (const Dimension& d : {rows_of(config, p), columns_of(config, p)}) {
    for (const int64_t extent : {d.taps, d.dilation, d.padding, d.source, d.target, d.reach()}) {
      if (extent >= kMaxExtent) return false;
    }
  }
  return p.n < kMaxExtent && p.c < kMaxExtent && p.k < kMaxExtent;
}

}  // namespace

SubpixelLaunch make_subpixel(const SubpixelConfig& config, const ConvProblem& problem) {
  const Geometry geometry = *geometry_of(config, problem);
  const ConvProblem inner = inner_problem(geometry, problem);
  const int64_t bytes = element_size(problem.dtype);
  auto end = [bytes](int64_t begin, int64_t elements) {
    return begin + round_up(elements * bytes, kPatchWorkspaceAlign);
  };
  SubpixelLaunch out{
      inner, make_filter(geometry, problem, inner), make_patches(grid_of(geometry, problem, inner)), 0, 0, 0};
  out.bias_offset = end(0, filter_elements(inner));
  const int64_t of_bias = bytes == 2 ? 2 : 1;  // elements, as it may be wide
  out.blocks_offset = end(out.bias_offset, inner.has_bias ? inner.k * of_bias : 0);
  out.inner_offset = end(out.blocks_offset, inner.n * inner.y_strides.n);
  return out;
}

namespace {

// None where nothing runs it in what filter and blocks leave of the workspace.
std::optional<InnerPlan> inner_plan(const SubpixelLaunch& launch, const ConvProblem& problem,
                                    const DeviceSpec& device) {
  DeviceSpec rest = device;
  rest.workspace_bytes = workspace_room(problem, device, false) - launch.inner_offset;
  if (rest.workspace_bytes < 0) return std::nullopt;
  const Plan plan = make_plan(launch.inner, rest).plan;
  if (plan.kernel == nullptr) return std::nullopt;
  return InnerPlan{launch.inner, plan};
}

const char* why_not(const SubpixelConfig& config, const ConvProblem& p) {
  if (target_channels(p) > kMaxChannels) return "takes results of up to 8 channels";
  if (p.groups != 1) return "takes one group alone";
  if (!fits_int32(config, p)) return "counts with 32 bits";
  if (p.dtype == DType::kFloat32 && p.precision == Precision::kIeee && has_few_products(p)) {
    return "hides from the product how few products make up a sum";
  }
  const Dimension rows = rows_of(config, p), columns = columns_of(config, p);
  const bool shares = rows.shares() || columns.shares();
  if (!shares && (p.pass == Pass::kFprop || config.factor > 1)) return "needs outputs that see the same pixels";
  const int64_t h = rows.block(), w = columns.block();
  if (std::max(h, w) > kMaxOutputs || h * w * target_channels(p) > kMaxOutputs) return "has blocks of too many outputs";
  if (h * w * target_channels(p) <= kMaxChannels) return "has blocks of too few outputs";
  const std::optional<Geometry> geometry = geometry_of(config, p);
  if (!geometry) return "finds no padding that is the same on both sides";
  if (geometry->rows.taps * geometry->columns.taps > kMaxTaps) return "would need a filter of too many taps";
  const ConvProblem inner = inner_problem(*geometry, p);
  if (!patches_fit_int32(grid_of(*geometry, p, inner)) || filter_elements(inner) >= kMaxExtent) {
    return "counts blocks, outputs and the filter's elements with 32 bits";
  }
  return nullptr;
}

}  // namespace

Offer subpixel_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const SubpixelConfig& config = entry.config.as<SubpixelConfig>();
  if (const char* reason = why_not(config, problem)) return reason;
  const SubpixelLaunch launch = make_subpixel(config, problem);
  const std::optional<InnerPlan> product = inner_plan(launch, problem, device);
  if (!product) return "would need too much workspace";
  Plan plan;
  plan.kernel = &entry;
  plan.inner = {*product};
  const Plan& inner = plan.inner.front().plan;
  plan.block_threads = kPatchThreads;
  plan.grid = ceil_div(launch.blocks.units, kPatchThreads / 32);
  plan.workspace_bytes = launch.inner_offset + inner.workspace_bytes;
  using namespace cost::moves;
  const double filter = kInstruction * kFilter * launch.filter.elements / (128. * device.sm_count);
  plan.cost_us = inner.cost_us + move_us(launch.blocks, element_size(problem.dtype), device) +
                 time_us({.clocks = filter, .us = kLaunchUs}, device);
  // Measured: input gradients by multiply-adds with errors of up to 1.25 times cuDNN's in strict float32, where 1.2 is
  // the contract. They run where they are asked for, but nothing chooses them.
  const bool strict = problem.dtype == DType::kFloat32 && problem.precision == Precision::kIeee;
  if (strict && problem.pass == Pass::kDgrad && inner.kernel->multiply_adds) {
    plan.cost_us = std::numeric_limits<double>::infinity();
  }
  return plan;
}

}  // namespace fastconv
