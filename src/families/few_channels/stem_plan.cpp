#include "fastconv/families/few_channels/stem_plan.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "fastconv/core/integers.h"
#include "fastconv/families/few_channels/cost.h"
#include "fastconv/planner/scaled.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/extent.h"
#include "fastconv/tile/split.h"

namespace fastconv {
namespace {

using namespace cost::few_channels;
using namespace cost::stem;

constexpr int64_t kMostChannels = 4;

constexpr double kWarpsAtOnce = 4;

double copy_clocks(const StemConfig& config) { return kCopyClocks + config.is_scaled() * kLookClocks; }

// Of a warp, for a step: what it gathers and splits, and the products by its set of filters.
double step_clocks(const StemConfig& config, double share) {
  return share * (config.is_scaled() ? kScaledStep[config.parts - 1] : kPartsStep[config.parts - 2]);
}
double unseen_of(const StemConfig& config) {
  return (config.is_scaled() ? kUnseenScaled[config.parts - 1] : kUnseenParts) * (config.filters == 32 ? kUnseen32 : 1);
}
double store_clocks(StemStores stores) { return kStores[static_cast<int>(stores)]; }
// What a walk takes besides: start and end; device memory's rate; and of what takes less time, memory or all else, the
// share that shows.
struct WalkRates {
  double start_us, memory, shown;
};
WalkRates wgrad_rates() { return {kLaunchUs, 1, kWgradShown}; }
WalkRates rates_of(StemStores stores) {
  return {kStartUs, stores == StemStores::kFilters ? kFiltersRate : kPixelsRate, kShown};
}

// Most words that can be copied at once, of `extent` that lie side by side, at multiples of as many.
int32_t widest(const Side& side, int64_t extent, std::initializer_list<std::pair<int64_t, int64_t>> strides) {
  for (const int32_t words : {4, 2}) {
    bool fits = side.align >= 4 * words && extent % words == 0 && keeps_multiples(side.stride.n, side.n, words);
    for (const auto& [stride, count] : strides) fits = fits && keeps_multiples(stride, count, words);
    if (fits) return words;
  }
  return 1;
}

// `channels` of a tensor, all of x and a set of y's, and so many pixels.
StemBox make_box(const Side& side, int64_t channels, int64_t height, int64_t width, bool whole_pixels) {
  StemBox box{};
  box.stride = side.stride;
  box.channels = static_cast<int32_t>(side.c);
  box.extent_h = static_cast<int32_t>(side.h), box.extent_w = static_cast<int32_t>(side.w);
  box.box_h = static_cast<int32_t>(height), box.box_w = static_cast<int32_t>(width), box.folded = 1;
  box.vector = 1;
  const bool inner = side.stride.c == 1 && side.c > 1;
  int64_t inner_units = 0, middle = 0;
  if (inner && !whole_pixels) {
    box.channels_inner = true;
    box.vector = widest(side, side.c, {{side.stride.h, side.h}, {side.stride.w, side.w}});
    // Eight words more, so that channels of neighbouring pixels are in different banks.
    box.channel_words = 1, box.column_words = static_cast<int32_t>(channels) + 8;
    box.row_words = box.box_w * box.column_words;
    box.words = box.box_h * box.row_words;
    inner_units = channels / box.vector, middle = box.box_w;
    box.units = static_cast<int32_t>(height * width * inner_units);
  } else {
    box.column_words = 1;
    if (inner && side.stride.w == side.c) {
      box.folded = box.column_words = static_cast<int32_t>(side.c);
      box.channels = 1, box.extent_w *= box.folded, box.box_w *= box.folded;
      channels = 1;
    }
    if (box.folded > 1 || side.stride.w == 1) {
      box.vector = widest(side, box.extent_w, {{side.stride.h, side.h}, {side.stride.c, box.channels}});
    }
    box.box_w = static_cast<int32_t>(round_up(box.box_w + box.vector - 1, box.vector));
    box.row_words = static_cast<int32_t>(round_up(box.box_w, 4));
    // Pixels of neighbouring channels are in different banks.
    const int32_t plane = box.box_h * box.row_words;
    box.channel_words = box.folded > 1 ? 1 : whole_pixels ? plane : plane + (36 - plane % 32) % 32;
    box.words = box.folded > 1 ? plane : static_cast<int32_t>(channels) * box.channel_words;
    inner_units = box.box_w / box.vector, middle = box.box_h;
    box.units = static_cast<int32_t>(channels * middle * inner_units);
  }
  box.words = static_cast<int32_t>(round_up(box.words, 4));
  box.by_inner = FastDivmod(inner_units), box.by_middle = FastDivmod(middle);
  const StemCopy next(box, kStemThreads);
  box.next_inner = next.inner, box.next_middle = next.middle, box.next_outer = next.outer;
  return box;
}

void set_walk(const ConvProblem& problem, const StemTiling& tiling, StemWalk& walk) {
  const ConvMap map = make_conv_map(problem, false);
  walk.h = map.h, walk.w = map.w;
  walk.x = make_box(input_side(problem), problem.c, source_extent(map.h, tiling.tile_p),
                    source_extent(map.w, tiling.tile_q), true);
  walk.filter = problem.w_strides;
  walk.filters = map.filters, walk.depth = static_cast<int32_t>(problem.c * problem.r * problem.s);
  walk.tile_p = tiling.tile_p, walk.tile_q = tiling.tile_q;
  walk.by_tiles_h = FastDivmod(ceil_div(map.h.rows, tiling.tile_p));
  walk.by_tiles_w = FastDivmod(ceil_div(map.w.rows, tiling.tile_q));
  walk.by_tile_q = FastDivmod(tiling.tile_q);
  walk.tiles = static_cast<int32_t>(problem.n * walk.by_tiles_h.divisor * walk.by_tiles_w.divisor);
  walk.walkers = tiling.walkers;
  walk.stages = tiling.stages, walk.stage_bytes = 4 * walk.x.words;
  walk.channels_last = walk.x.folded > 1;
  walk.by_outer = FastDivmod(walk.channels_last ? problem.c : problem.r * problem.s);
  walk.by_taps_w = FastDivmod(problem.s);
}

// After so many boxes of a stage, room for what is measured of them.
void set_range(const StemConfig& config, int boxes, StemWalk& walk) {
  walk.range_at = walk.stage_bytes;
  walk.stage_bytes += config.is_scaled() * boxes * kStemRangeBytes;
}

int64_t sets_of(const StemConfig& config, const ConvProblem& problem) { return ceil_div(problem.k, config.filters); }

// Of a set.
int64_t filter_bytes(const StemConfig& config, const ConvProblem& problem) {
  const int64_t steps = ceil_div(problem.c * problem.r * problem.s, int64_t{kStemStep});
  return steps * StemConfig::step_bytes(config.set_tiles(), config.most_parts());
}

int64_t smem_of(const StemParams& params) { return params.filter_table_at + 4 * kStemStep * params.steps; }
int64_t smem_of(const StemConfig& config, const StemWgradParams& params) {
  const int64_t pixels = round_up(params.tile_p * params.tile_q, kStemStep);
  return std::max<int64_t>(params.y_table_at + 4 * pixels, int64_t{16} * kStemThreads * config.quads());
}

// A block's time for its tiles, and the time that memory takes for all of them.
double walk_us(const StemConfig& config, const ConvProblem& problem, const DeviceSpec& device, const StemWalk& params,
               double blocks, double prologue_clocks, double tile_clocks, const WalkRates& rates) {
  const double copies = params.x.units * copy_clocks(config);
  const double tiles = std::ceil(params.tiles / static_cast<double>(params.walkers));
  // That is waited for.
  const double loads = params.stages == 1 ? tiles : 1;
  const double clocks = prologue_clocks + loads * kLoadLatency +
                        tiles * (tile_clocks + copies + kTileClocks + config.is_scaled() * kRangeClocks);
  const double staged = blocks / params.walkers * params.tiles * 4. * params.x.words;
  const double bytes = std::max(compulsory_bytes(problem), staged / kL2Rate);
  return time_us({.clocks = clocks + wait_clocks(loads * params.stage_bytes, device),
                  .bytes = bytes / rates.memory,
                  .shown = rates.shown,
                  .us = rates.start_us},
                 device);
}

// Of warps that share some units, of an SM; a unit alone waits for its own latencies.
double units_clocks(double units, double unit_clocks) {
  return std::max(kAlone, std::ceil(units / kWarpsAtOnce)) * unit_clocks;
}

double cost_us(const StemConfig& config, const ConvProblem& problem, const DeviceSpec& device, const StemParams& params,
               double unseen = 1) {
  const double sets = params.by_sets.divisor, blocks = double(params.walkers) * params.by_set_blocks.divisor;
  const auto pixels = static_cast<double>(ceil_div(params.tile_p * params.tile_q, config.unit_pixels()));
  const double unit = params.steps * unseen * step_clocks(config, kGathers + config.filters / kFilters) +
                      store_clocks(params.stores) * config.filters / 64;
  return walk_us(config, problem, device, params, blocks, sets * params.steps * config.set_tiles() * kPackClocks,
                 units_clocks(pixels * sets, unit), rates_of(params.stores));
}

double cost_us(const StemConfig& config, const ConvProblem& problem, const DeviceSpec& device,
               const StemWgradParams& params, int64_t workspace, double unseen = 1) {
  const double blocks = double(params.walkers) * params.by_jobs.divisor;
  const double step =
      unseen * step_clocks(config, kWgradGathers + config.filters / kWgradFilters + config.filters / kFilters);
  const auto steps = static_cast<double>(ceil_div(params.tile_p * params.tile_q, kStemStep));
  const double turns = std::ceil(steps / params.slices) * params.slices * params.units;
  const double end = 2. * 16 * kStemThreads * config.quads() / 128;
  const double reduce =
      params.walkers > 1 ? kReduceUs + memory_us(2. * static_cast<double>(workspace) / kPartialRate, device) : 0;
  return reduce + walk_us(config, problem, device, params, blocks, end,
                          units_clocks(turns, step) + params.y.units * copy_clocks(config), wgrad_rates());
}

// f(tiling), `sets` and `walkers` apart.
template <typename F>
void for_tilings(const ConvProblem& problem, const ConvMap& map, const DeviceSpec& device, F&& f) {
  for (int64_t parts = 1; parts <= 32; parts *= 2) {
    const int64_t width = ceil_div(map.w.rows, parts), tile_q = parts > 1 ? round_up(width, 8) : width;
    if (parts > 1 && tile_q >= map.w.rows) break;
    const int64_t columns = source_extent(map.w, tile_q) * problem.c;
    for (int64_t tile_p = 1; tile_p <= map.h.rows && tile_p <= 64; tile_p += 1 + tile_p / 8) {
      if (source_extent(map.h, tile_p) > device.smem_optin_bytes / (4 * columns)) break;
      for (const int32_t stages : {1, 2}) {
        f(StemTiling{static_cast<int32_t>(tile_p), static_cast<int32_t>(tile_q), 1, stages, 1});
      }
    }
  }
}

// Blocks that share the tiles, each as many or one less.
int64_t walkers_of(int64_t tiles, int64_t wanted) {
  return ceil_div(tiles, ceil_div(tiles, std::clamp<int64_t>(wanted, 1, tiles)));
}

int64_t tiles_of(const ConvProblem& problem, const ConvMap& map, const StemTiling& tiling) {
  return problem.n * ceil_div(map.h.rows, tiling.tile_p) * ceil_div(map.w.rows, tiling.tile_q);
}

// The cheapest tiling that fits; none if plan.kernel is null.
Plan cheapest(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const StemConfig& config = entry.config.as<StemConfig>();
  const ConvMap map = make_conv_map(problem, false);
  const int64_t sets = sets_of(config, problem), most_sets = device.smem_optin_bytes / filter_bytes(config, problem);
  Plan best;
  for_tilings(problem, map, device, [&](StemTiling tiling) {
    const int64_t tiles = tiles_of(problem, map, tiling);
    if (tiles > INT32_MAX / 2) return;
    for (int64_t most = sets; most > 0; most /= 2) {
      if (most > most_sets) continue;
      tiling.sets = static_cast<int32_t>(most);
      const int64_t set_blocks = ceil_div(sets, tiling.sets);
      tiling.walkers = static_cast<int32_t>(walkers_of(tiles, device.sm_count / set_blocks));
      const StemParams params = stem_params(config, problem, tiling);
      const int64_t smem = smem_of(params);
      if (smem > device.smem_optin_bytes || tiling.walkers * set_blocks > INT32_MAX) continue;
      const double cost = cost_us(config, problem, device, params);
      if (best.kernel != nullptr && cost >= best.cost_us) continue;
      best.kernel = &entry;
      best.grid = tiling.walkers * set_blocks;
      best.block_threads = kStemThreads;
      best.smem_bytes = static_cast<int32_t>(smem);
      best.tiling = tiling;
      best.cost_us = cost;
    }
  });
  if (best.kernel != nullptr) {
    best.cost_us =
        cost_us(config, problem, device, stem_params(config, problem, best.tiling.as<StemTiling>()), unseen_of(config));
    if (problem.c == 1) best.cost_us *= kOneChannel;
  }
  return best;
}

Plan cheapest_wgrad(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const StemConfig& config = entry.config.as<StemConfig>();
  const ConvMap map = make_conv_map(problem, false);
  Plan best;
  for_tilings(problem, map, device, [&](StemTiling tiling) {
    const int64_t tiles = tiles_of(problem, map, tiling);
    if (tiles > INT32_MAX / 2) return;
    StemWgradParams params = stem_wgrad_params(config, problem, tiling);
    const int64_t jobs = params.by_jobs.divisor, smem = smem_of(config, params);
    params.walkers = tiling.walkers = static_cast<int32_t>(walkers_of(tiles, device.sm_count / jobs));
    const int64_t blocks = jobs * tiling.walkers;
    const int64_t workspace = tiling.walkers > 1 ? blocks * params.job_quads * 16 : 0;
    if (smem > device.smem_optin_bytes || blocks > INT32_MAX || workspace > kMaxWorkspaceBytes) return;
    const double cost = cost_us(config, problem, device, params, workspace);
    if (best.kernel != nullptr && cost >= best.cost_us) return;
    best.kernel = &entry;
    best.grid = blocks;
    best.block_threads = kStemThreads;
    best.smem_bytes = static_cast<int32_t>(smem);
    best.split = tiling.walkers;
    best.workspace_bytes = workspace;
    best.tiling = tiling;
    best.cost_us = cost;
  });
  if (best.kernel != nullptr) {
    StemWgradParams params = stem_wgrad_params(config, problem, best.tiling.as<StemTiling>());
    params.walkers = best.tiling.as<StemTiling>().walkers;
    best.cost_us = cost_us(config, problem, device, params, best.workspace_bytes, kUnseenWgrad);
  }
  return best;
}

const char* why_not(const KernelEntry& entry, const ConvProblem& problem) {
  if (problem.groups != 1 || problem.c > kMostChannels) {
    return "is for images of 1 to 4 channels, in one group";
  }
  if (entry.config.as<StemConfig>().is_scaled()) {
    if (const char* reason = tile_scaled_why_not(entry.config.as<StemConfig>().parts, problem)) return reason;
  } else if (problem.precision == Precision::kIeee && entry.config.as<StemConfig>().parts < kMaxSplitParts) {
    return "has fewer parts of a value than all of its bits take";
  }
  if (problem.precision == Precision::kIeee && products_of_a_sum(problem) < kLeastTensorProducts) {
    return "rounds sums of so few products less well than float32 does";
  }
  if (!images_fit_int32(problem) || problem.k * problem.c * problem.r * problem.s >= kMaxExtent) {
    return "counts with 32 bits: extents, and elements of an image or of the filter";
  }
  return nullptr;
}

constexpr const char* kNoTile = "has no tile whose pixels and filter fit shared memory";

// Neighbours lie at multiples of their bytes, and of pixels in one row of a tile. Lanes that store runs of pixels read
// those that are as far apart, which of large strides lie in few banks.
StemStores stores_of(const ConvProblem& problem, const Side& side, const StemTiling& tiling) {
  if (side.stride.c == 1 && side.c > 1) {
    const bool fours = widest(side, side.c, {{side.stride.h, side.h}, {side.stride.w, side.w}}) == 4;
    return fours ? StemStores::kFilters : StemStores::kSingles;
  }
  if (side.stride.w != 1) return StemStores::kSingles;
  const int32_t most = widest(side, side.w, {{side.stride.h, side.h}, {side.stride.c, side.c}});
  if (most >= 4 && tiling.tile_q % 4 == 0 && problem.stride.w == 1) return StemStores::kPixels;
  return most >= 2 && tiling.tile_q % 2 == 0 && problem.stride.w <= 2 ? StemStores::kPixelPairs : StemStores::kSingles;
}

}  // namespace

StemParams stem_params(const StemConfig& config, const ConvProblem& problem, const StemTiling& tiling) {
  StemParams params{};
  set_walk(problem, tiling, params);
  const Side side = output_side(problem);
  params.target = side.stride;
  params.stores = stores_of(problem, side, tiling);
  params.steps = static_cast<int32_t>(ceil_div(params.depth, kStemStep));
  params.by_steps = FastDivmod(params.steps);
  params.by_sets = FastDivmod(tiling.sets);
  params.by_set_blocks = FastDivmod(ceil_div(sets_of(config, problem), tiling.sets));
  set_range(config, 1, params);
  params.filter_at = tiling.stages * params.stage_bytes;
  params.filter_range_at = params.filter_at + static_cast<int32_t>(tiling.sets * filter_bytes(config, problem));
  params.table_at = params.filter_range_at + config.is_scaled() * kStemRangeBytes;
  params.filter_table_at = params.table_at + 4 * kStemStep * params.steps;
  return params;
}

StemWgradParams stem_wgrad_params(const StemConfig& config, const ConvProblem& problem, const StemTiling& tiling) {
  StemWgradParams params{};
  set_walk(problem, tiling, params);
  params.y = make_box(output_side(problem), config.filters, tiling.tile_p, tiling.tile_q, false);
  const int64_t units = ceil_div(params.depth, config.unit_taps());
  params.units = static_cast<int32_t>(std::min<int64_t>(units, kStemWarps));
  params.slices = kStemWarps / params.units;
  params.job_quads = params.units * 32 * config.quads();
  params.by_tap_blocks = FastDivmod(ceil_div(units, params.units));
  params.by_jobs = FastDivmod(params.by_tap_blocks.divisor * sets_of(config, problem));
  params.by_slices = FastDivmod(params.slices);
  params.by_job_quads = FastDivmod(params.job_quads);
  params.by_job_threads = FastDivmod(params.units * 32);
  params.y_at = params.stage_bytes;
  params.stage_bytes += 4 * params.y.words;
  set_range(config, 2, params);
  params.table_at = params.stages * params.stage_bytes;
  params.y_table_at = params.table_at + 4 * static_cast<int32_t>(round_up(params.tile_p * params.tile_q, kStemStep));
  return params;
}

Offer stem_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem)) return reason;
  Plan plan = cheapest(entry, problem, device);
  if (plan.kernel == nullptr) return kNoTile;
  return plan;
}

Offer stem_wgrad_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem)) return reason;
  Plan plan = cheapest_wgrad(entry, problem, device);
  if (plan.kernel == nullptr) return kNoTile;
  return plan;
}

}  // namespace fastconv
