#include "fastconv/families/halo/work.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "fastconv/core/integers.h"
#include "fastconv/tile/copies.h"
#include "fastconv/tile/plan_fold.h"
#include "fastconv/tile/plan_reorder.h"
#include "fastconv/tile/plan_split.h"

namespace fastconv::halo {
namespace {

bool fprop_axis(int64_t taps, int64_t pad, int64_t dilation, int64_t stride, Axis& axis) {
  const int64_t runs = std::min(tap_period(dilation, stride), taps);
  if (runs > kMaxTapGroups) return false;
  for (int64_t r = 0; r < runs; ++r) axis.run[r] = forward_run(r, taps, pad, dilation, stride);
  axis.phases = 1;
  axis.end[0] = static_cast<int>(runs);
  return true;
}

// Output row stride * i + phase of dx receives dy row i + (phase + pad - r * dilation) / stride where that is whole.
bool dgrad_axis(int64_t taps, int64_t pad, int64_t dilation, int64_t stride, int64_t outputs, Axis& axis) {
  const int64_t common = std::gcd(dilation, stride), period = stride / common;
  const int64_t phases = std::min(stride, outputs);
  if (phases > kMaxPhases) return false;
  int runs = 0;
  for (int64_t phase = 0; phase < phases; ++phase) {
    for (int64_t r = 0; r < std::min(period, taps); ++r) {
      if ((phase + pad - r * dilation) % stride != 0) continue;
      const int64_t count = ceil_div(taps - r, period), last = r + (count - 1) * period;
      axis.run[runs++] = {(phase + pad - last * dilation) / stride, count, dilation / common, last, -period};
      break;
    }
    axis.end[phase] = runs;
  }
  axis.phases = static_cast<int>(phases);
  return true;
}

// Of output columns 2 * i and 2 * i + 1 at once: of a dy column the second meets the tap after the first's, which may
// be none or the first of all.
Axis paired_axis(int64_t taps, int64_t pad) {
  const int64_t first = -((taps - 1 - pad) >> 1), count = (pad + 1) / 2 - first + 1;
  Axis axis{};
  axis.phases = 1;
  if (count > 0) axis.run[axis.end[0]++] = {first, count, 1, pad - 2 * first, -2};
  return axis;
}

Reach reach(const Axis& axis, bool split, int64_t outputs, int64_t inputs, int64_t in_step) {
  Reach out{0, 0, outputs};
  for (int i = 0; i < axis.runs(); ++i) {
    const Run& run = axis.run[i];
    out.groups += split ? run.count : 1;
    if (split) continue;
    const int64_t extent = (run.count - 1) * run.step;
    out.extent = std::max(out.extent, extent);
    out.linear = std::max(out.linear, linear_size(outputs, inputs, in_step, extent, run.d));
  }
  return out;
}

bool begins_at_multiples(const Work& work, TapSplit split, int64_t of) {
  for (int i = 0; i < work.w.runs(); ++i) {
    const Run& run = work.w.run[i];
    if (run.d % of != 0 || (split == TapSplit::kTaps && run.count > 1 && run.step * work.in_step.w % of != 0)) {
      return false;
    }
  }
  return true;
}

bool tma_can_stage(const Side& in, int64_t groups, Pair in_step, int64_t bytes = 2) {
  return in.stride.c == 1 && in.align >= 16 && copies(in.n, in.stride.n, bytes) && copies(in.h, in.stride.h, bytes) &&
         copies(in.w, in.stride.w, bytes) && (groups == 1 || in.c * bytes % 16 == 0) && in_step.h <= 8 &&
         in_step.w <= 8;
}

}  // namespace

void sides(const ConvProblem& p, Side& in, Side& out) {
  in = input_side(p), out = output_side(p);
  if (p.pass == Pass::kDgrad) std::swap(in, out);
}

bool make_work(const ConvProblem& p, const HaloConfig& config, Reordering reordering, Work& work) {
  sides(p, work.in, work.out);
  work.operands = config.operands, work.splitting = splitting_of(config, p);
  work.reordering = reordering, work.in_planes = work.in, work.out_planes = work.out;
  if (reordering.in) work.in = reordered(work.in, p.groups);
  if (work.splitting.in) work.in = split_side(work.in, p.groups, operand_of(config.operands), work.splitting.parts);
  if (reordering.out) work.out = reordered(work.out, p.groups);
  if (is_pointwise(p)) flatten(work.in, work.out);
  const bool pairs = config.filter == FilterTile::kPairs;
  if (pairs) work.out.w /= 2, work.out.stride.w *= 2, work.out.c *= 2;  // of each channel
  work.groups = p.groups;
  work.element_bytes = static_cast<int32_t>(element_size(p.dtype));
  if (config.staging == HaloStaging::kFolded) {
    const Fold& fold = work.fold = make_fold(p);
    work.in = folded(work.in, fold);
    work.in_step = work.out_step = kUnitStep;
    if (!fprop_axis(folded_taps(fold.h), folded_padding(fold.h, p.padding.h), 1, 1, work.h) ||
        !fprop_axis(folded_taps(fold.w), folded_padding(fold.w, p.padding.w), 1, 1, work.w)) {
      return false;
    }
  } else if (p.pass == Pass::kFprop) {
    work.in_step = p.stride, work.out_step = {1, 1};
    if (!fprop_axis(p.r, p.padding.h, p.dilation.h, p.stride.h, work.h) ||
        !fprop_axis(p.s, p.padding.w, p.dilation.w, p.stride.w, work.w)) {
      return false;
    }
  } else {
    work.in_step = {1, 1}, work.out_step = {p.stride.h, pairs ? 1 : p.stride.w};
    if (!dgrad_axis(p.r, p.padding.h, p.dilation.h, p.stride.h, p.h, work.h)) return false;
    if (pairs) {
      work.w = paired_axis(p.s, p.padding.w);
    } else if (!dgrad_axis(p.s, p.padding.w, p.dilation.w, p.stride.w, p.w, work.w)) {
      return false;
    }
  }
  work.taps = work.h.taps() * work.w.taps();
  work.rows = ceil_div(work.out.h, work.out_step.h), work.cols = ceil_div(work.out.w, work.out_step.w);
  return work.phases() <= kMaxPhases;
}

bool takes_columns(const Work& work, const HaloConfig& config) {
  if (config.staging == HaloStaging::kFloats && config.columns > 1) {
    auto three = [](const Run& run) { return run.count == 3; };
    auto together = [](const Run& run) { return run.count == 3 && run.step == 1; };
    if (!std::all_of(work.h.run, work.h.run + work.h.runs(), together)) return false;
    if (!std::all_of(work.w.run, work.w.run + work.w.runs(), three)) return false;
  }
  return std::all_of(work.w.run, work.w.run + work.w.runs(), [&](const Run& run) {
    return run.count % config.columns == 0 && (config.columns - 1) * run.step <= 7;
  });
}

bool stores_pairs(const ConvProblem& p) {
  Side in, out;
  sides(p, in, out);
  return p.pass == Pass::kDgrad && p.stride.w == 2 && p.dilation.w == 1 && out.stride.w == 1 && out.w % 2 == 0 &&
         out.align >= 2 * element_size(p.dtype) && planes_divisible(out, p.groups, 2);
}

bool pixels_divisible(const Side& side, int64_t by) {
  return (side.n == 1 || side.stride.n % by == 0) && (side.h == 1 || side.stride.h % by == 0) &&
         (side.w == 1 || side.stride.w % by == 0);
}
bool planes_divisible(const Side& side, int64_t groups, int64_t by) {
  return (side.n == 1 || side.stride.n % by == 0) && (side.h == 1 || side.stride.h % by == 0) &&
         (side.c * groups == 1 || side.stride.c % by == 0);
}

bool tma_can_load_filter(const ConvProblem& p) {
  const Strides& w = p.w_strides;
  const int64_t bytes = element_size(p.dtype);
  return w.c == 1 && p.w_align >= 16 && copies(p.k, w.n, bytes) && copies(p.r, w.h, bytes) && copies(p.s, w.w, bytes);
}

Splitting splitting_of(const HaloConfig& config, const ConvProblem& problem) {
  Side in, out;
  sides(problem, in, out);
  const bool makes = makes_parts(config.staging);
  switch (config.operands) {
    case OperandForm::kHalf: return {};
    case OperandForm::kTf32:
      return {1, !makes && !tma_can_stage(in, problem.groups, in_step_of(problem), 4),
              problem.pass != Pass::kFprop || !tma_can_load_filter(problem)};
    case OperandForm::kScaled: return {1, !makes, true};
    case OperandForm::kPromotedScaled: return {2, !makes, true};
    default: return {split_parts(problem.precision), !makes, true};
  }
}

int64_t plane_phases(const Side& in, int64_t groups, int64_t bytes) {
  return address_phases(in.c * groups, in.stride.c, bytes);
}

// TMA is slow to write the zeros of channels that do not exist.
bool planes_can_stage(const Side& in, int64_t groups, Pair in_step, int64_t bytes) {
  const int64_t phases = plane_phases(in, groups, bytes);
  return in.c > 8 && phases <= (in.c > 16 ? 8 : 4) && in.stride.w == 1 && (in.h == 1 || in.stride.h == in.w) &&
         in.align >= 16 && in.h * in.w < kMaxExtent && copies(2, in.stride.c * phases, bytes) &&
         copies(groups, in.stride.c * in.c, bytes) && copies(in.n, in.stride.n, bytes) &&
         std::has_single_bit(static_cast<uint64_t>(in_step.w));
}

HaloStaging best_staging(const ConvProblem& problem, const Side& in, Pair in_step) {
  const int64_t groups = problem.groups;
  if (tma_can_stage(in, groups, in_step)) return HaloStaging::kTma;
  const int64_t bytes = element_size(problem.dtype);
  if (planes_can_stage(in, groups, in_step, bytes)) {
    if (in.c > 32 && is_pointwise(problem) && in.w >= kBlock) {
      const int64_t phases = plane_phases(in, groups, bytes);
      if (phases == 1) return HaloStaging::kPlanes;
      if (phases == 2 && in.h == 1 && in.stride.c == in.w && in.c % 2 == 0) return HaloStaging::kShifted;
    }
    return HaloStaging::kTransposed;
  }
  return HaloStaging::kPixels;
}

Pair in_step_of(const ConvProblem& problem) { return problem.pass == Pass::kFprop ? problem.stride : kUnitStep; }

bool reorders_input(const HaloConfig& config, const ConvProblem& problem) {
  Side in, out;
  sides(problem, in, out);
  const Pair step = in_step_of(problem);
  if (config.operands != OperandForm::kHalf) return false;
  if (!reorders(config.staging) || !reorderable(in, problem.groups)) return false;
  return !tma_can_stage(in, problem.groups, step) && tma_can_stage(reordered(in, problem.groups), problem.groups, step);
}
bool can_reorder_output(const HaloConfig& config, const ConvProblem& problem) {
  Side in, out;
  sides(problem, in, out);
  return config.operands == OperandForm::kHalf && reorders(config.staging) && config.filter != FilterTile::kPairs &&
         out.stride.c != 1 && out.c % 8 == 0 && reorderable(out, problem.groups);
}

Reaches reaches(const Work& work, TapSplit split) {
  return {reach(work.h, split != TapSplit::kNone, work.rows, work.in.h, work.in_step.h),
          reach(work.w, split == TapSplit::kTaps, work.cols, work.in.w, work.in_step.w),
          begins_at_multiples(work, split, 8), begins_at_multiples(work, split, 2)};
}

}  // namespace fastconv::halo
