#include "fastconv/families/grouped/plan.h"

#include <algorithm>
#include <bit>

#include "fastconv/core/integers.h"
#include "fastconv/families/grouped/cost.h"
#include "fastconv/families/grouped/work.h"
#include "fastconv/tile/chain_length.h"
#include "fastconv/tile/epilogue.h"

namespace fastconv {

using namespace grouped;

namespace {

using namespace cost::grouped;

constexpr int64_t kWarps = kGroupedThreads / 32;

// How results are stored, once the rest is known.
void choose_store(const ConvProblem& problem, const GroupedConfig& config, GroupedParams& params) {
  const Side side = target_side(problem);
  const int64_t size = element_size(problem.dtype), channels = side.c * problem.groups;
  const int64_t extent_h = params.h.target_extent, extent_w = params.w.target_extent;
  const bool one_phase = params.h.target_step == 1 && params.w.target_step == 1;
  params.store = side.stride.c == 1 ? GroupedStore::kChannels : GroupedStore::kPixels;
  params.joined = params.store == GroupedStore::kPixels && one_phase && params.tile_q == extent_w &&
                  side.stride.w == 1 && keeps_multiples(side.stride.h, extent_h, extent_w) &&
                  (extent_h == 1 || side.stride.h == extent_w);
  const int64_t together = std::min<int64_t>(params.sets > 1 ? config.filters : params.run * side.c, channels);
  auto whole = [&](int64_t values) {
    if (side.align < values * size || !keeps_multiples(side.stride.n, side.n, values)) return false;
    if (params.store == GroupedStore::kChannels) {
      const bool runs = together % values == 0 && (params.sets == 1 || side.c % values == 0);
      return runs && channels % values == 0 && params.tile_g * side.c % values == 0 &&
             keeps_multiples(side.stride.h, side.h, values) && keeps_multiples(side.stride.w, side.w, values);
    }
    if (!one_phase || side.stride.w != 1 || !keeps_multiples(side.stride.c, channels, values)) return false;
    if (params.joined) {
      return extent_h * extent_w % values == 0 && (params.tile_p >= extent_h || params.tile_p * extent_w % values == 0);
    }
    return extent_w % values == 0 && params.tile_q % values == 0 && keeps_multiples(side.stride.h, extent_h, values);
  };
  params.store_bytes = static_cast<int32_t>(size);
  while (params.store_bytes < kGroupedRowBytes && whole(2 * params.store_bytes / size)) params.store_bytes *= 2;
  const int64_t vectors = std::max<int64_t>(1, together / (params.store_bytes / size));
  params.vectors_log2 = std::bit_width(static_cast<uint64_t>(vectors - 1));
  params.target_row = static_cast<int32_t>(params.h.target_step * side.stride.h);
  params.target_column = static_cast<int32_t>(params.w.target_step * side.stride.w);
  const int64_t width = params.joined ? params.tile_p * params.tile_q : params.tile_q;
  if (params.store == GroupedStore::kChannels) {
    params.stored = GroupedPixels(width, 32 >> params.vectors_log2);
    params.buffer_bytes = config.unit_pixels() * config.run_bytes();
  } else {
    params.stored = GroupedPixels(width, std::min<int64_t>(32 * params.store_bytes / size, config.unit_pixels()));
    params.buffer_bytes = static_cast<int32_t>(together) * config.channel_bytes();
  }
}

int64_t smem_of(const GroupedParams& params) { return params.buffer_at + kWarps * params.buffer_bytes; }

int64_t blocks_of(const ConvProblem& problem, const GroupedParams& params) {
  return problem.n * params.h.phases * params.w.phases * params.by_group_blocks.divisor * params.by_tiles_h.divisor *
         params.by_tiles_w.divisor;
}

// Clocks of an SM that a block takes, if others hide its latencies. Estimates, from counted instructions and
// accesses of shared memory.
double block_clocks(const GroupedConfig& config, const GroupedParams& params) {
  const double sets = static_cast<double>(params.tile_g) * params.sets;
  const double depth = static_cast<double>(params.set_bytes) / (config.filters * kGroupedRowBytes);
  const double tiles = config.filters / 8.;
  const bool floats = config.operands == GroupedOperands::kFloat;
  const double unit =
      floats ? kFloatDepth * depth + kFloatUnit : (kDepth + kDepthTile * tiles) * depth / 2 + kUnitTile * tiles + kUnit;
  const auto pixels = static_cast<double>(ceil_div(params.tile_p * params.tile_q, config.unit_pixels()));
  // Some warps have a unit more than others.
  const double units = pixels * static_cast<double>(params.by_runs.divisor);
  const double uneven = static_cast<double>(round_up(static_cast<int64_t>(units), kWarps)) / units;
  return stage_clocks(params.rows, params.tile_g) + sets * config.filters * depth * kFilterRow +
         pixels * sets * unit * (1 + uneven) / 2;
}

double cost_us(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device,
               const GroupedParams& params) {
  const int64_t resident = resident_blocks(smem_of(params), device, entry.config.as<GroupedConfig>().blocks_per_sm());
  const double written = tile_bytes(problem, static_cast<double>(params.tile_p) * params.tile_q, params.tile_g,
                                    params.filters, params.store == GroupedStore::kChannels);
  const auto blocks = static_cast<double>(blocks_of(problem, params));
  const bool strides = problem.pass == Pass::kFprop && problem.stride.w > 1 && element_size(problem.dtype) == 2;
  const double clocks = (strides ? kHalfStrided : 1) * block_clocks(entry.config.as<GroupedConfig>(), params);
  return kLaunchUs + blocks_us(problem, device,
                               {blocks, static_cast<double>(resident), 1, clocks,
                                blocks * (tile_bytes(problem, params.rows, params.tile_g) + written)});
}

// The cheapest tiling that fits; none if plan.kernel is null.
Plan cheapest(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const GroupedConfig& config = entry.config.as<GroupedConfig>();
  const ConvMap map = make_conv_map(problem, false);
  const int64_t chunks = ceil_div(map.channels, config.chunk());
  const int64_t most_run = target_side(problem).stride.c == 1 ? config.run_channels() / map.filters : 1;
  const int64_t run = sets_of(config, map.filters) > 1 ? 1 : std::max<int64_t>(most_run, 1);
  Plan best;
  for_tilings(problem, map, [&](GroupedTiling tiling) {
    const int64_t rows = source_extent(map.h, tiling.tile_p) * source_extent(map.w, tiling.tile_q);
    if (rows > device.smem_optin_bytes / (kGroupedRowBytes * tiling.tile_g * chunks)) return;
    tiling.run = static_cast<int32_t>(std::min<int64_t>(run, tiling.tile_g));
    const GroupedParams params = grouped_params(config, problem, tiling);
    const int64_t blocks = blocks_of(problem, params), smem = smem_of(params);
    if (smem > device.smem_optin_bytes || blocks > INT32_MAX) return;
    const double cost = cost_us(entry, problem, device, params);
    if (best.kernel != nullptr && cost >= best.cost_us) return;
    best.kernel = &entry;
    best.grid = blocks;
    best.block_threads = kGroupedThreads;
    best.smem_bytes = static_cast<int32_t>(smem);
    best.tiling = tiling;
    best.cost_us = cost;
  });
  return best;
}

}  // namespace

GroupedParams grouped_params(const GroupedConfig& config, const ConvProblem& problem, const GroupedTiling& tiling) {
  GroupedParams params{};
  set_walk(problem, config, tiling, params);
  params.target = target_side(problem).stride;
  params.sets = static_cast<int32_t>(sets_of(config, params.filters));
  params.run = tiling.run;
  params.by_sets = FastDivmod(params.sets);
  params.by_runs = FastDivmod(ceil_div(tiling.tile_g * params.sets, tiling.run));
  params.chain = chain_length(problem) / config.chunk();
  choose_store(problem, config, params);

  const int32_t depth = most_taps(params.h) * most_taps(params.w) * params.rows.chunks;
  auto end = static_cast<int32_t>(params.rows.plane_bytes * params.rows.chunks * tiling.tile_g);
  auto place = [&](int64_t bytes) {
    const int32_t at = end;
    end += static_cast<int32_t>(round_up(bytes, kGroupedRowBytes));
    return at;
  };
  params.set_bytes = depth * config.filters * kGroupedRowBytes;
  params.filter_at = place(int64_t{params.set_bytes} * params.sets * tiling.tile_g);
  params.table_at = place(4 * grouped_table_entries(depth));
  params.taps_at = place(8 * depth);
  params.epilogue_at = place(problem.has_bias ? kStagedEpilogueBytes * tiling.tile_g * params.filters : 0);
  params.buffer_at = end;
  return params;
}

Offer grouped_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = grouped_why_not(entry, problem)) return reason;
  Plan plan = cheapest(entry, problem, device);
  if (plan.kernel == nullptr)
    return "has no tile whose pixels and taps fit shared memory, in as many blocks as a grid has";
  return plan;
}

}  // namespace fastconv
