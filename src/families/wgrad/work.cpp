#include "fastconv/families/wgrad/work.h"

#include <algorithm>

#include "fastconv/core/integers.h"
#include "fastconv/tile/copies.h"
#include "fastconv/tile/plan_fold.h"
#include "fastconv/tile/plan_reorder.h"
#include "fastconv/tile/plan_split.h"
#include "fastconv/tile/tensor_map_spec.h"

namespace fastconv::wgrad {
namespace {

Axis make_axis(int64_t taps, int64_t pad, int64_t dilation, int64_t stride) {
  Axis axis;
  axis.runs = static_cast<int>(std::min(tap_period(dilation, stride), taps));
  for (int64_t r = 0; r < axis.runs; ++r) axis.run[r] = forward_run(r, taps, pad, dilation, stride);
  return axis;
}

// Rows of pixels in shared memory are 32, 64 or 128 bytes long: an image without gaps is cut into such rows.
void fold_rows(Side& x, Side& y) {
  for (const Side* side : {&x, &y}) {
    if (side->stride.w != 1 || (side->h != 1 && side->stride.h != side->w)) return;
  }
  const int64_t pixels = x.h * x.w;
  for (int64_t row = 64; row >= 16; row /= 2) {
    if (pixels % row != 0) continue;
    for (Side* side : {&x, &y}) side->h = pixels / row, side->w = side->stride.h = row;
    return;
  }
}

}  // namespace

bool copyable(const Side& side, int64_t groups) {
  return (side.c * groups == 1 || side.stride.c == 1) && side.align >= 16 && copies(side.n, side.stride.n) &&
         copies(side.h, side.stride.h) && copies(side.w, side.stride.w) && (groups == 1 || side.c % 8 == 0);
}

Work make_work(const ConvProblem& p, const WgradConfig& config, bool fold) {
  Work work;
  work.x = work.x_planes = input_side(p), work.y = work.y_planes = output_side(p);
  auto reorders = [&](bool has_pixel_rows, const Side& side) {
    const bool copied = config.staging != WgradStaging::kWarps && !has_pixel_rows;
    return copied && !copyable(side, p.groups) && reorderable(side, p.groups);
  };
  if (p.dtype == DType::kFloat32) {
    // There is no TF32: wgmma takes it with pixels side by side alone, as nothing is staged here.
    work.operand = operand_of(config.operands);
    work.parts = is_scaled(config.operands) ? 1 + promotes(config.operands) : split_parts(p.precision);
    work.x = split_side(work.x, p.groups, work.operand, work.parts);
    work.floats = config.staging == WgradStaging::kFloats;
    if (!work.floats) work.y = split_side(work.y, p.groups, work.operand, work.parts);
  } else {
    work.reorder_x = !fold && reorders(x_has_pixel_rows(config.staging), work.x);
    work.reorder_y = reorders(y_has_pixel_rows(config.staging), work.y);
    if (work.reorder_x) work.x = reordered(work.x, p.groups);
    if (work.reorder_y) work.y = reordered(work.y, p.groups);
  }
  work.groups = p.groups;
  if (fold) {
    work.fold = make_folded_rows(p);
    const FoldedAxis &h = work.fold.fold.h, &w = work.fold.fold.w;
    work.x = folded_rows(work.fold, p.n);
    work.stride = kUnitStep;
    work.h = make_axis(folded_taps(h), folded_padding(h, p.padding.h), 1, 1);
    work.w = make_axis(folded_taps(w), folded_padding(w, p.padding.w), 1, 1);
    work.pointwise = false;
    return work;
  }
  work.stride = p.stride;
  work.h = make_axis(p.r, p.padding.h, p.dilation.h, p.stride.h);
  work.w = make_axis(p.s, p.padding.w, p.dilation.w, p.stride.w);
  work.pointwise = is_pointwise(p);
  if (!work.pointwise) return work;
  x_has_pixel_rows(config.staging) ? fold_rows(work.x, work.y) : flatten(work.x, work.y);
  return work;
}

bool pixels_copyable(const Side& side, int64_t groups) {
  return (side.w == 1 || side.stride.w == 1) && side.align >= 16 && copies(side.n, side.stride.n) &&
         copies(side.h, side.stride.h) && copies(side.c * groups, side.stride.c);
}

RowPhases row_phases_of_y(const Side& y) {
  RowPhases out{row_phases(y), address_phases(y.c, y.stride.c), 0};
  int64_t row = 0, filter = 0;
  for (int64_t i = 0; i < out.rows; ++i) row = std::max(row, i * y.stride.h % 8);
  for (int64_t i = 0; i < out.filters; ++i) filter = std::max(filter, i * y.stride.c % 8);
  out.lead = row + filter;
  return out;
}
bool rows_copyable(const Side& y, int64_t groups) {
  if (y.stride.w != 1 || y.align < 16 || y.stride.h <= 0 || y.stride.c <= 0) return false;
  const RowPhases phases = row_phases_of_y(y);
  return phases.rows * phases.filters <= kMaxTensorMaps && y.h >= phases.rows && y.c >= phases.filters &&
         copies(y.n, y.stride.n) && copies(y.h, y.stride.h * phases.rows) && copies(y.c, y.stride.c * phases.filters) &&
         copies(groups, y.c * y.stride.c);
}
int64_t lead_of(const Work& work, WgradStaging staging) {
  return staging == WgradStaging::kTmaRows ? row_phases_of_y(work.y).lead : 0;
}
int64_t filter_blocks(const Work& work, WgradStaging staging) {
  const int64_t phases = staging == WgradStaging::kTmaRows ? row_phases_of_y(work.y).filters : 1;
  return phases * ceil_div(ceil_div(work.y.c, phases), kFilters);
}

Copied copied_operands(const Work& work, WgradStaging staging) {
  return {work.parts > 0 || x_has_pixel_rows(staging) || copyable(work.x, work.groups),
          work.parts > 0 || y_has_pixel_rows(staging) || copyable(work.y, work.groups)};
}

Workspace workspace_of(const Work& work) {
  if (work.parts > 0) {
    auto bytes = [&](const Side& side) { return split_bytes(side, work.groups, work.operand, work.parts); };
    return {bytes(work.x_planes), work.floats ? 0 : bytes(work.y_planes), 0};
  }
  const int64_t folded = round_up(int64_t{work.fold.pixels} * work.fold.row * 2, 128);
  return {work.reorder_x ? reordered_bytes(work.x_planes, work.groups) : folded,
          work.reorder_y ? reordered_bytes(work.y_planes, work.groups) : 0, 0};
}

}  // namespace fastconv::wgrad
