#include "fastconv/families/few_channels/quads_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "fastconv/core/integers.h"
#include "fastconv/families/few_channels/cost.h"
#include "fastconv/families/few_channels/stem_config.h"
#include "fastconv/planner/scaled.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/epilogue.h"
#include "fastconv/tile/extent.h"

namespace fastconv {
namespace {

using namespace cost::few_channels;
using namespace cost::quads;

constexpr int64_t kBankBytes = 128;   // from a bank of shared memory to itself
constexpr int64_t kCopiedBytes = 16;  // at once, of a filter

// Clocks of an SM.
struct Clocks {
  double step, unit;                         // a unit's steps, and the rest of it
  double staged;                             // of what is staged at once, a channel
  double lone_step, lone_unit, lone_staged;  // the same if nothing hides a warp's latencies
  double tile;                               // pixels on their way, barriers
  double pack;                               // of a step of a set's filter
};
constexpr int64_t kLeastColumns = 24;  // of a tile that has others beside it
constexpr int64_t kMostPixels = 4096;  // of a tile with its halo

Clocks clocks_of(const QuadsConfig& config) {
  auto of = [](const double (&cost)[8]) {
    return Clocks{cost[0], cost[1], cost[2], cost[3], cost[4], cost[5], cost[6], cost[7]};
  };
  if (config.squares) return of(kSquares);
  switch (config.operands) {
    case QuadsOperands::kParts: return of(config.steps > 0 ? kPartsKept : kParts);
    case QuadsOperands::kScaledParts: return of(kScaled);
    default: return of(config.steps > 0 ? kHalvesKept : kHalves);
  }
}

// How a block finds its filters as they are.
void set_raw(QuadsParams& params, const ConvProblem& problem, bool brings) {
  const int64_t taps = problem.r * problem.s, elements = problem.c * taps;
  const Strides& stride = problem.w_strides;
  auto has_steps = [&](int64_t tap, int64_t channel) {
    return is_step(stride.n, problem.k, elements) && is_step(stride.c, problem.c, channel) &&
           is_step(stride.h, problem.r, problem.s * tap) && is_step(stride.w, problem.s, tap);
  };
  const bool inner = !has_steps(1, taps) && has_steps(problem.c, 1);
  const bool lines = (inner || has_steps(1, taps)) && problem.w_align % kCopiedBytes == 0;
  params.bringing = !brings ? QuadsBringing::kNone : lines ? QuadsBringing::kLines : QuadsBringing::kElements;
  params.filter_elements = static_cast<int32_t>(elements);
  params.raw_tap = static_cast<int32_t>(brings && lines && inner ? problem.c : 1);
  params.raw_channel = static_cast<int32_t>(brings && lines && inner ? 1 : taps);
  params.by_elements = FastDivmod(elements), params.by_taps = FastDivmod(taps);
}

QuadsAxis axis_of(const Axis& axis) {
  return {axis.source_step, axis.tap_source_step, axis.padding, axis.source_extent, axis.rows};
}

QuadsStrides strides_of(const Side& side) {
  auto step = [](int64_t stride, int64_t extent) { return static_cast<int32_t>(used_stride(stride, extent)); };
  return {side.stride.n, step(side.stride.h, side.h), step(side.stride.w, side.w), step(side.stride.c, side.c)};
}

int32_t ranges_of(const QuadsConfig& config) {
  return config.operands == QuadsOperands::kScaledParts ? range_bytes(quads_threads(config) / 32) : 0;
}

int64_t sets_of(const ConvProblem& problem) { return ceil_div(problem.k, int64_t{kQuadsSet}); }

// Pixels that a lane stores at once, side by side.
int64_t run_of(const ConvProblem& problem) { return 16 / element_size(problem.dtype); }

QuadsWords words_of(const ConvProblem& problem, const Side& side) {
  const int64_t pixels = kQuadsWordBytes / element_size(problem.dtype);
  if (side.w % pixels != 0 || side.align < kQuadsWordBytes || !keeps_multiples(side.stride.n, side.n, pixels) ||
      !keeps_multiples(side.stride.h, side.h, pixels)) {
    return QuadsWords::kNone;
  }
  if (side.stride.w == 1 && keeps_multiples(side.stride.c, side.c, pixels)) return QuadsWords::kPlanes;
  if (side.stride.c == 1 && side.stride.w == side.c) return QuadsWords::kInner;
  return QuadsWords::kNone;
}

bool whole_runs(const QuadsConfig& config, const ConvProblem& problem, const Side& side) {
  const bool inner = config.channels_inner;
  const int64_t run = inner ? kQuadsFilters : run_of(problem);
  const int64_t extent = inner ? side.c : side.w, step = inner ? side.stride.c : side.stride.w;
  return extent % run == 0 && step == 1 && side.align >= run * element_size(problem.dtype) &&
         keeps_multiples(side.stride.n, side.n, run) && keeps_multiples(side.stride.h, side.h, run) &&
         (inner ? keeps_multiples(side.stride.w, side.w, run) : keeps_multiples(side.stride.c, side.c, run));
}

// Between staged rows, so that what lanes read at once lies in different banks: four taps of two pixels side by side,
// or, of 8 bytes a quad, of four, which in channels_last are spread over six. Where a row of taps ends, the next one
// goes on in the banks behind what those see. No gap was found to help the weight gradient, whose lanes read eight taps
// of pairs of pixels, nor 16 bits of a stride in channels_last, nor rows of one or two taps.
int32_t row_gap(const QuadsConfig& config, const ConvProblem& problem, int32_t row_bytes) {
  const int32_t quad = quad_bytes(config.operands);
  const bool spread = quad == 8 && config.channels_inner;
  if (problem.pass == Pass::kWgrad || problem.s < 3 || (spread && problem.stride.w > 1)) return 0;
  const int64_t seen = quad > 8 ? problem.stride.w : spread ? 5 : problem.stride.w + 1;
  const int64_t wanted = round_up(((problem.s - 1) * problem.dilation.w + 1 + seen) * quad, int64_t{16});
  return static_cast<int32_t>(((wanted - row_bytes) % kBankBytes + kBankBytes) % kBankBytes);
}

int32_t smem_of(const QuadsConfig& config, const QuadsParams& params) {
  // What is loaded a step ahead ends a step behind the filter, whatever is there; where nothing is, this is seldom
  // more.
  const int32_t read = params.filter_at + (params.sets * params.steps + 1) * params.step_bytes();
  return std::max(params.first_range_at + ranges_of(config), config.steps > 0 || config.squares ? 0 : read);
}

// Columns and rows of a square, otherwise 1.
int64_t side_of(const QuadsConfig& config) { return config.squares ? kQuadsSquare : 1; }

double cost_us(const QuadsConfig& config, const ConvProblem& problem, const DeviceSpec& device,
               const QuadsParams& params, int32_t warps) {
  const double blocks = double(params.walkers) * params.by_set_blocks.divisor;
  const double at_once = std::ceil(blocks / device.sm_count);  // of the busiest SM
  const double tiles = std::ceil(double(params.tiles) / params.walkers);
  const double units =
      config.squares ? double(params.tile_p) * params.tile_q / (kQuadsSquare * kQuadsSquare)
                     : std::ceil(double(params.tile_p) * params.tile_q / quads_pixels(config.operands)) * params.sets;
  const double steps = config.squares ? params.cells.steps : params.steps;
  const double workers = config.squares ? warps / 4 : warps;
  const Clocks of = clocks_of(config);
  const double staged = double(params.units) * params.channels;
  // What is stored by elements takes as many accesses; not measured.
  const double stored = params.whole_runs || (config.squares && !config.channels_inner) ? 1
                        : config.channels_inner                                         ? kQuadsFilters
                                                                                        : params.run;
  const double busy = at_once * (units * (steps * of.step + stored * of.unit) + staged * of.staged);
  const double lone =
      std::ceil(units / workers) * (steps * of.lone_step + stored * of.lone_unit) + staged * of.lone_staged + of.tile;
  const double clocks = params.sets * params.steps * of.pack + tiles * std::max(busy, lone);
  const auto parts = static_cast<uint32_t>(ceil_div(params.w.rows, params.tile_q));
  const double row_bytes = double(params.tile_q) * element_size(problem.dtype);
  const double shared = parts > 1 && params.target.w == 1 ? kSharedBytes / row_bytes : 0;
  const double us = time_us({.clocks = clocks,
                             .bytes = (1 + shared) * compulsory_bytes(problem) / kStoredRate,
                             .shown = kShown,
                             .fades = true},
                            device);
  const int halved = std::max(0, static_cast<int>(std::bit_width(parts - 1)) - 1);
  return kStartUs + us * (1 + kHalved * halved) * (problem.c == 1 ? kOneChannel : 1);
}

const char* precision_why_not(QuadsOperands operands, const ConvProblem& problem) {
  switch (operands) {
    case QuadsOperands::kHalf: return nullptr;
    case QuadsOperands::kParts:
      return problem.precision != Precision::kIeee ? nullptr : "has fewer parts of a value than all of its bits take";
    case QuadsOperands::kScaledParts: return tile_scaled_why_not(2, problem);
    case QuadsOperands::kFloats: break;
  }
  return "is for tiles that one scale does not fit";
}

// The cheapest tiling; none if plan.kernel is null.
Plan cheapest(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const ConvMap map = make_conv_map(problem, false);
  const QuadsConfig& config = entry.config.as<QuadsConfig>();
  const int32_t most_threads = quads_threads(config);
  const int64_t side = side_of(config), least_sets = config.squares ? kQuadsSquareSets : 1;
  const int64_t sets = sets_of(problem), steps = ceil_div(problem.r * problem.s, int64_t{kQuadsStepTaps});
  Plan best;
  for (int64_t parts = 1; parts <= map.w.rows; parts *= 2) {
    // Whole runs, so that a lane's lie in a row; of pixels side by side whole sectors, if other tiles are beside them.
    const bool sectors = parts > 1 && !config.channels_inner;
    // Narrower ones were not measured: only where no other is possible.
    if (parts > 1 && map.w.rows / parts < (config.squares ? side : kLeastColumns) && best.kernel != nullptr) break;
    const int64_t tile_q = round_up(ceil_div(map.w.rows, parts), std::max(side, run_of(problem) * (sectors ? 2 : 1)));
    for (int64_t tile_p = side; tile_p <= round_up(map.h.rows, side) && tile_p <= 64;
         tile_p += round_up(1 + tile_p / 8, side)) {
      const int64_t halo_h = source_extent(map.h, tile_p), halo_w = source_extent(map.w, tile_q);
      if (halo_h > kMostPixels / halo_w) break;
      for (const int32_t threads : {most_threads / 2, most_threads}) {
        if (config.squares && threads % 128 != 0) continue;
        for (int64_t some = config.squares ? least_sets : sets; some >= least_sets; some /= 2) {
          // Each of a block's warps has one.
          if (config.steps > 0 && threads / 32 % some != 0) continue;
          // Before anything counts its bytes with 32 bits: a step of a set has more than 32.
          if (some > device.smem_optin_bytes / (steps * kQuadsSet)) continue;
          QuadsTiling tiling{static_cast<int32_t>(tile_p), static_cast<int32_t>(tile_q), static_cast<int32_t>(some), 1};
          const int64_t tiles = problem.n * ceil_div(map.h.rows, tile_p) * ceil_div(map.w.rows, tile_q);
          const int64_t set_blocks = ceil_div(sets, some);
          if (tiles * set_blocks > INT32_MAX / 2) continue;
          QuadsParams params = quads_params(config, problem, tiling);
          int32_t smem = smem_of(config, params);
          if (smem > device.smem_optin_bytes && !config.squares) {
            tiling.brings = false;
            params = quads_params(config, problem, tiling);
            smem = smem_of(config, params);
          }
          if (params.units > quads_staged(params.words != QuadsWords::kNone) * threads ||
              smem > device.smem_optin_bytes) {
            continue;
          }
          // As many blocks as SMs hold, each with as many tiles or one less.
          const int64_t resident = resident_blocks(smem, device, most_threads / threads);
          const int64_t wanted = std::max<int64_t>(1, resident * device.sm_count / set_blocks);
          const int64_t walkers = tiles > 0 ? ceil_div(tiles, ceil_div(tiles, std::min(wanted, tiles))) : 1;
          params.walkers = tiling.walkers = static_cast<int32_t>(walkers);
          const double cost = cost_us(config, problem, device, params, threads / 32);
          if (best.kernel != nullptr && cost >= best.cost_us) continue;
          best.kernel = &entry;
          best.grid = tiles > 0 ? walkers * set_blocks : 0;
          best.block_threads = threads;
          best.smem_bytes = smem;
          best.tiling = tiling;
          best.cost_us = cost;
        }
      }
    }
  }
  return best;
}

// Once the tile is known.
void set_cells(QuadsParams& params, const ConvProblem& problem) {
  QuadsCells& cells = params.cells;
  const int64_t columns = ceil_div(problem.s, int64_t{kQuadsCellTaps});
  const auto count = static_cast<int32_t>(problem.r * columns);
  cells.steps = ceil_div(count, 2);
  cells.by_columns = FastDivmod(columns), cells.by_squares_w = FastDivmod(params.tile_q / kQuadsSquare);
  // Where the tile's first tap is, see QuadsTile.
  cells.shift = (-params.w.padding & (params.unit_pixels - 1)) % kQuadsCellTaps;
  const int32_t rows = params.units * params.unit_pixels / params.halo_w;
  cells.part_bytes = round_up(params.cell_place(rows, cells.shift), kQuadsCellBytes);
  params.range_at = std::max(params.range_at, 2 * cells.part_bytes);
  for (int32_t i = 0; i < cells.steps; ++i) {  // no more than kQuadsMostSteps, see squares_why_not()
    const int32_t first = quads_cell(params, 2 * i);
    const int32_t second = 2 * i + 1 < count ? quads_cell(params, 2 * i + 1) : first;
    cells.step[i] = static_cast<uint32_t>(first / kQuadsCellBytes) |
                    static_cast<uint32_t>((second - first) / kQuadsCellBytes) << 16;
  }
}

const char* squares_why_not(const ConvProblem& problem) {
  if (problem.k <= kQuadsSet) return "is for more than 32 filters";
  if (problem.stride.w != kQuadsCellTaps || problem.dilation.w != 1) return "is for rows of stride 2 and dilation 1";
  if (problem.r * ceil_div(problem.s, int64_t{kQuadsCellTaps}) > 2 * kQuadsMostSteps) return "is for smaller filters";
  return nullptr;
}

}  // namespace

QuadsParams quads_params(const QuadsConfig& config, const ConvProblem& problem, const QuadsTiling& tiling) {
  const ConvMap map = make_conv_map(problem, false);
  const Side from = input_side(problem), to = output_side(problem);
  QuadsParams params{};
  params.h = axis_of(map.h), params.w = axis_of(map.w);
  params.source = strides_of(from), params.target = strides_of(to), params.filter = problem.w_strides;
  params.channels = static_cast<int8_t>(problem.c), params.filters = static_cast<int32_t>(problem.k);
  params.taps = static_cast<int32_t>(problem.r * problem.s);
  params.steps = ceil_div(params.taps, kQuadsStepTaps);
  params.tile_p = tiling.tile_p, params.tile_q = tiling.tile_q;
  params.quad_bytes = quad_bytes(config.operands);
  params.words = words_of(problem, from);
  const bool words = params.words != QuadsWords::kNone;
  params.unit_pixels = static_cast<int8_t>(words ? kQuadsWordBytes / element_size(problem.dtype) : 1);
  // And as many columns as one may begin before the first tap.
  const int32_t taps = config.squares ? kQuadsCellTaps : 1;
  const int64_t lacking = round_up(problem.s, int64_t{taps}) - problem.s;  // of a row's last cell
  params.halo_w = static_cast<int32_t>(round_up(source_extent(map.w, tiling.tile_q) + lacking + params.unit_pixels - 1,
                                                int64_t{std::max<int32_t>(params.unit_pixels, taps)}));
  const int32_t units_w = params.halo_w / params.unit_pixels;
  params.units = static_cast<int32_t>(source_extent(map.h, tiling.tile_p)) * units_w;
  set_raw(params, problem, tiling.brings);
  params.run = static_cast<int32_t>(run_of(problem));
  const int32_t pixels = quads_pixels(config.operands);
  params.runs = static_cast<int32_t>(round_up(tiling.tile_p * tiling.tile_q, int64_t{pixels})) / params.run;
  params.whole_runs = whole_runs(config, problem, to);
  const int64_t tiles_h = ceil_div(map.h.rows, tiling.tile_p), tiles_w = ceil_div(map.w.rows, tiling.tile_q);
  params.tiles = static_cast<int32_t>(problem.n * tiles_h * tiles_w), params.walkers = tiling.walkers;
  params.by_tiles_w = FastDivmod(tiles_w), params.by_tiles_h = FastDivmod(tiles_h);
  params.by_tile_q = FastDivmod(tiling.tile_q), params.by_units_w = FastDivmod(units_w);
  params.by_taps_w = FastDivmod(problem.s), params.by_steps = FastDivmod(params.steps);
  params.sets = static_cast<int16_t>(tiling.sets), params.by_sets = FastDivmod(tiling.sets);
  params.by_set_blocks = FastDivmod(ceil_div(sets_of(problem), tiling.sets));
  params.row_gap = config.squares ? 0 : row_gap(config, problem, params.halo_w * params.quad_bytes);
  params.range_at = round_up(params.place(params.units / units_w, 0), 16);  // single pixels may be 8 bytes
  if (config.squares) set_cells(params, problem);
  params.stage_bytes = params.range_at + ranges_of(config);
  // Where what a line of memory brings lies in two of shared memory, a small problem takes a tenth longer.
  if (params.bringing == QuadsBringing::kLines) {
    params.stage_bytes = static_cast<int32_t>(round_up(params.stage_bytes, kBankBytes));
  }
  const int64_t raw_bytes =
      tiling.brings ? int64_t{params.filter_elements} * tiling.sets * kQuadsSet * element_size(problem.dtype) : 0;
  const auto raw = static_cast<int32_t>(round_up(raw_bytes, kCopiedBytes));
  // A barrier is cheaper than room for both.
  params.is_raw_first = raw > params.stage_bytes;
  params.filter_at = std::max(2 * params.stage_bytes, params.raw_at() + raw);
  const int32_t filter = tiling.sets * params.steps * params.step_bytes();
  // Cells may have to become floats of other units yet.
  params.runs_at = params.filter_at + std::max(filter, 2 * params.cells.filter_part_bytes());
  params.epilogue_at = params.zeros_at() + 16;
  params.table_at = params.epilogue_at + tiling.sets * kQuadsSet * kStagedEpilogueBytes;
  params.filter_range_at = params.table_at + quads_table(params) * 4;
  params.first_range_at = params.filter_range_at + ranges_of(config);
  return params;
}

namespace {

const char* why_not(const KernelEntry& entry, const ConvProblem& problem) {
  if (const char* reason = precision_why_not(entry.config.as<QuadsConfig>().operands, problem)) return reason;
  if (entry.config.as<QuadsConfig>().squares) {
    if (const char* reason = squares_why_not(problem)) return reason;
  }
  if (problem.groups != 1 || problem.c < 1 || problem.c > kQuadChannels || problem.k < 1) {
    return "is for images of 1 to 4 channels, in one group";
  }
  if (entry.config.as<QuadsConfig>().steps > 0 &&
      ceil_div(problem.r * problem.s, int64_t{kQuadsStepTaps}) != entry.config.as<QuadsConfig>().steps) {
    return "is for filters of another number of taps";
  }
  if (!images_fit_int32(problem) || problem.k * problem.c * problem.r * problem.s >= kMaxExtent) {
    return "counts with 32 bits: extents, and elements of an image or of the filter";
  }
  return nullptr;
}

}  // namespace

Offer quads_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem)) return reason;
  Plan plan = cheapest(entry, problem, device);
  if (plan.kernel == nullptr) return "has no tile whose pixels threads can bring, and whose filter fits shared memory";
  return plan;
}

}  // namespace fastconv
