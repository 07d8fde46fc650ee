#include "fastconv/families/pointwise/plan.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "fastconv/core/integers.h"
#include "fastconv/families/pointwise/cost.h"
#include "fastconv/families/pointwise/slices.h"
#include "fastconv/planner/gpus.h"
#include "fastconv/planner/scaled.h"
#include "fastconv/planner/sides.h"

namespace fastconv {
namespace {

using namespace cost::pointwise;

// Pixels of x that y has, so that both count them alike.
Side on_pixels(const Side& side, const Pair& step, int64_t h, int64_t w) {
  const Strides& given = side.stride;
  return {side.n,
          side.c,
          h,
          w,
          {used_stride(given.n, side.n), used_stride(given.c, side.c), used_stride(given.h, h) * step.h,
           used_stride(given.w, w) * step.w},
          side.align};
}
bool channels_inner(const Side& side) { return is_step(side.stride.c, side.c, 1); }
// Pixels of an image side by side.
bool planes(const Side& side) { return is_step(side.stride.w, side.w, 1) && is_step(side.stride.h, side.h, side.w); }

struct Tensors {
  Side x, y;
  bool channels_inner;  // else planes
};
Tensors tensors_of(const ConvProblem& problem) {
  const int64_t p = problem.p(), q = problem.q();
  const Side x = on_pixels(input_side(problem), problem.stride, p, q);
  const Side y = on_pixels(output_side(problem), kUnitStep, p, q);
  return {x, y, channels_inner(x) && channels_inner(y)};
}

// The largest access that meets all lines and their ends. Strides of an index that is always 0 do not count.
struct Step {
  int64_t extent, stride;
};
int32_t vector_bytes(int64_t element, int32_t align, int64_t length, std::initializer_list<Step> steps) {
  int64_t bytes = std::min<int64_t>(kPointwiseChunkBytes, align);
  auto fits = [&](int64_t elements) {
    return length % elements == 0 && std::all_of(steps.begin(), steps.end(), [&](const Step& step) {
             return keeps_multiples(step.stride, step.extent, elements);
           });
  };
  while (bytes > element && !fits(bytes / element)) bytes /= 2;
  return static_cast<int32_t>(bytes);
}

// Lines are pixels, of channels.
PointwiseMatrix pixel_lines(const Side& side, int64_t element) {
  const int64_t pixels = side.h * side.w;
  PointwiseMatrix matrix{};
  PointwiseLines& lines = matrix.lines;
  lines.extent = static_cast<int32_t>(side.n * pixels);
  lines.column = side.w > 1 ? side.stride.w : side.h > 1 ? side.stride.h : side.stride.n;
  const bool rows_follow = side.h == 1 || side.stride.h == side.w * lines.column;
  const bool images_follow = side.n == 1 || side.stride.n == pixels * lines.column;
  if (!rows_follow || !images_follow) {
    lines.pixels = true;
    lines.by_image = FastDivmod(pixels), lines.by_row = FastDivmod(side.w);
    lines.image = side.stride.n, lines.row = side.stride.h, lines.column = side.stride.w;
  }
  matrix.length = static_cast<int32_t>(side.c);
  matrix.vector_bytes = vector_bytes(element, side.align, side.c,
                                     {{side.n, side.stride.n}, {side.h, side.stride.h}, {side.w, side.stride.w}});
  return matrix;
}
// Lines are channels, of an image's pixels.
PointwiseMatrix channel_lines(const Side& side, int64_t element) {
  PointwiseMatrix matrix{};
  matrix.lines.extent = static_cast<int32_t>(side.c), matrix.lines.column = side.stride.c;
  matrix.length = static_cast<int32_t>(side.h * side.w);
  matrix.image = side.stride.n;
  matrix.vector_bytes =
      vector_bytes(element, side.align, side.h * side.w, {{side.n, side.stride.n}, {side.c, side.stride.c}});
  return matrix;
}
// Lines are filters, of channels.
PointwiseMatrix filter_lines(const ConvProblem& problem) {
  PointwiseMatrix matrix{};
  matrix.lines.extent = static_cast<int32_t>(problem.k);
  matrix.lines.column = used_stride(problem.w_strides.n, problem.k);
  matrix.length = static_cast<int32_t>(problem.c);
  matrix.vector_bytes =
      vector_bytes(element_size(problem.dtype), problem.w_align, problem.c, {{problem.k, problem.w_strides.n}});
  return matrix;
}

const char* why_not(const ConvProblem& problem) {
  if (problem.dtype == DType::kFloat32 && problem.precision != Precision::kTf32) return "rounds to TF32";
  if (problem.groups != 1 || problem.r * problem.s != 1 || problem.padding != Pair{0, 0}) {
    return "has one tap, no groups and no padding";
  }
  if (!images_fit_int32(problem) || problem.n * problem.h * problem.w >= kMaxExtent ||
      problem.k * problem.c >= kMaxExtent) {
    return "counts with 32 bits: pixels and taps stay below 2^29";
  }
  const bool strided = problem.stride != kUnitStep;
  if (strided && problem.pass == Pass::kDgrad) return "does not write pixels that no filter sees";
  const auto [x, y, inner] = tensors_of(problem);
  if (!inner && (strided || !planes(x) || !planes(y))) {
    return "reads channels side by side, or without stride pixels of whole images";
  }
  return is_step(problem.w_strides.c, problem.c, 1) ? nullptr : "reads channels of the filter side by side";
}

// Of all products.
int64_t sums_of(const PointwiseParams& params) {
  return int64_t{params.out.lines.extent} * params.out.length * params.by_images.divisor;
}
int64_t tiles_of(const PointwiseParams& params) {
  return int64_t{params.by_inner.divisor} * params.by_outer.divisor * params.by_images.divisor;
}

BlockClocks block_clocks(const PointwiseParams& params, const PointwiseTiling& tiling, int64_t element, bool wgmma,
                         int arch) {
  const PointwiseTile& tile = tiling.tile;
  auto copies = [](const PointwiseMatrix& matrix, int rows) {
    const double rate = matrix.vector_bytes == 16  ? kCopyBytes
                        : matrix.vector_bytes == 8 ? kEightBytes
                        : matrix.vector_bytes == 4 ? kFourBytes
                                                   : kScalarBytes;
    return rows * kPointwiseDepthBytes / rate;
  };
  const double rate =
      wgmma ? kProductBytes : kWarpProductBytes * product_rate(arch) / kFormTimes[static_cast<int>(tiling.form)];
  const double products = static_cast<double>(tile.m) * tile.n * kPointwiseDepthBytes / rate;
  const bool split = params.slice_steps < params.steps;
  // Of narrow stores each counts as more than its bytes, but lines of them are merged on their way.
  const double narrow = split ? 1 : std::sqrt(static_cast<double>(kPointwiseChunkBytes) / params.out.vector_bytes);
  const double tile_clocks = kTileClocks + narrow * tile.m * tile.n * (split ? 4. : element) / kStoreBytes;
  const bool scalar = std::min(params.a.vector_bytes, params.b.vector_bytes) == 2;
  const double wait = kStepClocks + kProductLatency * products + (scalar ? kScalarClocks : 0);
  return {tile_clocks + params.slice_steps * (copies(params.a, tile.m) + copies(params.b, tile.n) + products),
          tile_clocks + params.slice_steps * wait};
}

Plan plan_of_slices(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device,
                    PointwiseTiling tiling, int64_t wanted) {
  const PointwiseTile& tile = tiling.tile;
  const int64_t element = element_size(problem.dtype);
  const PointwiseParams params = pointwise_params(problem, tiling, wanted);
  Plan plan;
  plan.kernel = &entry;
  plan.block_threads = kPointwiseThreads;
  plan.split = ceil_div(params.steps, params.slice_steps);
  plan.grid = tiles_of(params) * plan.split;
  plan.workspace_bytes = plan.split > 1 ? plan.split * sums_of(params) * 4 : 0;
  const int out_element = plan.split > 1 ? 4 : static_cast<int>(element);
  auto smem_bytes = [&](int stages) { return tile.smem_bytes(stages, params.slice_steps, out_element); };
  tiling.stages = stages_of(tile, plan.grid, device, smem_bytes);
  plan.smem_bytes = smem_bytes(tiling.stages);
  plan.tiling = tiling;

  const BlockClocks block =
      block_clocks(params, tiling, element, entry.config.as<PointwiseConfig>().wgmma, device.arch);
  const int64_t resident = std::max<int64_t>(1, resident_blocks(plan.smem_bytes, device, tile.blocks_per_sm()));
  plan.cost_us = time_us({.clocks = clocks_of_blocks(block, plan.grid, resident, device),
                          .bytes = compulsory_bytes(problem) / kMemoryRate,
                          .shown = kShown,
                          .us = kUs},
                         device);
  if (plan.split > 1)
    plan.cost_us += kReduceUs + memory_us(2. * static_cast<double>(plan.workspace_bytes) / kPartialRate, device);
  return plan;
}

}  // namespace

PointwiseParams pointwise_params(const ConvProblem& problem, const PointwiseTiling& tiling, int64_t slices) {
  const auto [x, y, inner] = tensors_of(problem);
  const int64_t element = element_size(problem.dtype), stage_depth = kPointwiseDepthBytes / element;
  const PointwiseMatrix filter = filter_lines(problem);
  const PointwiseMatrix of_x = inner ? pixel_lines(x, element) : channel_lines(x, element);
  const PointwiseMatrix of_y = inner ? pixel_lines(y, element) : channel_lines(y, element);
  const bool wgrad = problem.pass == Pass::kWgrad, dgrad = problem.pass == Pass::kDgrad;
  PointwiseParams params{};
  params.a = wgrad ? of_y : !inner ? filter : dgrad ? of_y : of_x;
  params.b = wgrad ? of_x : inner ? filter : dgrad ? of_y : of_x;
  params.out = wgrad ? filter : dgrad ? of_x : of_y;
  params.bias_along_n = inner;
  params.stages = tiling.stages;
  params.adds_images = wgrad && !inner;
  params.m_inner = !inner;
  const int64_t images = inner ? 1 : problem.n;
  const int64_t depth = wgrad ? (inner ? y.n : 1) * y.h * y.w : dgrad ? problem.k : problem.c;
  params.depth = static_cast<int32_t>(depth);
  params.image_steps = static_cast<int32_t>(ceil_div(depth, stage_depth));
  const int64_t steps = params.image_steps * (params.adds_images ? images : 1);
  params.steps = static_cast<int32_t>(steps);
  params.slice_steps = static_cast<int32_t>(ceil_div(steps, slices));
  const int64_t tiles_m = ceil_div(params.out.lines.extent, tiling.tile.m);
  const int64_t tiles_n = ceil_div(params.out.length, tiling.tile.n);
  params.by_inner = FastDivmod(params.m_inner ? tiles_m : tiles_n);
  params.by_outer = FastDivmod(params.m_inner ? tiles_n : tiles_m);
  params.by_images = FastDivmod(params.adds_images ? 1 : images);
  return params;
}

Offer pointwise_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = type_why_not(problem, device)) return reason;
  if (const char* reason = why_not(problem)) return reason;
  const auto& config = entry.config.as<PointwiseConfig>();
  const bool inner = tensors_of(problem).channels_inner;
  using Form = PointwiseForm;
  PointwiseTiling tiling{};
  switch (problem.pass) {
    case Pass::kFprop: tiling.form = inner ? Form::kDepthDepth : Form::kDepthRows; break;
    case Pass::kDgrad: tiling.form = inner ? Form::kDepthRows : Form::kRowsRows; break;
    case Pass::kWgrad: tiling.form = inner ? Form::kRowsRows : Form::kDepthDepth; break;
  }
  const bool turned = problem.pass != Pass::kWgrad && !inner;  // channels are the product's rows
  tiling.tile = turned ? PointwiseTile{config.n, config.m} : PointwiseTile{config.m, config.n};
  if (config.wgmma && tiling.tile.m % kWgmmaRows != 0) return "multiplies 64 rows at once";
  const PointwiseParams whole = pointwise_params(problem, tiling, 1);
  const int64_t sums = sums_of(whole), tiles = tiles_of(whole);
  const int64_t least = ceil_div(whole.steps * int64_t{kPointwiseDepthBytes}, kMaxPointwiseChainBytes);
  if (tiles * least > kMaxPointwiseBlocks) return "would need more blocks than a grid has";
  // One slice needs no workspace; sums of several are counted with 32 bits.
  const int64_t room = sums > INT32_MAX ? 0 : workspace_room(problem, device, false) / (4 * sums);
  const int64_t most =
      std::max<int64_t>(1, std::min({kMaxPointwiseSlices, int64_t{whole.steps}, room, kMaxPointwiseBlocks / tiles}));
  if (least > most) return "adds up parts of long sums, which would need too much workspace";
  const auto of_slices = [&](int64_t slices) { return plan_of_slices(entry, problem, device, tiling, slices); };
  Plan best = best_of_slices(tiles, least, most, device, of_slices);
  if (best.smem_bytes > device.smem_optin_bytes) return "needs more shared memory";
  return best;
}

}  // namespace fastconv
