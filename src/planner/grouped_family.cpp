#include "fastconv/planner/grouped_family.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "fastconv/core/integers.h"
#include "fastconv/planner/cost_model.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/tile_config.h"

namespace fastconv {
namespace {

constexpr int64_t kMostChannels = 16;  // of a group
constexpr int64_t kWarps = kGroupedThreads / 32;
constexpr int32_t kNoChain = 1 << 30;

// The tensor that the filter slides over, and the one that is written.
Side source_of(const ConvProblem& p) { return p.pass == Pass::kDgrad ? output_side(p) : input_side(p); }
Side target_of(const ConvProblem& p) { return p.pass == Pass::kDgrad ? input_side(p) : output_side(p); }

// Taps of the phase that has most.
int32_t most_taps(const Axis& axis) { return static_cast<int32_t>(ceil_div(axis.taps, axis.tap_step)); }
int64_t staged(const Axis& axis, int64_t pixels) {
  return (pixels - 1) * axis.source_step + (most_taps(axis) - 1) * std::abs(axis.tap_source_step) + 1;
}

int64_t sets_of(const GroupedConfig& config, int64_t filters) { return ceil_div(filters, config.filters); }

// The largest element after the first of an image, all dimensions but n.
int64_t reach(const Side& side, int64_t groups) {
  return (side.c * groups - 1) * side.stride.c + (side.h - 1) * side.stride.h + (side.w - 1) * side.stride.w;
}

GroupedRows make_rows(const ConvProblem& problem, const ConvMap& map, const GroupedTiling& tiling, int32_t chunk) {
  const Side side = source_of(problem);
  const int64_t size = element_size(problem.dtype);
  GroupedRows rows{};
  rows.stride = side.stride;
  rows.extent_h = map.h.source_extent, rows.extent_w = map.w.source_extent;
  rows.channels = map.channels, rows.chunks = static_cast<int32_t>(ceil_div(map.channels, chunk));
  rows.tile_h = static_cast<int32_t>(staged(map.h, tiling.tile_p));
  rows.tile_w = static_cast<int32_t>(staged(map.w, tiling.tile_q));
  const int32_t planes = tiling.tile_g * rows.chunks;
  rows.lanes_log2 = std::min(5, static_cast<int32_t>(std::bit_width(static_cast<uint32_t>(planes - 1))));
  // The planes of a pixel, and of some pixels if there are fewer than eight, begin in different banks.
  const int32_t apart = std::max(1, 8 >> rows.lanes_log2), all = rows.tile_h * rows.tile_w;
  rows.plane_bytes = kGroupedRowBytes * (all + (apart - all % 8 + 8) % 8);

  auto copied = [&](int64_t bytes) {
    const int64_t values = bytes / size;
    return values > 0 && side.stride.c == 1 && side.c % values == 0 && side.align >= bytes &&
           keeps_multiples(side.stride.n, side.n, values) && keeps_multiples(side.stride.h, side.h, values) &&
           keeps_multiples(side.stride.w, side.w, values);
  };
  rows.copy_bytes = copied(16) ? 16 : copied(8) ? 8 : copied(4) ? 4 : 0;
  rows.channels_inner = side.stride.c < side.stride.w;
  rows.pairs = rows.copy_bytes == 0 && size == 2 && side.stride.w == 1 && side.w % 2 == 0 && side.align >= 4 &&
               keeps_multiples(side.stride.n, side.n, 2) &&
               keeps_multiples(side.stride.c, side.c * problem.groups, 2) && keeps_multiples(side.stride.h, side.h, 2);
  rows.columns = rows.pairs ? rows.tile_w / 2 + 1 : rows.tile_w;
  const int32_t pixels = rows.tile_h * rows.columns;
  rows.units = planes * pixels;
  rows.by_width = FastDivmod(rows.tile_w);
  rows.by_columns = FastDivmod(rows.columns);
  rows.by_chunks = FastDivmod(rows.chunks);
  rows.by_inner = FastDivmod(rows.channels_inner ? planes : pixels);
  return rows;
}

// How results are stored, once the rest is known.
void choose_store(const ConvProblem& problem, const GroupedConfig& config, GroupedParams& params) {
  const Side side = target_of(problem);
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
  params.by_store_row = FastDivmod(params.joined ? params.tile_p * params.tile_q : params.tile_q);
  params.by_vectors = FastDivmod(vectors);
  // Sixteen bytes more, so that rows of the buffer begin in different banks.
  if (params.store == GroupedStore::kChannels) {
    params.buffer_pitch = static_cast<int32_t>(round_up(together * size, kGroupedRowBytes)) + kGroupedRowBytes;
    params.buffer_bytes = config.unit_pixels() * params.buffer_pitch;
  } else {
    params.buffer_pitch = static_cast<int32_t>(config.unit_pixels() * size) + kGroupedRowBytes;
    params.buffer_bytes = static_cast<int32_t>(together) * params.buffer_pitch;
  }
}

int64_t smem_of(const GroupedParams& params) { return params.buffer_at + kWarps * params.buffer_bytes; }

int64_t blocks_of(const ConvProblem& problem, const GroupedParams& params) {
  return problem.n * params.h.phases * params.w.phases * params.by_group_blocks.divisor * params.by_tiles_h.divisor *
         params.by_tiles_w.divisor;
}

// Clocks of a multiprocessor that a block takes, if others hide its latencies. Estimates, from counted instructions and
// accesses of shared memory.
double block_clocks(const GroupedConfig& config, const GroupedParams& params) {
  constexpr double kFilterRow = 2.5;  // the taps of a filter, gathered
  const GroupedRows& rows = params.rows;
  const double row = rows.copy_bytes > 0 ? 0.3 + 1.6 / rows.copy_bytes : rows.pairs ? 0.4 : 0.7;
  const double sets = static_cast<double>(params.tile_g) * params.sets;
  const double depth = static_cast<double>(params.set_bytes) / (config.filters * kGroupedRowBytes);
  const double tiles = config.filters / 8.;
  const bool floats = config.operands == GroupedOperands::kFloat;
  const double unit = floats ? 40 * depth + 80 : (17 + 2 * tiles) * depth / 2 + 30 * tiles + 15;
  const auto pixels = static_cast<double>(ceil_div(params.tile_p * params.tile_q, config.unit_pixels()));
  // Some warps have a unit more than others.
  const double units = pixels * static_cast<double>(params.by_runs.divisor);
  const double uneven = static_cast<double>(round_up(static_cast<int64_t>(units), kWarps)) / units;
  return rows.tile_h * rows.tile_w * params.tile_g * rows.chunks * row + sets * config.filters * depth * kFilterRow +
         pixels * sets * unit * (1 + uneven) / 2;
}

// Bytes in whole sectors, some of which several blocks read or write.
double moved_bytes(const ConvProblem& problem, const GroupedParams& params, double blocks) {
  const auto size = static_cast<double>(element_size(problem.dtype));
  auto sectors = [&](bool inner, double channels) {
    const double run = params.tile_g * channels * size;
    return inner ? static_cast<double>(round_up(static_cast<int64_t>(run), 32)) / run : 1;
  };
  const GroupedRows& rows = params.rows;
  // Padding is not read.
  const double read = static_cast<double>(std::min(rows.tile_h, rows.extent_h)) * std::min(rows.tile_w, rows.extent_w);
  const double written = static_cast<double>(params.tile_p) * params.tile_q;
  return blocks * params.tile_g * size *
         (read * rows.channels * sectors(rows.channels_inner, rows.channels) +
          written * params.filters * sectors(params.store == GroupedStore::kChannels, params.filters));
}

double cost_us(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device,
               const GroupedParams& params) {
  constexpr double kLatencyClocks = 3000;  // of a block: its loads, its stores, and what waits for them
  constexpr double kL2Rate = 1.6;          // times device memory's
  const auto blocks = static_cast<double>(blocks_of(problem, params));
  const int64_t resident =
      std::min<int64_t>(entry.grouped.blocks_per_sm(), (device.smem_optin_bytes + 1024) / (smem_of(params) + 1024));
  const double rounds = std::ceil(blocks / device.sm_count);
  const double clocks =
      rounds * block_clocks(entry.grouped, params) + std::ceil(rounds / static_cast<double>(resident)) * kLatencyClocks;
  // Memory and the rest overlap as far as blocks of a multiprocessor are at different stages.
  const double apart = std::min(static_cast<double>(resident), rounds / static_cast<double>(resident));
  const double bytes = std::max(compulsory_bytes(problem), moved_bytes(problem, params, blocks) / kL2Rate);
  const double compute = clocks / kTensorCyclesPerUs, memory = bytes / (kBytesPerUsPerSm * device.sm_count);
  return kLaunchUs + std::max(compute, memory) + std::min(compute, memory) / std::max(1., apart);
}

// The cheapest tiling that fits; none if plan.kernel is null.
Plan cheapest(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const GroupedConfig& config = entry.grouped;
  const ConvMap map = make_conv_map(problem, false);
  const int64_t chunks = ceil_div(map.channels, config.chunk());
  // Channels that a warp stores together: a sector or two if they lie side by side.
  const bool inner = target_of(problem).stride.c == 1;
  const int64_t most_run = inner ? (config.operands == GroupedOperands::kFloat ? 8 : 16) / map.filters : 1;
  Plan best;
  // Tiles of halved width are whole vectors of pixels.
  auto narrower = [](int64_t tile) { return tile > 16 ? std::min(tile, round_up(ceil_div(tile, 2), 8)) : 0; };
  auto lower = [](int64_t tile) { return tile > 1 ? ceil_div(tile, 2) : 0; };
  for (int64_t tile_g = 1; tile_g < 2 * problem.groups && tile_g <= 64; tile_g *= 2) {
    for (int64_t tile_q = map.w.rows; tile_q > 0; tile_q = narrower(tile_q)) {
      for (int64_t tile_p = map.h.rows; tile_p > 0; tile_p = lower(tile_p)) {
        const int64_t groups = std::min(tile_g, problem.groups);
        const int64_t rows = staged(map.h, tile_p) * staged(map.w, tile_q);
        if (rows > device.smem_optin_bytes / (kGroupedRowBytes * groups * chunks)) continue;
        const GroupedTiling tiling{
            static_cast<int32_t>(tile_p), static_cast<int32_t>(tile_q), static_cast<int32_t>(groups),
            static_cast<int32_t>(sets_of(config, map.filters) > 1 ? 1 : std::clamp<int64_t>(most_run, 1, groups))};
        const GroupedParams params = grouped_params(config, problem, tiling);
        const int64_t blocks = blocks_of(problem, params), smem = smem_of(params);
        if (smem > device.smem_optin_bytes || blocks > INT32_MAX) continue;
        const double cost = cost_us(entry, problem, device, params);
        if (best.kernel != nullptr && cost >= best.cost_us) continue;
        best.kernel = &entry;
        best.grid = blocks;
        best.block_threads = kGroupedThreads;
        best.smem_bytes = static_cast<int32_t>(smem);
        best.grouped = tiling;
        best.cost_us = cost;
      }
    }
  }
  return best;
}

bool fits_int32(const ConvProblem& a) {
  for (const int64_t extent : {a.n, a.c, a.k, a.h + 2 * a.padding.h, a.w + 2 * a.padding.w, a.stride.h, a.stride.w,
                               a.dilation.h, a.dilation.w}) {
    if (extent >= kMaxExtent) return false;
  }
  const Side filter{1, a.c_per_group(), a.r, a.s, a.w_strides, 0};
  const int64_t of_group = reach(filter, 1) + (a.k_per_group() - 1) * a.w_strides.n;
  return reach(input_side(a), a.groups) < INT32_MAX && reach(output_side(a), a.groups) < INT32_MAX &&
         of_group < INT32_MAX && a.r * a.s < kMaxExtent;
}

}  // namespace

GroupedParams grouped_params(const GroupedConfig& config, const ConvProblem& problem, const GroupedTiling& tiling) {
  const ConvMap map = make_conv_map(problem, false);
  GroupedParams params{};
  params.h = map.h, params.w = map.w;
  params.rows = make_rows(problem, map, tiling, config.chunk());
  params.filter = map.filter, params.target = map.target;
  params.filter_group = problem.k_per_group() * problem.w_strides.n;
  params.groups = static_cast<int32_t>(problem.groups), params.filters = map.filters;
  params.sets = static_cast<int32_t>(sets_of(config, map.filters));
  params.chunk = config.chunk();
  params.tile_p = tiling.tile_p, params.tile_q = tiling.tile_q, params.tile_g = tiling.tile_g, params.run = tiling.run;
  params.by_group_blocks = FastDivmod(ceil_div(problem.groups, tiling.tile_g));
  params.by_tiles_w = FastDivmod(ceil_div(map.w.rows, tiling.tile_q));
  params.by_tiles_h = FastDivmod(ceil_div(map.h.rows, tiling.tile_p));
  params.by_phases_w = FastDivmod(map.w.phases), params.by_phases_h = FastDivmod(map.h.phases);
  params.by_tile_q = FastDivmod(tiling.tile_q);
  params.by_sets = FastDivmod(params.sets);
  params.by_runs = FastDivmod(ceil_div(tiling.tile_g * params.sets, tiling.run));
  params.chain = config.operands == GroupedOperands::kFloat ? chain_length(problem) / config.chunk() : kNoChain;
  choose_store(problem, config, params);

  const int32_t depth = most_taps(map.h) * most_taps(map.w) * params.rows.chunks;
  auto end = static_cast<int32_t>(params.rows.plane_bytes * params.rows.chunks * tiling.tile_g);
  auto place = [&](int64_t bytes) {
    const int32_t at = end;
    end += static_cast<int32_t>(round_up(bytes, kGroupedRowBytes));
    return at;
  };
  params.set_bytes = depth * config.filters * kGroupedRowBytes;
  params.filter_at = place(int64_t{params.set_bytes} * params.sets * tiling.tile_g);
  params.table_at = place(4 * (depth + kGroupedSpareTaps));
  params.taps_at = place(8 * depth);
  params.bias_at = place(problem.has_bias ? 4 * tiling.tile_g * params.filters : 0);
  params.buffer_at = end;
  return params;
}

const char* grouped_why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (device.arch < 80) return "needs compute capability 8.0 or newer";
  if (!(entry.dtypes & dtype_bit(problem.dtype))) return "is not compiled for this dtype";
  if (entry.grouped.operands == GroupedOperands::kTf32 && problem.precision != Precision::kTf32) {
    return "rounds operands to TF32";
  }
  const int64_t channels = problem.c_per_group(), filters = problem.k_per_group();
  if (std::min(channels, filters) < 1 || std::max(channels, filters) < 2 ||
      std::max(channels, filters) > kMostChannels) {
    return "is for groups of 2 to 16 channels and filters";
  }
  if (!fits_int32(problem)) return "counts with 32 bits: extents, and elements of an image or a group's filters";
  if (cheapest(entry, problem, device).kernel == nullptr) {
    return "has no tile whose pixels and taps fit shared memory, in as many blocks as a grid has";
  }
  return nullptr;
}

Plan grouped_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  return cheapest(entry, problem, device);
}

}  // namespace fastconv
