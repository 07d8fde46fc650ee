#include "fastconv/families/pointwise/taps_plan.h"

#include <algorithm>
#include <numeric>

#include "fastconv/core/integers.h"
#include "fastconv/families/pointwise/cost.h"
#include "fastconv/families/pointwise/slices.h"
#include "fastconv/planner/scaled.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {
namespace {

using namespace cost::pointwise;

constexpr int64_t kMaxPhases = 64;
constexpr int64_t kTilePixels = 128;
constexpr int64_t kMaxPixels = 1 << 15;  // of a side, padding included; see kBeforeImages

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

bool channels_inner(const Side& side) { return is_step(side.stride.c, side.c, 1); }
const Side& source_of(const ConvProblem& problem, const Side& x, const Side& y) {
  return problem.pass == Pass::kDgrad ? y : x;
}

// Chunks of neighbouring channels, of which both tensors have whole ones where they are read.
bool reads_chunks(const ConvProblem& problem) {
  const int64_t element = element_size(problem.dtype);
  const Side x = input_side(problem), y = output_side(problem);
  const auto whole = [&](const Side& side) {
    const Strides step = image_strides(side);
    return channels_inner(side) &&
           vector_bytes(element, side.align, {side.c, step.n, step.h, step.w}) == kPointwiseChunkBytes;
  };
  return whole(source_of(problem, x, y)) && (problem.pass != Pass::kWgrad || whole(y));
}
// The filter as it is given: chunks of neighbouring channels.
bool packs_filter(const ConvProblem& problem) {
  if (problem.pass == Pass::kWgrad) return false;
  const Strides& w = problem.w_strides;
  return !is_step(w.c, problem.c_per_group(), 1) ||
         vector_bytes(element_size(problem.dtype), problem.w_align,
                      {problem.c_per_group(), used_stride(w.n, problem.k), used_stride(w.h, problem.r),
                       used_stride(w.w, problem.s)}) < kPointwiseChunkBytes;
}
int64_t chunked(int64_t channels, int64_t element) {
  const int64_t chunk = kPointwiseChunkBytes / element;
  return ceil_div(channels, chunk) * chunk;
}
int64_t packed_bytes(const ConvProblem& problem) {
  const int64_t element = element_size(problem.dtype), of_tap = chunked(problem.c_per_group(), element);
  return ceil_div(problem.k * problem.r * problem.s * of_tap * element, 256) * 256;
}
// The output's channels lie apart, its pixels mostly side by side.
bool is_turned(const ConvProblem& problem) {
  return problem.pass != Pass::kWgrad &&
         !channels_inner(problem.pass == Pass::kDgrad ? input_side(problem) : output_side(problem));
}

// Where a tile's windows begin, counted from its first pixel's; see TapLoader.
bool tiles_fit_int32(const ConvProblem& problem) {
  const ConvMap map = make_conv_map(problem, true);
  const Side x = input_side(problem), y = output_side(problem);
  const Strides from = image_strides(source_of(problem, x, y));
  const int64_t rows = std::max(1, map.h.target_extent / map.h.target_step);  // of the smallest phase
  const int64_t columns = std::max(1, map.w.target_extent / map.w.target_step);
  const auto reach = [](int64_t pixels, int64_t extent, int64_t step) {  // if so many are one of its steps
    return std::min(kTilePixels / pixels + 2, extent) * step;
  };
  const int64_t of_rows = reach(columns, map.h.rows, map.h.source_step * from.h);
  const int64_t of_columns = reach(1, map.w.rows, map.w.source_step * from.w);
  return reach(rows * columns, problem.n, from.n) + of_rows + of_columns < INT32_MAX;
}

const char* why_not(const ConvProblem& problem, TapReads reads) {
  if (problem.dtype == DType::kFloat32 && problem.precision != Precision::kTf32) return "rounds to TF32";
  const Side y = output_side(problem);
  const int64_t element = element_size(problem.dtype), of_tap = chunked(problem.c_per_group(), element);
  if (!images_fit_int32(problem) || problem.n * std::max(problem.h * problem.w, y.h * y.w) >= kMaxExtent ||
      problem.k * of_tap * problem.r * problem.s >= kMaxExtent || problem.n * problem.groups >= kMaxExtent) {
    return "counts with 32 bits: pixels and taps stay below 2^29";
  }
  const int64_t most_h = std::max(problem.h + 2 * problem.padding.h, problem.r * problem.dilation.h);
  const int64_t most_w = std::max(problem.w + 2 * problem.padding.w, problem.s * problem.dilation.w);
  if (std::max({most_h, most_w, y.h * problem.stride.h, y.w * problem.stride.w}) >= kMaxPixels) {
    return "counts rows and columns with 15 bits, padding included";
  }
  if (problem.pass == Pass::kWgrad && problem.r > 1 && problem.s > 1 &&
      problem.w_strides.h != problem.s * problem.w_strides.w) {
    return "writes rows of taps that follow each other";
  }
  const Pair phases = tap_phases(problem);
  if (phases.h * phases.w > kMaxPhases)
    return "has a launch for each phase of its strides, of which there are too many";
  if (reads == TapReads::kElements) return nullptr;
  if (!reads_chunks(problem)) return "reads whole chunks of 16 bytes of neighbouring channels";
  if (problem.pass != Pass::kWgrad && !tiles_fit_int32(problem)) return "counts a tile's elements with 32 bits";
  return is_turned(problem) ? "writes channels side by side" : nullptr;
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
  const int64_t partial_bytes = wanted > 1 ? wanted * sums * 4 : 0;
  plan.workspace_bytes = tiling.packed_bytes + partial_bytes;

  const bool single = entry.config.as<PointwiseConfig>().taps == TapReads::kElements, turned = tiling.turned;
  auto copies = [&](bool pixels, int rows) {
    const double rate = !pixels || !single ? kCopyBytes : element == 4 ? kFourBytes : kScalarBytes;
    return rows * kPointwiseDepthBytes / rate;
  };
  const bool wgrad = problem.pass == Pass::kWgrad;
  const int form = problem.pass == Pass::kFprop ? 0 : problem.pass == Pass::kDgrad ? 1 : 2;
  const double products =
      static_cast<double>(tile.m) * tile.n * kPointwiseDepthBytes / (kWarpProductBytes / kTapFormTimes[form]);
  const double tile_clocks = kTapTileClocks + tile.m * tile.n * static_cast<double>(out_element) / kStoreBytes;
  const double gathered = single && wgrad ? kGatheredPixels : 1;
  const double step = gathered * (copies(wgrad || !turned, tile.m) + copies(wgrad || turned, tile.n) + products);
  const double wait =
      gathered * (kStepClocks + kProductLatency * products + (single && element == 2 ? 2 * kScalarClocks : 0));
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
    plan.cost_us += kReduceUs * launches + memory_us(2. * static_cast<double>(partial_bytes) / kPartialRate, device);
  }
  if (device.arch == 90) plan.cost_us *= kTapsOnHopper;
  if (tiling.packs()) plan.cost_us += kReduceUs + memory_us(2. * static_cast<double>(tiling.packed_bytes), device);
  return plan;
}

}  // namespace

Pair tap_phases(const ConvProblem& problem) {
  if (problem.pass != Pass::kDgrad) return kUnitStep;
  const ConvMap map = make_conv_map(problem, true);
  return {map.h.phases, map.w.phases};
}

TapPacking tap_packing(const ConvProblem& problem) {
  const int64_t element = element_size(problem.dtype), chunk = kPointwiseChunkBytes / element;
  const int64_t of_tap = chunked(problem.c_per_group(), element) / chunk, taps = problem.r * problem.s;
  const Strides& w = problem.w_strides;
  TapPacking packing{};
  packing.chunks = problem.k * taps * of_tap;
  packing.by_filter = FastDivmod(taps * of_tap), packing.by_tap = FastDivmod(of_tap);
  packing.by_columns = FastDivmod(problem.s);
  packing.filter = w.n, packing.row = w.h, packing.column = w.w, packing.channel = w.c;
  packing.channels = narrowed(problem.c_per_group());
  return packing;
}

TapParams tap_params(const ConvProblem& problem, const TapTiling& tiling, int64_t slices, int32_t phase_h,
                     int32_t phase_w) {
  const ConvMap map = make_conv_map(problem, true);
  const AxisPhase h = map.h.phase(phase_h), w = map.w.phase(phase_w);
  const bool wgrad = problem.pass == Pass::kWgrad, dgrad = problem.pass == Pass::kDgrad, turned = tiling.turned;
  const int64_t element = element_size(problem.dtype), chunk = kPointwiseChunkBytes / element;
  const int64_t stage_depth = kPointwiseDepthBytes / element;
  const Side x = input_side(problem), y = output_side(problem);
  const Side& source = dgrad ? y : x;
  const Side& target = dgrad ? x : y;
  const Strides from = image_strides(source), to = image_strides(target);
  const int64_t rows = ceil_div(map.h.target_extent - h.index, map.h.target_step);
  const int64_t columns = ceil_div(map.w.target_extent - w.index, map.w.target_step);
  const int64_t taps = int64_t{h.taps} * w.taps;
  const int64_t pixels = (turned ? 1 : problem.n) * rows * columns;  // of a product

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
  gathered.across.taps = narrowed(taps), gathered.across.channel = source.stride.c;
  gathered.across.row = map.h.tap_source_step * from.h, gathered.across.column = map.w.tap_source_step * from.w;
  gathered.across.row_h = map.h.tap_source_step, gathered.across.column_w = map.w.tap_source_step;
  gathered.image = turned ? from.n : 0, gathered.group = source.c * source.stride.c;

  // The filter's taps.
  const int64_t of_tap = chunked(problem.c_per_group(), element);
  const Strides given{used_stride(problem.w_strides.n, problem.k), 1, used_stride(problem.w_strides.h, problem.r),
                      used_stride(problem.w_strides.w, problem.s)};
  const Strides packed{problem.r * problem.s * of_tap, 1, problem.s * of_tap, of_tap};
  const Strides& filter = tiling.packs() ? packed : given;
  TapMatrix filters{};
  filters.group = problem.k_per_group() * filter.n;
  TapAxis of_filter = channels_of(map.channels, chunk);
  of_filter.by_columns = gathered.across.by_columns, of_filter.taps = narrowed(taps);
  of_filter.first = h.first_tap * filter.h + w.first_tap * filter.w;
  of_filter.row = map.h.tap_step * filter.h, of_filter.column = map.w.tap_step * filter.w;
  if (dgrad) {
    of_filter.channel = filter.n;
    filters.line_taps = of_filter;
    filters.across = channels_of(map.filters, chunk);
  } else {
    filters.pixels.extent = map.filters, filters.pixels.image = filter.n;
    filters.across = of_filter;
  }

  TapParams params{};
  PointwiseMatrix& out = params.out;
  params.out_first = wgrad ? 0 : h.index * to.h + w.index * to.w;
  int64_t depth = taps * gathered.across.by_channels.divisor;
  if (wgrad) {
    params.a.pixels = seen;
    PixelAxis& of_y = params.a.pixels;
    of_y.first = 0, of_y.image = to.n, of_y.row = to.h, of_y.column = to.w;
    of_y.height = narrowed(y.h), of_y.width = narrowed(y.w), of_y.first_h = of_y.first_w = 0;
    of_y.step_h = of_y.step_w = 1;
    params.a.across = channels_of(map.filters, chunk), params.a.across.channel = y.stride.c;
    params.a.group = y.c * y.stride.c;
    params.b = gathered;
    depth = pixels;
    const Strides& written = problem.w_strides;
    out.lines.extent = map.filters, out.lines.column = given.n;
    out.length = narrowed(taps * of_tap);
    params.out_group = problem.k_per_group() * given.n;
    params.columns.apart = of_tap != problem.c_per_group() || !is_step(written.c, map.channels, 1) ||
                           !is_step(given.w, problem.s, of_tap) || !is_step(given.h, problem.r, problem.s * of_tap);
    params.columns.by_row = FastDivmod(of_tap), params.columns.column = written.c;
    params.columns.row = problem.s > 1 ? given.w : given.h;
    params.columns.exist = map.channels;
    out.vector_bytes = params.columns.apart ? narrowed(element)
                                            : vector_bytes(element, problem.w_align, {problem.c_per_group(), given.n});
  } else if (turned) {
    params.a = filters, params.b = gathered;
    out.lines.extent = map.filters, out.lines.column = target.stride.c;
    out.length = narrowed(pixels);
    out.image = to.n, params.out_group = target.c * target.stride.c;
    const int64_t row = map.h.target_step * to.h, column = map.w.target_step * to.w;
    params.columns.apart = !is_step(column, columns, 1) || !is_step(row, rows, columns);
    params.columns.by_row = seen.by_row, params.columns.row = row, params.columns.column = column;
    params.columns.exist = narrowed(columns);
    out.vector_bytes =
        params.columns.apart
            ? narrowed(element)
            : vector_bytes(element, target.align,
                           {pixels, to.n, used_stride(target.stride.c, problem.groups * target.c), params.out_first});
    params.m_inner = true;
  } else {
    params.a = gathered, params.b = filters;
    PointwiseLines& lines = out.lines;
    lines.extent = narrowed(pixels);
    lines.pixels = true;
    lines.by_image = seen.by_image, lines.by_row = seen.by_row;
    lines.image = to.n, lines.row = map.h.target_step * to.h, lines.column = map.w.target_step * to.w;
    const bool rows_follow = rows == 1 || lines.row == columns * lines.column;
    const bool images_follow = target.n == 1 || lines.image == rows * columns * lines.column;
    if (rows_follow && images_follow && columns > 1) lines.pixels = false;
    out.length = map.filters, params.out_group = target.c * target.stride.c;
    out.vector_bytes = vector_bytes(element, target.align, {target.c, to.n, to.h, to.w});
    params.bias_along_n = true;
  }
  params.group_filters = problem.pass == Pass::kFprop ? map.filters : 0;
  params.stages = tiling.stages;
  params.steps = narrowed(ceil_div(depth, stage_depth));
  params.slice_steps = narrowed(ceil_div(std::max<int64_t>(params.steps, 1), slices));
  const int64_t tiles_m = std::max<int64_t>(1, ceil_div(out.lines.extent, tiling.tile.m));
  const int64_t tiles_n = std::max<int64_t>(1, ceil_div(out.length, tiling.tile.n));
  params.by_inner = FastDivmod(params.m_inner ? tiles_m : tiles_n);
  params.by_outer = FastDivmod(params.m_inner ? tiles_n : tiles_m);
  params.by_images = FastDivmod((turned ? problem.n : 1) * problem.groups);
  params.by_groups = FastDivmod(problem.groups);
  return params;
}

Offer tap_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const auto& config = entry.config.as<PointwiseConfig>();
  if (const char* reason = why_not(problem, config.taps)) return reason;
  TapTiling tiling{};
  tiling.turned = is_turned(problem);
  tiling.tile = tiling.turned ? PointwiseTile{config.n, config.m} : PointwiseTile{config.m, config.n};
  tiling.stages = tiling.tile.stages();
  tiling.packed_bytes = packs_filter(problem) ? packed_bytes(problem) : 0;
  const Pair phases = tap_phases(problem);
  int64_t tiles = 0, sums = 0, steps = 1;
  for (int32_t h = 0; h < phases.h; ++h) {
    for (int32_t w = 0; w < phases.w; ++w) {
      const TapParams params = tap_params(problem, tiling, 1, h, w);
      tiles += tiles_of(params), steps = std::max<int64_t>(steps, params.steps);
      sums = std::max(sums, int64_t{params.out.lines.extent} * params.out.length * params.by_images.divisor);
    }
  }
  const int64_t least = ceil_div(steps * int64_t{kPointwiseDepthBytes}, kMaxPointwiseChainBytes);
  if (tiles * least > kMaxPointwiseBlocks) return "would need more blocks than a grid has";
  const int64_t free_bytes = workspace_room(problem, device, false) - tiling.packed_bytes;
  if (free_bytes < 0) return "packs the filter, for which there is no workspace";
  const int64_t room = sums > INT32_MAX ? 0 : free_bytes / (4 * std::max<int64_t>(1, sums));
  const int64_t most = std::max<int64_t>(
      1, std::min({kMaxPointwiseSlices, steps, room, kMaxPointwiseBlocks / std::max<int64_t>(1, tiles)}));
  if (least > most) return "adds up parts of long sums, which would need too much workspace";
  const auto of_slices = [&](int64_t slices) { return plan_of_slices(entry, problem, device, tiling, slices); };
  Plan best = best_of_slices(tiles, least, most, device, of_slices);
  if (best.smem_bytes > device.smem_optin_bytes) return "needs more shared memory";
  return best;
}

}  // namespace fastconv
