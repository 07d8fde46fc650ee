#include "fastconv/families/pointwise/taps_plan.h"

#include <algorithm>
#include <numeric>

#include "fastconv/core/integers.h"
#include "fastconv/families/pointwise/cost.h"
#include "fastconv/planner/scaled.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {
namespace {

using namespace cost::pointwise;

constexpr int64_t kMaxSlices = 512;
constexpr int64_t kMaxChainBytes = 1024 * kPointwiseStepBytes;  // as in plan.cpp
constexpr int64_t kMaxPixels = 1 << 15;                         // of a side, padding included; see kBeforeImages

int32_t narrowed(int64_t value) { return static_cast<int32_t>(value); }

// The largest access that meets all steps of an operand.
int32_t vector_bytes(int64_t element, int32_t align, std::initializer_list<int64_t> steps) {
  int64_t bytes = std::min<int64_t>(kPointwiseChunkBytes, align);
  for (const int64_t step : steps) bytes = std::gcd(bytes, step * element);
  return narrowed(bytes);
}

TapAxis channels_of(int64_t channels, int64_t chunk) {
  TapAxis axis{};
  axis.by_channels = FastDivmod(ceil_div(channels, chunk) * chunk);
  axis.taps = 1, axis.channels = narrowed(channels), axis.channel = 1;
  return axis;
}

const char* why_not(const ConvProblem& problem) {
  if (problem.dtype == DType::kFloat32 && problem.precision != Precision::kTf32) return "rounds to TF32";
  const Side x = input_side(problem), y = output_side(problem);
  if (!images_fit_int32(problem) || problem.n * std::max(problem.h * problem.w, y.h * y.w) >= kMaxExtent ||
      problem.k * problem.c_per_group() * problem.r * problem.s >= kMaxExtent) {
    return "counts with 32 bits: pixels and taps stay below 2^29";
  }
  const int64_t most_h = std::max(problem.h + 2 * problem.padding.h, problem.r * problem.dilation.h);
  const int64_t most_w = std::max(problem.w + 2 * problem.padding.w, problem.s * problem.dilation.w);
  if (std::max(most_h, most_w) >= kMaxPixels) return "counts rows and columns with 15 bits, padding included";
  if (!is_step(x.stride.c, problem.c, 1) || !is_step(y.stride.c, problem.k, 1) ||
      !is_step(problem.w_strides.c, problem.c_per_group(), 1)) {
    return "reads channels side by side";
  }
  // Offsets from a tile's first pixel.
  const Side& source = problem.pass == Pass::kDgrad ? y : x;
  const int64_t images = 128 / std::max<int64_t>(1, problem.pass == Pass::kDgrad ? 1 : y.h * y.w) + 2;
  if (images * std::max<int64_t>(used_stride(source.stride.n, source.n), 1) >= INT32_MAX) {
    return "reads images that lie close to each other";
  }
  if (problem.pass == Pass::kWgrad) {
    const int64_t chunk = kPointwiseChunkBytes / element_size(problem.dtype), c = problem.c_per_group();
    const Strides& w = problem.w_strides;
    if (c % chunk != 0 || !is_step(w.w, problem.s, c) || !is_step(w.h, problem.r, problem.s * c)) {
      return "writes whole chunks of channels, and taps side by side";
    }
  }
  return nullptr;
}

int64_t tiles_of(const TapParams& params) {
  return int64_t{params.by_inner.divisor} * params.by_outer.divisor * params.by_images.divisor;
}

Plan plan_of_slices(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device, TapTiling tiling,
                    int64_t wanted) {
  const PointwiseTile& tile = tiling.tile;
  const int64_t element = element_size(problem.dtype);
  const Pair phases = tap_phases(problem);
  Plan plan;
  plan.kernel = &entry;
  plan.block_threads = kPointwiseThreads;
  plan.split = wanted;
  const int out_element = plan.split > 1 ? 4 : static_cast<int>(element);
  // All phases differ by a tap at most; the first has the most pixels, and one has the most steps.
  TapParams most = tap_params(problem, tiling, wanted, 0, 0);
  int64_t blocks = 0;
  double steps = 0;
  for (int32_t h = 0; h < phases.h; ++h) {
    for (int32_t w = 0; w < phases.w; ++w) {
      const TapParams params = tap_params(problem, tiling, wanted, h, w);
      if (params.slice_steps > most.slice_steps) most.slice_steps = params.slice_steps;
      blocks += tiles_of(params) * wanted;
      steps += static_cast<double>(tiles_of(params)) * params.steps;
    }
  }
  auto smem_bytes = [&](int stages) { return tile.smem_bytes(stages, most.slice_steps, out_element); };
  tiling.stages = tile.stages();
  if (blocks <= device.sm_count && smem_bytes(tile.deep_stages()) <= device.smem_optin_bytes) {
    tiling.stages = tile.deep_stages();
  }
  plan.grid = blocks;
  plan.smem_bytes = smem_bytes(tiling.stages);
  plan.tiling = tiling;
  const int64_t sums = int64_t{most.out.lines.extent} * most.out.length * most.by_images.divisor;
  plan.workspace_bytes = wanted > 1 ? wanted * sums * 4 : 0;

  auto copies = [](int32_t bytes, int rows) {
    return rows * kPointwiseDepthBytes /
           (bytes == 16  ? kCopyBytes
            : bytes == 8 ? kEightBytes
            : bytes == 4 ? kFourBytes
                         : kScalarBytes);
  };
  const int form = problem.pass == Pass::kFprop ? 0 : problem.pass == Pass::kDgrad ? 1 : 2;
  const double products =
      static_cast<double>(tile.m) * tile.n * kPointwiseDepthBytes / (kWarpProductBytes / kFormTimes[form]);
  const double tile_clocks = kTileClocks + tile.m * tile.n * static_cast<double>(out_element) / kStoreBytes;
  const double step = copies(most.a.vector_bytes, tile.m) + copies(most.b.vector_bytes, tile.n) + products;
  const double wait = kStepClocks + kProductLatency * products;
  const double alone = tile_clocks + most.slice_steps * wait;
  const int64_t resident = std::max<int64_t>(1, resident_blocks(plan.smem_bytes, device, tile.blocks_per_sm()));
  const auto waves = static_cast<double>(ceil_div(blocks, device.sm_count * resident));
  const double busy = static_cast<double>(ceil_div(blocks, int64_t{device.sm_count})) *
                      (tile_clocks + steps / static_cast<double>(std::max<int64_t>(1, blocks)) * step);
  const auto launches = static_cast<double>(phases.h * phases.w);
  plan.cost_us = time_us({.clocks = std::max(waves * alone, busy),
                          .bytes = compulsory_bytes(problem) / kMemoryRate,
                          .shown = kShown,
                          .us = kUs * launches},
                         device);
  if (wanted > 1) {
    plan.cost_us +=
        kReduceUs * launches + memory_us(2. * static_cast<double>(plan.workspace_bytes) / kPartialRate, device);
  }
  return plan;
}

}  // namespace

Pair tap_phases(const ConvProblem& problem) {
  if (problem.pass != Pass::kDgrad) return kUnitStep;
  const ConvMap map = make_conv_map(problem, true);
  return {map.h.phases, map.w.phases};
}

TapParams tap_params(const ConvProblem& problem, const TapTiling& tiling, int64_t slices, int32_t phase_h,
                     int32_t phase_w) {
  const ConvMap map = make_conv_map(problem, true);
  const AxisPhase h = map.h.phase(phase_h), w = map.w.phase(phase_w);
  const bool wgrad = problem.pass == Pass::kWgrad, dgrad = problem.pass == Pass::kDgrad;
  const int64_t element = element_size(problem.dtype), chunk = kPointwiseChunkBytes / element;
  const int64_t stage_depth = kPointwiseDepthBytes / element;
  const Side x = input_side(problem), y = output_side(problem);
  const Side& source = dgrad ? y : x;
  const Side& target = dgrad ? x : y;
  const Strides from = image_strides(source), to = image_strides(target);
  const int64_t rows = ceil_div(map.h.target_extent - h.index, map.h.target_step);
  const int64_t columns = ceil_div(map.w.target_extent - w.index, map.w.target_step);
  const int64_t taps = int64_t{h.taps} * w.taps, pixels = problem.n * rows * columns;

  // The source through its window.
  TapMatrix gathered{};
  PixelAxis& seen = gathered.pixels;
  seen.extent = narrowed(pixels);
  seen.by_image = FastDivmod(std::max<int64_t>(1, rows * columns));
  seen.by_row = FastDivmod(std::max<int64_t>(1, columns));
  seen.first = h.offset * from.h + w.offset * from.w;
  seen.image = from.n, seen.row = map.h.source_step * from.h, seen.column = map.w.source_step * from.w;
  seen.height = map.h.source_extent, seen.width = map.w.source_extent;
  seen.first_h = h.offset, seen.first_w = w.offset;
  seen.step_h = map.h.source_step, seen.step_w = map.w.source_step;
  gathered.across = channels_of(map.channels, chunk);
  gathered.across.by_columns = FastDivmod(std::max(1, w.taps));
  gathered.across.taps = narrowed(taps);
  gathered.across.row = map.h.tap_source_step * from.h, gathered.across.column = map.w.tap_source_step * from.w;
  gathered.across.row_h = map.h.tap_source_step, gathered.across.column_w = map.w.tap_source_step;
  gathered.group = source.c;
  gathered.vector_bytes = vector_bytes(element, source.align, {source.c, from.n, from.h, from.w});

  // The filter's taps.
  const Strides given = problem.w_strides;
  const Strides filter{used_stride(given.n, problem.k), 1, used_stride(given.h, problem.r),
                       used_stride(given.w, problem.s)};
  TapMatrix filters{};
  filters.group = problem.k_per_group() * filter.n;
  filters.vector_bytes = vector_bytes(element, problem.w_align, {problem.c_per_group(), filter.n, filter.h, filter.w});
  TapAxis of_filter = channels_of(map.channels, chunk);
  of_filter.by_columns = gathered.across.by_columns, of_filter.taps = narrowed(taps);
  of_filter.first = h.first_tap * filter.h + w.first_tap * filter.w;
  of_filter.row = map.h.tap_step * filter.h, of_filter.column = map.w.tap_step * filter.w;

  TapParams params{};
  PointwiseLines& lines = params.out.lines;
  params.out.length = map.filters;
  int64_t depth = 0;
  if (wgrad) {
    params.a.pixels = seen;
    PixelAxis& of_y = params.a.pixels;
    of_y.first = 0, of_y.image = to.n, of_y.row = to.h, of_y.column = to.w;
    of_y.height = narrowed(y.h), of_y.width = narrowed(y.w), of_y.first_h = of_y.first_w = 0;
    of_y.step_h = of_y.step_w = 1;
    params.a.across = channels_of(map.filters, chunk);
    params.a.group = y.c;
    params.a.vector_bytes = vector_bytes(element, y.align, {y.c, to.n, to.h, to.w});
    params.b = gathered;
    depth = pixels;
    lines.extent = map.filters, lines.column = filter.n;
    params.out.length = narrowed(taps * map.channels);
    params.out.image = filters.group;
    params.out.vector_bytes = filters.vector_bytes;
  } else {
    params.a = gathered;
    params.b = filters;
    if (dgrad) {
      of_filter.channel = filter.n;
      params.b.line_taps = of_filter;
      params.b.across = channels_of(map.filters, chunk);
    } else {
      params.b.pixels.extent = map.filters, params.b.pixels.image = filter.n;
      params.b.across = of_filter;
    }
    depth = taps * gathered.across.by_channels.divisor;
    lines.extent = narrowed(pixels);
    lines.pixels = true;
    lines.by_image = seen.by_image, lines.by_row = seen.by_row;
    lines.image = to.n, lines.row = map.h.target_step * to.h, lines.column = map.w.target_step * to.w;
    const bool rows_follow = rows == 1 || lines.row == columns * lines.column;
    const bool images_follow = target.n == 1 || lines.image == rows * columns * lines.column;
    if (rows_follow && images_follow && columns > 1) lines.pixels = false;
    params.out_first = h.index * to.h + w.index * to.w;
    params.out.image = target.c;
    params.out.vector_bytes = vector_bytes(element, target.align, {target.c, to.n, to.h, to.w});
    params.group_filters = dgrad ? 0 : map.filters;
    params.bias_along_n = true;
  }
  params.stages = tiling.stages;
  params.steps = narrowed(ceil_div(depth, stage_depth));
  params.slice_steps = narrowed(ceil_div(std::max<int64_t>(params.steps, 1), slices));
  params.by_inner = FastDivmod(std::max<int64_t>(1, ceil_div(params.out.length, tiling.tile.n)));
  params.by_outer = FastDivmod(std::max<int64_t>(1, ceil_div(lines.extent, tiling.tile.m)));
  params.by_images = FastDivmod(problem.groups);
  return params;
}

Offer tap_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(problem)) return reason;
  const auto& config = entry.config.as<PointwiseConfig>();
  TapTiling tiling{{config.m, config.n}, PointwiseTile{config.m, config.n}.stages()};
  const TapParams first = tap_params(problem, tiling, 1, 0, 0);
  if (std::min(first.a.vector_bytes, first.b.vector_bytes) < kPointwiseChunkBytes) return "reads 16 bytes at a time";
  const Pair phases = tap_phases(problem);
  int64_t tiles = 0, sums = 0, steps = 1;
  for (int32_t h = 0; h < phases.h; ++h) {
    for (int32_t w = 0; w < phases.w; ++w) {
      const TapParams params = tap_params(problem, tiling, 1, h, w);
      tiles += tiles_of(params), steps = std::max<int64_t>(steps, params.steps);
      sums = std::max(sums, int64_t{params.out.lines.extent} * params.out.length * params.by_images.divisor);
    }
  }
  const int64_t least = ceil_div(steps * int64_t{kPointwiseDepthBytes}, kMaxChainBytes);
  constexpr int64_t kMostBlocks = INT32_MAX / 2;
  if (tiles * least > kMostBlocks) return "would need more blocks than a grid has";
  const int64_t room = sums > INT32_MAX ? 0 : workspace_room(problem, device, false) / (4 * std::max<int64_t>(1, sums));
  const int64_t most =
      std::max<int64_t>(1, std::min({kMaxSlices, steps, room, kMostBlocks / std::max<int64_t>(1, tiles)}));
  if (least > most) return "adds up parts of long sums, which would need too much workspace";
  auto fits = [&](const Plan& plan) { return plan.smem_bytes <= device.smem_optin_bytes; };
  Plan best = plan_of_slices(entry, problem, device, tiling, least);
  if (!fits(best)) return "needs more shared memory";
  constexpr int64_t kMostRounds = 6;  // of a block an SM
  for (int64_t rounds = 1; rounds <= kMostRounds; ++rounds) {
    const int64_t slices = std::min(most, rounds * device.sm_count / std::max<int64_t>(1, tiles));
    if (slices <= least) continue;
    Plan plan = plan_of_slices(entry, problem, device, tiling, slices);
    if (fits(plan) && plan.cost_us < best.cost_us) best = plan;
  }
  return best;
}

}  // namespace fastconv
