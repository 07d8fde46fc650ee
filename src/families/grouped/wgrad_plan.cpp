#include <algorithm>
#include <cmath>

#include "fastconv/core/integers.h"
#include "fastconv/families/grouped/cost.h"
#include "fastconv/families/grouped/plan.h"
#include "fastconv/families/grouped/work.h"
#include "fastconv/tile/chain_length.h"

namespace fastconv {

using namespace grouped;

namespace {

using namespace cost::grouped_wgrad;

// Pixels that one sum of tensor cores adds up, which truncate what they add to.
constexpr int64_t kTensorChain = 4096;

// Units that a block has threads for.
int64_t most_units(const GroupedConfig& config) { return kGroupedThreads / config.unit_threads(); }
int64_t units_of(const GroupedConfig& config, const ConvProblem& problem) {
  const int64_t rows = problem.r * problem.s * ceil_div(problem.c_per_group(), config.chunk());
  return ceil_div(rows, config.unit_rows()) * sets_of(config, problem.k_per_group());
}

// With tiles of pixels in one part.
GroupedWgradParams undivided(const GroupedConfig& config, const ConvProblem& problem, const GroupedTiling& tiling) {
  GroupedWgradParams params{};
  set_walk(problem, config, tiling, params);
  params.y_rows = make_rows(problem, config, output_side(problem), tiling.tile_p, tiling.tile_q, tiling.tile_g);
  params.reduction = static_cast<int32_t>(problem.r * problem.s) * params.rows.chunks;
  params.units = static_cast<int32_t>(units_of(config, problem));
  params.block_units = static_cast<int32_t>(std::min<int64_t>(params.units, most_units(config)));
  const int64_t units = int64_t{tiling.tile_g} * params.block_units;
  params.slices = static_cast<int32_t>(most_units(config) / units);
  params.tiles = static_cast<int32_t>(problem.n * params.by_tiles_h.divisor * params.by_tiles_w.divisor);
  params.part_tiles = params.tiles, params.parts = 1;
  params.job_quads = static_cast<int32_t>(units * config.unit_threads() * config.unit_quads());
  params.by_jobs = FastDivmod(params.by_group_blocks.divisor * ceil_div(params.units, params.block_units));
  params.by_block_units = FastDivmod(params.block_units);
  params.by_sets = FastDivmod(sets_of(config, params.filters));
  params.by_slices = FastDivmod(params.slices);
  params.by_job_quads = FastDivmod(params.job_quads);
  params.by_job_threads = FastDivmod(units * config.unit_threads());
  params.y_at = params.rows.plane_bytes * params.rows.chunks * tiling.tile_g;
  params.stage_bytes = params.y_at + params.y_rows.plane_bytes * params.y_rows.chunks * tiling.tile_g;
  return params;
}

void divide(GroupedWgradParams& params, int64_t parts) {
  params.parts = static_cast<int32_t>(parts);
  params.part_tiles = static_cast<int32_t>(ceil_div(params.tiles, parts));
}

int64_t smem_of(const GroupedConfig& config, const GroupedWgradParams& params) {
  const int64_t stages = std::min(params.part_tiles, 2) * int64_t{params.stage_bytes};
  return kGroupedRowBytes + std::max<int64_t>(stages, 16 * kGroupedThreads * config.unit_quads());
}

// Steps of a tile that a slice goes through.
int64_t turns_of(const GroupedConfig& config, const GroupedWgradParams& params) {
  return ceil_div(ceil_div(params.tile_p * params.tile_q, config.step_pixels()), params.slices);
}

int64_t partial_bytes(const GroupedWgradParams& params) {
  return params.parts > 1 ? int64_t{params.parts} * params.by_jobs.divisor * params.job_quads * 16 : 0;
}

// Clocks of an SM, of which a block has `share`. Estimates, from counted instructions and accesses of shared
// memory.
double block_clocks(const GroupedConfig& config, const GroupedWgradParams& params, double share) {
  constexpr double kUnitsTogether = 2 * kGroupedThreads;  // on their way through registers
  const bool floats = config.operands == GroupedOperands::kFloat;
  // A step of a unit on tensor cores reads 20 times all banks for the input, of either width.
  const double unit_step = floats ? kFloatStep : kStep + config.filters / kFilters;
  const auto turns = static_cast<double>(turns_of(config, params));
  double work = turns * params.slices * params.tile_g * params.block_units * unit_step;
  // One after the other: copies go on meanwhile. Some 70 instructions of tensor cores' steps, six clocks each (measured
  // with eight warps), and 25 of a copy.
  const double step_latency = floats ? kFloatStepLatency : kStepLatency;
  double latency = turns * step_latency, copies = 0;
  for (const GroupedRows* rows : {&params.rows, &params.y_rows}) {
    work += stage_clocks(*rows, params.tile_g);
    if (rows->copy_bytes > 0) {
      // A warp's request meets as many lines of the cache as it has pixels.
      work += static_cast<double>(rows->tile_h * rows->tile_w * params.tile_g * rows->chunks >> rows->lanes_log2);
      copies = kMemoryLatency;
      latency += std::ceil(double(rows->tile_h) * rows->tile_w * params.tile_g * rows->chunks / kGroupedThreads) *
                 kCopyLatency;
    } else {
      latency += std::ceil(rows->units / kUnitsTogether) * kMemoryLatency;
    }
  }
  const double tile = std::max(work, share * std::max(latency, copies)) + share * kTileLatency;
  return params.part_tiles * tile + 2. * 16 * kGroupedThreads * config.unit_quads() / 128;
}

double cost_us(const GroupedConfig& config, const ConvProblem& problem, const DeviceSpec& device,
               const GroupedWgradParams& params) {
  const double blocks = static_cast<double>(params.by_jobs.divisor) * params.parts;
  const double most = std::min<double>(config.wgrad_blocks_per_sm(), std::ceil(blocks / device.sm_count));
  const auto room = static_cast<double>((device.smem_optin_bytes + kReservedSmemBytes) /
                                        (smem_of(config, params) + kReservedSmemBytes));
  const double resident = std::min(most, room);
  const double bytes =
      tile_bytes(problem, params.rows, params.tile_g) + tile_bytes(problem, params.y_rows, params.tile_g);
  const double partials = 2. * static_cast<double>(partial_bytes(params));
  const double reduce = params.parts > 1 ? kReduceUs + memory_us(partials / kPartialRate, device) : 0;
  return kLaunchUs + reduce +
         blocks_us(problem, device,
                   {blocks, resident, static_cast<double>(params.part_tiles),
                    block_clocks(config, params, 1 / resident), blocks * params.part_tiles * bytes});
}

// Times what is counted; tilings compare without it.
double unseen(const GroupedConfig& config, const ConvProblem& problem) {
  if (config.operands != GroupedOperands::kHalf || problem.x_strides.c != 1) return 1;
  return std::max(problem.stride.h, problem.stride.w) > 1 ? kHalfNhwcStrided : kHalfNhwc;
}

// The cheapest tiling, and parts; none if plan.kernel is null.
Plan cheapest(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const GroupedConfig& config = entry.config.as<GroupedConfig>();
  const ConvMap map = make_conv_map(problem, false);
  const int64_t units = std::min(units_of(config, problem), most_units(config));
  const int64_t chunks = ceil_div(problem.c_per_group(), config.chunk());
  const bool floats = config.operands == GroupedOperands::kFloat;
  const int64_t most = floats ? chain_length(problem) : kTensorChain;  // pixels of a sum
  Plan best;
  for_tilings(problem, map, [&](const GroupedTiling& tiling) {
    const int64_t rows = source_extent(map.h, tiling.tile_p) * source_extent(map.w, tiling.tile_q);
    if (tiling.tile_g * units > most_units(config)) return;
    if (rows > device.smem_optin_bytes / (kGroupedRowBytes * tiling.tile_g * chunks)) return;
    const int64_t tiles = problem.n * ceil_div(map.h.rows, tiling.tile_p) * ceil_div(map.w.rows, tiling.tile_q);
    if (tiles > INT32_MAX / ceil_div(problem.groups, tiling.tile_g)) return;
    GroupedWgradParams params = undivided(config, problem, tiling);
    const int64_t jobs = params.by_jobs.divisor, of_tile = turns_of(config, params) * config.step_pixels();
    if (of_tile > most) return;
    const int64_t least = ceil_div(tiles, most / of_tile);
    for (int64_t waves = 1; waves <= 2 * config.wgrad_blocks_per_sm(); ++waves) {
      const int64_t wanted = std::min(tiles, std::max(least, waves * device.sm_count / jobs));
      // As many as have as many tiles, or one less.
      divide(params, wanted > 1 ? ceil_div(tiles, ceil_div(tiles, wanted)) : 1);
      const int64_t smem = smem_of(config, params), blocks = params.parts * jobs, workspace = partial_bytes(params);
      if (smem > device.smem_optin_bytes || blocks > INT32_MAX || workspace > kMaxWorkspaceBytes) continue;
      const double cost = cost_us(config, problem, device, params);
      if (best.kernel != nullptr && cost >= best.cost_us) continue;
      best.kernel = &entry;
      best.grid = blocks;
      best.block_threads = kGroupedThreads;
      best.smem_bytes = static_cast<int32_t>(smem);
      best.split = params.parts;
      best.workspace_bytes = workspace;
      best.tiling = tiling;
      best.cost_us = cost;
    }
  });
  best.cost_us *= unseen(config, problem);
  return best;
}

}  // namespace

GroupedWgradParams grouped_wgrad_params(const GroupedConfig& config, const ConvProblem& problem,
                                        const GroupedTiling& tiling, int64_t parts) {
  GroupedWgradParams params = undivided(config, problem, tiling);
  divide(params, parts);
  return params;
}

Offer grouped_wgrad_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = grouped_why_not(entry, problem)) return reason;
  Plan plan = cheapest(entry, problem, device);
  if (plan.kernel == nullptr)
    return "has no tile whose pixels fit shared memory, with few enough sums for the workspace";
  return plan;
}

}  // namespace fastconv
