#include "fastconv/families/pointwise/taps_plan.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "fastconv/core/integers.h"
#include "fastconv/families/pointwise/cost.h"
#include "fastconv/families/pointwise/slices.h"
#include "fastconv/planner/gpus.h"
#include "fastconv/planner/scaled.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/conv_coords.cuh"
#include "fastconv/tile/cost.h"
#include "fastconv/tile/plan_reorder.h"
#include "fastconv/tile/plan_split.h"

namespace fastconv {
namespace {

using namespace cost::pointwise;

constexpr int64_t kMaxPhases = 64;
constexpr int64_t kTilePixels = 128;
constexpr int64_t kPackedAlign = 256;
constexpr int kMostPlaceBits = 29;  // of rows and columns, padding included; see ImageBounds

int32_t narrowed(int64_t value) { return static_cast<int32_t>(value); }

// The largest access that meets all steps of an operand.
int32_t vector_bytes(int64_t element, int32_t align, std::initializer_list<int64_t> steps) {
  int64_t bytes = std::min<int64_t>(kPointwiseChunkBytes, align);
  for (const int64_t step : steps) bytes = std::gcd(bytes, step * element);
  return narrowed(bytes);
}

// That count from 0 to below `extent`.
int bits_of(int64_t extent) { return std::bit_width(static_cast<uint64_t>(std::max<int64_t>(extent, 1) - 1)); }
// Rows and columns that windows reach, padding included.
Pair reach_of(const ConvProblem& problem) {
  const Side y = output_side(problem);
  const auto reach = [](int64_t extent, int64_t padding, int64_t taps, int64_t dilation, int64_t outputs,
                        int64_t stride) {
    return std::max({extent + 2 * padding, (taps - 1) * dilation + 1, (outputs - 1) * stride + 1}) + 1;
  };
  return {reach(problem.h, problem.padding.h, problem.r, problem.dilation.h, y.h, problem.stride.h),
          reach(problem.w, problem.padding.w, problem.s, problem.dilation.w, y.w, problem.stride.w)};
}

// Of places whose columns have so many bits and a sign. What is added up stays below twice the rows: a row that is
// missing is more negative than that.
uint32_t place_of(int64_t h, int64_t w, int shift) {
  return (static_cast<uint32_t>(h) << shift) + static_cast<uint32_t>(w);
}
ImageBounds bounds_of(int64_t height, int64_t width, int shift) {
  const uint32_t column_sign = 1U << (shift - 1), row_sign = 1U << 31;
  return {row_sign | column_sign,
          (row_sign - (static_cast<uint32_t>(height) << shift)) + (column_sign - static_cast<uint32_t>(width))};
}

TapAxis channels_of(int64_t channels, int64_t chunk) {
  TapAxis axis{};
  axis.by_channels = FastDivmod(ceil_div(channels, chunk) * chunk);
  axis.by_columns = FastDivmod(1);
  axis.extent = axis.by_channels.divisor;
  return axis;
}
// Of so many rows and columns of taps, of which a stage is so many elements.
void count_taps(TapAxis& axis, int32_t rows, int32_t columns, int64_t stage) {
  const auto channels = static_cast<int32_t>(axis.by_channels.divisor);
  const int32_t of_row = std::max(1, columns), taps = narrowed(stage / channels), stage_rows = taps / of_row;
  axis.by_columns = FastDivmod(of_row);
  axis.extent = rows * columns * channels;
  axis.stage_channels = narrowed(stage % channels), axis.stage_columns = taps % of_row;
  axis.stage = stage_rows * axis.row + axis.stage_columns * axis.column + axis.stage_channels;
  axis.stage_place = stage_rows * axis.row_place + axis.stage_columns * axis.column_place;
  axis.next_column = axis.column - channels, axis.next_row = axis.row - columns * axis.column;
  axis.next_row_place = axis.row_place - columns * axis.column_place;
}

// What is multiplied: its bytes, and those that a part of a value takes in the workspace.
int64_t operand_size(const ConvProblem& problem, OperandForm operands) {
  return operands == OperandForm::kHalf ? element_size(problem.dtype) : operand_bytes(operands);
}
// As chunks in the workspace, of 16 bits whatever they are.
Operand packed_operand(OperandForm operands) {
  return operands == OperandForm::kHalf ? Operand::kBf16 : operand_of(operands);
}
int64_t chunked(int64_t channels, int64_t element) {
  const int64_t chunk = kPointwiseChunkBytes / element;
  return ceil_div(channels, chunk) * chunk;
}

bool channels_inner(const Side& side) { return is_step(side.stride.c, side.c, 1); }
// The output's channels lie apart, its pixels mostly side by side.
bool is_turned(const ConvProblem& problem) {
  return problem.pass != Pass::kWgrad && !channels_inner(target_side(problem));
}

// How far before a pixel a later one lies at most: windows overlap, and what follows the last column, or the last row,
// begins again at the first.
int64_t behind_of(int64_t image, int64_t row, int64_t last_row, int64_t last_column) {
  return std::max({int64_t{0}, last_column - row, last_row + last_column - image});
}
// Whether 32 bits count where a tile's windows begin, in bytes from the first of them in memory; see TapWindowLoader.
bool tiles_fit_uint32(const ConvProblem& problem, const Strides& from, int64_t element) {
  const ConvMap map = make_conv_map(problem, true);
  const int64_t rows = std::max(1, map.h.target_extent / map.h.target_step);  // of the smallest phase
  const int64_t columns = std::max(1, map.w.target_extent / map.w.target_step);
  const int64_t row = map.h.source_step * from.h, column = map.w.source_step * from.w;
  const int64_t last_row = (map.h.rows - 1) * row, last_column = (map.w.rows - 1) * column;
  // Of so many, each of so many pixels, a tile's pixels take so many steps.
  const auto steps = [](int64_t pixels, int64_t count) { return std::min((kTilePixels - 1) / pixels + 1, count - 1); };
  const int64_t ahead = steps(rows * columns, problem.n) * from.n + steps(columns, map.h.rows) * row + last_column;
  return ahead + behind_of(from.n, row, last_row, last_column) < UINT32_MAX / element;
}
// As it is given: whole chunks of neighbouring channels.
bool reads_chunks(const ConvProblem& problem, OperandForm operands, const Side& side, bool in_tiles) {
  const Strides step = image_strides(side);
  return !has_parts(operands) && channels_inner(side) &&
         vector_bytes(element_size(problem.dtype), side.align, {side.c, step.n, step.h, step.w}) ==
             kPointwiseChunkBytes &&
         (!in_tiles || tiles_fit_uint32(problem, step, element_size(problem.dtype)));
}
bool reads_filter(const ConvProblem& problem, OperandForm operands) {
  const Strides& w = problem.w_strides;
  return problem.pass == Pass::kFprop && !has_parts(operands) && is_step(w.c, problem.c_per_group(), 1) &&
         vector_bytes(element_size(problem.dtype), problem.w_align,
                      {problem.c_per_group(), used_stride(w.n, problem.k), used_stride(w.h, problem.r),
                       used_stride(w.w, problem.s)}) == kPointwiseChunkBytes;
}

// With what a stage of so many pixels is.
PixelAxis counted_on(PixelAxis axis, int64_t rows, int64_t columns, int64_t stage) {
  const int64_t per_image = std::max<int64_t>(1, rows * columns), rest = stage % per_image;
  axis.rows = narrowed(rows), axis.columns = narrowed(columns);
  axis.stage_rows = narrowed(rest / std::max<int64_t>(1, columns));
  axis.stage_columns = narrowed(rest % std::max<int64_t>(1, columns));
  axis.stage = stage / per_image * axis.image + axis.stage_rows * axis.row + axis.stage_columns * axis.column;
  axis.next_row = axis.row - columns * axis.column, axis.next_image = axis.image - rows * axis.row;
  axis.stage_place = axis.stage_rows * axis.row_place + axis.stage_columns * axis.column_place;
  axis.next_row_place = axis.row_place - static_cast<uint32_t>(columns) * axis.column_place;
  axis.next_image_place = -static_cast<uint32_t>(rows) * axis.row_place;
  return axis;
}

// An image tensor, or the filter's rows and taps, as the kernel reads it.
struct Seen {
  Side side;
  int64_t group, part;  // elements
};
Seen seen_as(const ConvProblem& problem, OperandForm operands, const Side& side, bool is_packed) {
  if (!is_packed) {
    Seen given{side, side.c * side.stride.c, 0};
    given.side.stride = image_strides(side);
    return given;
  }
  const Operand operand = packed_operand(operands);
  const int64_t group = split_channels(side.c, operand);
  return {split_side(side, problem.groups, operand, value_parts(operands)), group, problem.groups * group};
}
struct SeenFilter {
  Strides stride;  // n: of its rows
  int64_t group, part;
};
SeenFilter seen_filter(const ConvProblem& problem, OperandForm operands, bool is_packed) {
  if (!is_packed) {
    const Strides& w = problem.w_strides;
    const Strides given{used_stride(w.n, problem.k), 1, used_stride(w.h, problem.r), used_stride(w.w, problem.s)};
    return {given, problem.k_per_group() * given.n, 0};
  }
  const Strides packed = filter_split_strides(problem, packed_operand(operands));
  const int64_t rows = problem.pass == Pass::kDgrad ? problem.c_per_group() : problem.k_per_group();
  return {packed, rows * packed.n, problem.groups * rows * packed.n};
}

const char* precision_why_not(const KernelEntry& entry, const ConvProblem& problem) {
  switch (entry.config.as<PointwiseConfig>().operands) {
    case OperandForm::kTf32: return problem.precision == Precision::kTf32 ? nullptr : "rounds to TF32";
    case OperandForm::kParts: return problem.precision == Precision::kBf16x3 ? nullptr : "is for bf16x3 alone";
    case OperandForm::kPromotedParts:
      if (problem.precision != Precision::kIeee) return "is for ieee alone";
      return products_of_a_sum(problem) < kLeastTensorProducts ? "is less exact than sums of so few products" : nullptr;
    case OperandForm::kPromotedScaled: return scaled_why_not(entry, problem);
    default: return nullptr;
  }
}

const char* why_not(const KernelEntry& entry, const ConvProblem& problem) {
  if (const char* reason = precision_why_not(entry, problem)) return reason;
  const Side x = input_side(problem), y = output_side(problem);
  const int64_t element = operand_size(problem, entry.config.as<PointwiseConfig>().operands);
  const int64_t of_tap = chunked(std::max(problem.c_per_group(), problem.k_per_group()), element);
  if (!images_fit_int32(problem) || problem.n * std::max(problem.h * problem.w, y.h * y.w) >= kMaxExtent ||
      std::max(problem.k, problem.c) * of_tap * problem.r * problem.s >= kMaxExtent ||
      problem.n * problem.groups >= kMaxExtent || !splittable(x, problem.groups) || !splittable(y, problem.groups) ||
      !filter_splittable(problem)) {
    return "counts with 32 bits: pixels and taps stay below 2^29";
  }
  const Pair reach = reach_of(problem);
  if (bits_of(reach.h) + bits_of(reach.w) > kMostPlaceBits) {
    return "counts rows and columns with 29 bits together, padding included";
  }
  if (problem.pass == Pass::kWgrad && problem.r > 1 && problem.s > 1 &&
      problem.w_strides.h != problem.s * problem.w_strides.w) {
    return "writes rows of taps that follow each other";
  }
  const Pair phases = tap_phases(problem);
  return phases.h * phases.w > kMaxPhases ? "has a launch for each phase of its strides, of which there are too many"
                                          : nullptr;
}

int64_t tiles_of(const TapParams& params) {
  return int64_t{params.by_inner.divisor} * params.by_outer.divisor * params.by_images.divisor;
}

Plan plan_of_slices(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device, TapTiling tiling,
                    int64_t wanted) {
  const PointwiseTile& tile = tiling.tile;
  const OperandForm operands = entry.config.as<PointwiseConfig>().operands;
  const int64_t element = element_size(problem.dtype);
  const int products = split_products(value_parts(operands));
  const Pair phases = tap_phases(problem);
  Plan plan;
  plan.kernel = &entry;
  plan.block_threads = kPointwiseThreads;
  plan.split = wanted;
  const int out_element = plan.split > 1 ? 4 : static_cast<int>(element);
  // All phases differ by a tap at most; the first has the most pixels, and one has the most steps.
  TapParams most = tap_params(problem, operands, tiling, wanted, 0, 0);
  int64_t blocks = 0;
  double steps = 0;
  for (int32_t h = 0; h < phases.h; ++h) {
    for (int32_t w = 0; w < phases.w; ++w) {
      const TapParams params = tap_params(problem, operands, tiling, wanted, h, w);
      if (params.slice_steps > most.slice_steps) most.slice_steps = params.slice_steps;
      blocks += tiles_of(params) * wanted;
      steps += static_cast<double>(tiles_of(params)) * params.steps * products;
    }
  }
  const int tables =
      problem.pass == Pass::kWgrad ? tap_table_bytes(static_cast<int>(operand_size(problem, operands))) : 0;
  auto smem_bytes = [&](int stages) {
    return tile.smem_bytes(stages, most.slice_steps * products, out_element) + tables;
  };
  tiling.stages = stages_of(tile, blocks, device, smem_bytes);
  plan.grid = blocks;
  plan.smem_bytes = smem_bytes(tiling.stages);
  plan.tiling = tiling;
  const int64_t sums = int64_t{most.out.lines.extent} * most.out.length * most.by_images.divisor;
  const int64_t partial_bytes = wanted > 1 ? wanted * sums * 4 : 0;
  plan.workspace_bytes = tiling.packed_bytes() + partial_bytes;

  const double form_times = problem.pass == Pass::kWgrad ? kTapFormTimes[1] : kTapFormTimes[0];
  const double of_products = static_cast<double>(tile.m) * tile.n * kPointwiseDepthBytes * form_times /
                             (kWarpProductBytes * product_rate(device.arch));
  const double tile_clocks = kTapTileClocks + tile.m * tile.n * static_cast<double>(out_element) / kStoreBytes;
  const double step = (tile.m + tile.n) * kPointwiseDepthBytes / kCopyBytes + of_products;
  const double wait = kStepClocks + kProductLatency * of_products;
  const double alone = tile_clocks + most.slice_steps * products * wait;
  const int64_t resident = std::max<int64_t>(1, resident_blocks(plan.smem_bytes, device, tile.blocks_per_sm()));
  const BlockClocks block{tile_clocks + steps / static_cast<double>(std::max<int64_t>(1, blocks)) * step, alone};
  const auto launches = static_cast<double>(phases.h * phases.w);
  plan.cost_us = time_us({.clocks = clocks_of_blocks(block, blocks, resident, device),
                          .bytes = (compulsory_bytes(problem) + phase_bytes(problem, device)) / kMemoryRate,
                          .shown = kShown,
                          .us = kUs * launches},
                         device);
  if (wanted > 1) {
    plan.cost_us += kReduceUs * launches + memory_us(2. * static_cast<double>(partial_bytes) / kPartialRate, device);
  }
  if (device.arch == 90) plan.cost_us *= kTapsOnHopper;
  if (tiling.packed_bytes() > 0) {
    const double parts_bytes = static_cast<double>(value_parts(operands) * operand_size(problem, operands));
    const auto packed = static_cast<double>(tiling.packed_bytes());
    plan.cost_us += kPackUs + rewrite_us(packed / parts_bytes * static_cast<double>(element), packed, 1, device);
  }
  return measured(std::move(plan), problem, device);
}

}  // namespace

Pair tap_phases(const ConvProblem& problem) {
  if (problem.pass != Pass::kDgrad) return kUnitStep;
  const ConvMap map = make_conv_map(problem, true);
  return {map.h.phases, map.w.phases};
}

TapSplits tap_splits(const Plan& plan, const ConvProblem& problem) {
  const auto& tiling = plan.tiling.as<TapTiling>();
  const OperandForm operands = plan.kernel->config.as<PointwiseConfig>().operands;
  const Operand operand = packed_operand(operands);
  const int parts = value_parts(operands), element = static_cast<int>(element_size(problem.dtype));
  TapSplits splits{};
  if (tiling.source_bytes > 0) {
    splits.source = make_split(source_side(problem), problem.groups, operand, parts, element);
  }
  if (tiling.other_bytes > 0) {
    splits.other = problem.pass == Pass::kWgrad
                       ? make_split(output_side(problem), problem.groups, operand, parts, element)
                       : make_filter_split(problem, operand, parts);
  }
  return splits;
}

TapParams tap_params(const ConvProblem& problem, OperandForm operands, const TapTiling& tiling, int64_t slices,
                     int32_t phase_h, int32_t phase_w) {
  const ConvMap map = make_conv_map(problem, true);
  const AxisPhase h = map.h.phase(phase_h), w = map.w.phase(phase_w);
  const bool wgrad = problem.pass == Pass::kWgrad, turned = tiling.turned;
  const int64_t element = element_size(problem.dtype);  // of what is written
  const int64_t chunk = kPointwiseChunkBytes / operand_size(problem, operands);
  const int64_t stage_depth = kPointwiseDepthBytes / operand_size(problem, operands);
  const Seen source = seen_as(problem, operands, source_side(problem), tiling.source_bytes > 0);
  const Side target = target_side(problem);
  const Strides& from = source.side.stride;
  const Strides to = image_strides(target);
  const int64_t rows = ceil_div(map.h.target_extent - h.index, map.h.target_step);
  const int64_t columns = ceil_div(map.w.target_extent - w.index, map.w.target_step);
  const int64_t taps = int64_t{h.taps} * w.taps;
  const int64_t pixels = (turned ? 1 : problem.n) * rows * columns;  // of a product

  // The source through its window.
  TapMatrix gathered{};
  PixelAxis& pixels_seen = gathered.pixels;
  pixels_seen.extent = narrowed(pixels);
  pixels_seen.by_image = FastDivmod(std::max<int64_t>(1, rows * columns));
  pixels_seen.by_row = FastDivmod(std::max<int64_t>(1, columns));
  pixels_seen.first = h.offset * from.h + w.offset * from.w;
  pixels_seen.image = from.n, pixels_seen.row = map.h.source_step * from.h,
  pixels_seen.column = map.w.source_step * from.w;
  pixels_seen.behind =
      behind_of(pixels_seen.image, pixels_seen.row, (rows - 1) * pixels_seen.row, (columns - 1) * pixels_seen.column);
  const int shift = bits_of(reach_of(problem).w) + 1;
  pixels_seen.bounds = bounds_of(map.h.source_extent, map.w.source_extent, shift);
  pixels_seen.first_place = place_of(h.offset, w.offset, shift);
  pixels_seen.row_place = place_of(map.h.source_step, 0, shift);
  pixels_seen.column_place = place_of(0, map.w.source_step, shift);
  gathered.across = channels_of(map.channels, chunk);
  gathered.across.row = map.h.tap_source_step * from.h, gathered.across.column = map.w.tap_source_step * from.w;
  gathered.across.row_place = place_of(map.h.tap_source_step, 0, shift);
  gathered.across.column_place = place_of(0, map.w.tap_source_step, shift);
  count_taps(gathered.across, h.taps, w.taps, stage_depth);
  gathered.image = turned ? from.n : 0, gathered.group = source.group, gathered.part = source.part;

  // The filter's taps.
  const SeenFilter filter = seen_filter(problem, operands, !wgrad && tiling.other_bytes > 0);
  TapMatrix filters{};
  filters.group = filter.group, filters.part = filter.part;
  filters.pixels.extent = map.filters, filters.pixels.image = filter.stride.n;
  filters.across = channels_of(map.channels, chunk);
  filters.across.first = h.first_tap * filter.stride.h + w.first_tap * filter.stride.w;
  filters.across.row = map.h.tap_step * filter.stride.h, filters.across.column = map.w.tap_step * filter.stride.w;
  count_taps(filters.across, h.taps, w.taps, stage_depth);

  TapParams params{};
  PointwiseMatrix& out = params.out;
  params.out_first = wgrad ? 0 : h.index * to.h + w.index * to.w;
  int64_t depth = taps * gathered.across.by_channels.divisor;
  if (wgrad) {
    const Seen dy = seen_as(problem, operands, output_side(problem), tiling.other_bytes > 0);
    PixelAxis of_y = pixels_seen;
    of_y.first = 0, of_y.image = dy.side.stride.n, of_y.row = dy.side.stride.h, of_y.column = dy.side.stride.w;
    of_y.bounds = bounds_of(rows, columns, shift);
    of_y.first_place = 0, of_y.row_place = place_of(1, 0, shift), of_y.column_place = 1;
    params.a.pixels = counted_on(of_y, rows, columns, stage_depth);
    params.a.across = channels_of(map.filters, chunk);
    params.a.group = dy.group, params.a.part = dy.part;
    gathered.pixels = counted_on(pixels_seen, rows, columns, stage_depth);
    params.b = gathered;
    depth = pixels;
    const Strides& written = problem.w_strides;
    const Strides& given = filter.stride;  // as it lies
    const int64_t of_tap = chunked(problem.c_per_group(), operand_size(problem, operands));
    out.lines.extent = map.filters, out.lines.column = given.n;
    out.length = narrowed(taps * of_tap);
    params.out_group = filter.group;
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
    params.columns.by_row = pixels_seen.by_row, params.columns.row = row, params.columns.column = column;
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
    lines.by_image = pixels_seen.by_image, lines.by_row = pixels_seen.by_row;
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
  if (const char* reason = type_why_not(problem, device)) return reason;
  if (const char* reason = why_not(entry, problem)) return reason;
  TapTiling tiling{};
  tiling.turned = is_turned(problem);
  tiling.tile = tiling.turned ? PointwiseTile{config.n, config.m} : PointwiseTile{config.m, config.n};
  const Side source = source_side(problem), y = output_side(problem);
  const Operand operand = packed_operand(config.operands);
  const int parts = value_parts(config.operands);
  const bool wgrad = problem.pass == Pass::kWgrad;
  if (!reads_chunks(problem, config.operands, source, !wgrad)) {
    tiling.source_bytes = round_up(split_bytes(source, problem.groups, operand, parts), kPackedAlign);
  }
  if (wgrad ? !reads_chunks(problem, config.operands, y, false) : !reads_filter(problem, config.operands)) {
    tiling.other_bytes =
        round_up(wgrad ? split_bytes(y, problem.groups, operand, parts) : filter_split_bytes(problem, operand, parts),
                 kPackedAlign);
  }
  const Seen read = seen_as(problem, config.operands, source, tiling.source_bytes > 0);
  const int64_t element = operand_size(problem, config.operands);
  if (!wgrad && !tiles_fit_uint32(problem, read.side.stride, element)) return "counts a tile's bytes with 32 bits";
  const Pair phases = tap_phases(problem);
  int64_t tiles = 0, sums = 0, steps = 1;
  for (int32_t h = 0; h < phases.h; ++h) {
    for (int32_t w = 0; w < phases.w; ++w) {
      const TapParams params = tap_params(problem, config.operands, tiling, 1, h, w);
      tiles += tiles_of(params), steps = std::max<int64_t>(steps, params.steps);
      sums = std::max(sums, int64_t{params.out.lines.extent} * params.out.length * params.by_images.divisor);
    }
  }
  const int64_t least = ceil_div(steps * int64_t{kPointwiseDepthBytes}, kMaxPointwiseChainBytes);
  if (tiles * least > kMaxPointwiseBlocks) return "would need more blocks than a grid has";
  const int64_t free_bytes = workspace_room(problem, device, is_scaled(entry)) - tiling.packed_bytes();
  if (free_bytes < 0) return "packs tensors, for which there is no workspace";
  const int64_t room = sums > INT32_MAX ? 0 : free_bytes / (4 * std::max<int64_t>(1, sums));
  const int64_t most = std::max<int64_t>(
      1, std::min({kMaxPointwiseSlices, steps, room, kMaxPointwiseBlocks / std::max<int64_t>(1, tiles)}));
  if (least > most) return "adds up parts of long sums, which would need too much workspace";
  const auto of_slices = [&](int64_t slices) {  // of which none is empty, but of phases with fewer steps
    const int64_t filled = ceil_div(steps, ceil_div(steps, slices));
    return plan_of_slices(entry, problem, device, tiling, filled);
  };
  Plan best = best_of_slices(tiles, least, most, device, of_slices);
  if (best.smem_bytes > device.smem_optin_bytes) return "needs more shared memory";
  return best;
}

}  // namespace fastconv
