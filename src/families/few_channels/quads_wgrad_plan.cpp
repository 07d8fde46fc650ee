#include "fastconv/families/few_channels/quads_wgrad_plan.h"

#include <algorithm>
#include <cmath>

#include "fastconv/core/integers.h"
#include "fastconv/families/few_channels/cost.h"
#include "fastconv/families/few_channels/quads_plan.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/extent.h"

namespace fastconv {
namespace {

using namespace cost::few_channels;
using namespace cost::quads_wgrad;

// Of pixels of a sum, all of a warp: tensor cores truncate what they add to.
constexpr int64_t kMostProducts = 16384;
constexpr int64_t kMostPixels = 4096;  // of a tile with its halo
constexpr int64_t kLeastColumns = 32;  // of a tile that has others beside it; narrower ones were not measured

int64_t units_of(const QuadsWgradConfig& config, const ConvProblem& problem) {
  return ceil_div(problem.r * problem.s, int64_t{8} * config.groups());
}
int64_t units_of_block(const QuadsWgradConfig& config, const ConvProblem& problem) {
  return ceil_div(units_of(config, problem), ceil_div(units_of(config, problem), int64_t{kQuadsWgradWarps}));
}
int64_t sums_of(const ConvProblem& problem) { return problem.k * problem.c * problem.r * problem.s; }

int64_t smem_of(const QuadsWgradConfig& config, const QuadsWgradParams& params) {
  return std::max<int64_t>(params.y_at + int64_t{kQuadsWgradStages} * params.y_bytes,
                           int64_t{16} * kQuadsWgradThreads * config.quads());
}

double cost_us(const QuadsWgradConfig& config, const ConvProblem& problem, const DeviceSpec& device,
               const QuadsWgradParams& params) {
  const double tiles = static_cast<double>(ceil_div(params.tiles, params.walkers));
  const double waves = static_cast<double>(
      ceil_div(int64_t{params.walkers} * static_cast<int64_t>(params.by_jobs.divisor), int64_t{device.sm_count}));
  const double blocks =
      std::min<double>(kQuadsWgradFilters / 16., static_cast<double>(ceil_div(problem.k, int64_t{16})));
  const double steps = params.tile_p * static_cast<double>(params.by_row_steps.divisor);
  const double step = blocks * config.tiles() * kProductClocks + kStepClocks;
  const double busy = steps * params.tap_units / 4 * step, lone = std::ceil(steps / params.slices) * kLoneClocks;
  const double tile =
      kTileClocks + std::max(busy, lone) + params.units * kStagedClocks + quads_wgrad_chunks(params) * kCopyClocks;
  const double sums = 8. * params.walkers * static_cast<double>(sums_of(problem));
  return time_us({.clocks = waves * tiles * tile,
                  .bytes = compulsory_bytes(problem) / kStoredRate,
                  .shown = kShown,
                  .us = kStartUs + kReduceUs + memory_us(sums / kSumsRate, device)},
                 device);
}

// The cheapest tiling; none if plan.kernel is null.
Plan cheapest(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const QuadsWgradConfig& config = entry.config.as<QuadsWgradConfig>();
  const ConvMap map = make_conv_map(problem, false);
  const int64_t jobs = ceil_div(problem.k, int64_t{kQuadsWgradFilters}) *
                       ceil_div(units_of(config, problem), units_of_block(config, problem));
  Plan best;
  for (int64_t parts = 1; parts <= map.w.rows; parts *= 2) {
    const int64_t tile_q = round_up(ceil_div(map.w.rows, parts), int64_t{kQuadsWgradStep});
    if (parts > 1 && map.w.rows / parts < kLeastColumns && best.kernel != nullptr) break;
    for (int64_t tile_p = 1; tile_p <= map.h.rows && tile_p <= 64; tile_p += 1 + tile_p / 8) {
      if (source_extent(map.h, tile_p) > kMostPixels / source_extent(map.w, tile_q)) break;
      const int64_t tiles = problem.n * ceil_div(map.h.rows, tile_p) * ceil_div(map.w.rows, tile_q);
      if (tiles > INT32_MAX / 4) continue;
      QuadsTiling tiling{static_cast<int32_t>(tile_p), static_cast<int32_t>(tile_q), 1, 1};
      QuadsWgradParams params = quads_wgrad_params(config, problem, tiling);
      if (params.units > quads_staged(params.words != QuadsWords::kNone) * kQuadsWgradThreads ||
          smem_of(config, params) > device.smem_optin_bytes) {
        continue;
      }
      // Of each tile the first slice has most.
      const int64_t turns = ceil_div(tile_p * tile_q / kQuadsWgradStep, int64_t{params.slices});
      const int64_t most_tiles = std::max<int64_t>(1, kMostProducts / (kQuadsWgradStep * turns));
      const int64_t least = ceil_div(tiles, most_tiles);
      const int64_t most = kMaxWorkspaceBytes / (4 * sums_of(problem));
      const int64_t wanted = std::max<int64_t>(device.sm_count / jobs, least);
      if (wanted > most) continue;
      const int64_t walkers = ceil_div(tiles, ceil_div(tiles, std::clamp<int64_t>(wanted, 1, tiles)));
      params.walkers = tiling.walkers = static_cast<int32_t>(walkers);
      const double cost = cost_us(config, problem, device, params);
      if (best.kernel != nullptr && cost >= best.cost_us) continue;
      best.kernel = &entry;
      best.grid = walkers * jobs;
      best.block_threads = kQuadsWgradThreads;
      best.smem_bytes = static_cast<int32_t>(smem_of(config, params));
      best.split = walkers;
      best.workspace_bytes = walkers * 4 * sums_of(problem);
      best.tiling = tiling;
      best.cost_us = cost;
    }
  }
  return best;
}

// Whether eight neighbours of dy can be copied at once. Copies of those that do not exist name aligned addresses, too,
// so that a dimension of size 1 is no exception.
bool has_chunks(const QuadsWgradConfig& config, const Side& side) {
  const bool inner = config.channels_inner;
  const int64_t others = inner ? side.stride.w : side.stride.c;
  return (inner ? side.c : side.w) % 8 == 0 && (inner ? side.stride.c : side.stride.w) == 1 && side.align >= 16 &&
         side.stride.n % 8 == 0 && side.stride.h % 8 == 0 && others % 8 == 0;
}

// Of dy, from a tile's first element to those of a thread's next copy, which need not exist.
bool offsets_fit_int32(const Side& side) {
  constexpr int64_t kMost = INT32_MAX / 256;
  return side.stride.c <= kMost && side.stride.h <= kMost && side.stride.w <= kMost;
}

}  // namespace

QuadsWgradParams quads_wgrad_params(const QuadsWgradConfig& config, const ConvProblem& problem,
                                    const QuadsTiling& tiling) {
  const QuadsConfig forward{config.channels_inner, 0, QuadsOperands::kHalf, false};
  QuadsWgradParams params{};
  static_cast<QuadsParams&>(params) = quads_params(forward, problem, tiling);
  const auto pixels = tiling.tile_p * tiling.tile_q;
  params.tap_units = static_cast<int32_t>(units_of_block(config, problem));
  params.slices = kQuadsWgradWarps / params.tap_units;
  // Rows of matrices are in different banks.
  params.pitch = (config.channels_inner ? kQuadsWgradFilters : pixels) * 2 + 16;
  params.y_at = 2 * params.stage_bytes;
  params.y_bytes = (config.channels_inner ? pixels : kQuadsWgradFilters) * params.pitch;
  params.by_unit_blocks = FastDivmod(ceil_div(units_of(config, problem), int64_t{params.tap_units}));
  params.by_jobs = FastDivmod(params.by_unit_blocks.divisor * ceil_div(problem.k, int64_t{kQuadsWgradFilters}));
  params.by_slices = FastDivmod(params.slices);
  params.by_row_steps = FastDivmod(tiling.tile_q / kQuadsWgradStep);
  const bool inner = config.channels_inner;
  params.by_inner = FastDivmod(inner ? kQuadsWgradFilters / 8 : tiling.tile_q / 8);
  params.by_middle = FastDivmod(inner ? tiling.tile_q : tiling.tile_p);
  const auto step_h = static_cast<int32_t>(params.target.h), step_w = static_cast<int32_t>(params.target.w);
  const auto step_c = static_cast<int32_t>(params.target.c);
  params.inner_step = 8 * (inner ? step_c : step_w), params.middle_step = inner ? step_w : step_h;
  params.outer_step = inner ? step_h : step_c;
  params.middle_bytes = inner ? params.pitch - kQuadsWgradFilters * 2 : 0;
  params.outer_bytes = (inner ? tiling.tile_q : 1) * params.pitch;
  const QuadsWgradChunk next(params, kQuadsWgradThreads);
  params.next_inner = next.inner, params.next_middle = next.middle, params.next_outer = next.outer;
  params.next_offset = next.offset, params.next_place = next.place;
  return params;
}

namespace {

const char* why_not(const KernelEntry& entry, const ConvProblem& problem) {
  const QuadsWgradConfig& config = entry.config.as<QuadsWgradConfig>();
  if (problem.groups != 1 || problem.c < 1 || problem.c > config.channels) {
    return "is for images of few channels, in one group";
  }
  if (!has_chunks(config, output_side(problem))) return "copies eight aligned neighbours of dy at once";
  if (!images_fit_int32(problem) || sums_of(problem) >= kMaxExtent || !offsets_fit_int32(output_side(problem))) {
    return "counts with 32 bits: extents, elements of an image or of the filter, and of some rows or filters";
  }
  return nullptr;
}

}  // namespace

Offer quads_wgrad_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem)) return reason;
  Plan plan = cheapest(entry, problem, device);
  if (plan.kernel == nullptr) return "has no tile whose pixels threads can bring, and which fits shared memory";
  return plan;
}

}  // namespace fastconv
