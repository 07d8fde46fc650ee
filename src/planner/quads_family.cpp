#include "fastconv/planner/quads_family.h"

#include <algorithm>
#include <cmath>

#include "fastconv/core/integers.h"
#include "fastconv/planner/cost_model.h"
#include "fastconv/planner/extent.h"
#include "fastconv/planner/sides.h"

namespace fastconv {
namespace {

// Clocks of a multiprocessor.
struct Clocks {
  double step, unit;            // a unit's steps, and the rest of it
  double lone_step, lone_unit;  // the same if nothing hides a warp's latencies
  double staged;                // of what is staged at once, a channel
  double tile;                  // pixels on their way, barriers
  double pack;                  // of a step of a set's filter
};
// Fitted to tilings of images of few channels, as measured on an H100.
constexpr Clocks kHalfClocks{24, 100, 260, 680, 0.42, 2800, 150};
constexpr Clocks kTf32Clocks{40, 215, 333, 1640, 0.49, 2020, 317};
// Of TF32 most of that time is memory's, which the families that it competes with count as an H200's; but not
// multiply-adds of one channel.
constexpr double kTf32Share = 0.83;
constexpr double kStartUs = 2.5;  // and end

int64_t sets_of(const ConvProblem& problem) { return ceil_div(problem.k, int64_t{kQuadsUnit}); }

// Elements that a lane stores at once, side by side.
int64_t run_of(const ConvProblem& problem) { return 16 / element_size(problem.dtype); }

QuadsPairs pairs_of(const ConvProblem& problem, const Side& side) {
  if (element_size(problem.dtype) != 2 || side.w % 2 != 0 || side.align < 4 ||
      !keeps_multiples(side.stride.n, side.n, 2) || !keeps_multiples(side.stride.h, side.h, 2)) {
    return QuadsPairs::kNone;
  }
  if (side.stride.w == 1 && keeps_multiples(side.stride.c, side.c, 2)) return QuadsPairs::kPlanes;
  if (side.stride.c == 1 && side.stride.w == side.c) return QuadsPairs::kInner;
  return QuadsPairs::kNone;
}

bool whole_runs(const QuadsConfig& config, const ConvProblem& problem, const Side& side) {
  const bool inner = config.channels_inner;
  const int64_t run = run_of(problem);
  const int64_t extent = inner ? side.c : side.w, step = inner ? side.stride.c : side.stride.w;
  return extent % run == 0 && step == 1 && side.align >= 16 && keeps_multiples(side.stride.n, side.n, run) &&
         keeps_multiples(side.stride.h, side.h, run) &&
         (inner ? keeps_multiples(side.stride.w, side.w, run) : keeps_multiples(side.stride.c, side.c, run));
}

int32_t smem_of(const QuadsParams& params) { return params.table_at + params.steps * kQuadsStepTaps * 4; }

int64_t resident_blocks(const QuadsParams& params, const DeviceSpec& device) {
  return std::clamp<int64_t>(device.smem_optin_bytes / (smem_of(params) + kReservedSmemBytes), 1, kQuadsBlocksPerSm);
}

double cost_us(const ConvProblem& problem, const DeviceSpec& device, const QuadsParams& params) {
  const double blocks = double(params.walkers) * params.by_set_blocks.divisor;
  const double at_once = std::ceil(blocks / device.sm_count);  // of the busiest multiprocessor
  const double tiles = std::ceil(double(params.tiles) / params.walkers);
  const double units = std::ceil(double(params.tile_p) * params.tile_q / kQuadsUnit) * params.sets();
  const bool tf32 = problem.dtype == DType::kFloat32;
  const Clocks& of = tf32 ? kTf32Clocks : kHalfClocks;
  const double staged = double(params.units) * params.channels * of.staged;
  // What is stored by elements takes as many accesses; not measured.
  const double stored = params.whole_runs ? 1 : 4;
  const double busy = at_once * (units * (params.steps * of.step + stored * of.unit) + staged);
  const double lone = std::ceil(units / kQuadsWarps) * (params.steps * of.lone_step + stored * of.lone_unit) + of.tile;
  const double clocks = (tf32 && problem.c > 1 ? kTf32Share : 1) *
                        (params.sets() * params.steps * of.pack + tiles * std::max(busy, lone));
  const double memory = compulsory_bytes(problem) / (kBytesPerUsPerSm * device.sm_count);
  return kStartUs + std::max(clocks / kTensorCyclesPerUs, memory);
}

// The cheapest tiling; none if plan.kernel is null.
Plan cheapest(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const ConvMap map = make_conv_map(problem, false);
  const int64_t sets = sets_of(problem), steps = ceil_div(problem.r * problem.s, int64_t{kQuadsStepTaps});
  Plan best;
  for (int64_t parts = 1; parts <= map.w.rows; parts *= 2) {
    // Whole runs, so that a lane's lie in a row; of pixels side by side whole sectors, if other tiles are beside them.
    const bool sectors = parts > 1 && !entry.quads.channels_inner;
    const int64_t tile_q = round_up(ceil_div(map.w.rows, parts), run_of(problem) * (sectors ? 2 : 1));
    for (int64_t tile_p = 1; tile_p <= map.h.rows && tile_p <= 64; tile_p += 1 + tile_p / 8) {
      const int64_t halo_h = source_extent(map.h, tile_p),
                    halo_w = round_up(source_extent(map.w, tile_q) + 1, int64_t{2});
      if (halo_h > 2 * kQuadsStaged * kQuadsThreads / halo_w) break;
      for (int64_t some = sets; some > 0; some /= 2) {
        // Before anything counts its bytes with 32 bits.
        if (some > device.smem_optin_bytes / (steps * kQuadsUnit)) continue;
        QuadsTiling tiling{static_cast<int32_t>(tile_p), static_cast<int32_t>(tile_q), static_cast<int32_t>(some), 1};
        const int64_t tiles = problem.n * ceil_div(map.h.rows, tile_p) * ceil_div(map.w.rows, tile_q);
        const int64_t set_blocks = ceil_div(sets, some);
        if (tiles * set_blocks > INT32_MAX / 2) continue;
        QuadsParams params = quads_params(entry.quads, problem, tiling);
        if (params.units > kQuadsStaged * kQuadsThreads || smem_of(params) > device.smem_optin_bytes) continue;
        // As many blocks as multiprocessors hold, each with as many tiles or one less.
        const int64_t wanted = std::max<int64_t>(1, resident_blocks(params, device) * device.sm_count / set_blocks);
        const int64_t walkers = tiles > 0 ? ceil_div(tiles, ceil_div(tiles, std::min(wanted, tiles))) : 1;
        params.walkers = tiling.walkers = static_cast<int32_t>(walkers);
        const double cost = cost_us(problem, device, params);
        if (best.kernel != nullptr && cost >= best.cost_us) continue;
        best.kernel = &entry;
        best.grid = tiles > 0 ? walkers * set_blocks : 0;
        best.block_threads = kQuadsThreads;
        best.smem_bytes = smem_of(params);
        best.quads = tiling;
        best.cost_us = cost;
      }
    }
  }
  return best;
}

}  // namespace

QuadsParams quads_params(const QuadsConfig& config, const ConvProblem& problem, const QuadsTiling& tiling) {
  const ConvMap map = make_conv_map(problem, false);
  const Side from = input_side(problem), to = output_side(problem);
  QuadsParams params{};
  params.h = map.h, params.w = map.w;
  params.source = from.stride, params.filter = problem.w_strides, params.target = to.stride;
  params.channels = static_cast<int32_t>(problem.c), params.filters = static_cast<int32_t>(problem.k);
  params.taps = static_cast<int32_t>(problem.r * problem.s);
  params.steps = ceil_div(params.taps, kQuadsStepTaps);
  params.tile_p = tiling.tile_p, params.tile_q = tiling.tile_q;
  params.quad_bytes = static_cast<int32_t>(kQuadChannels * element_size(problem.dtype));
  params.pairs = pairs_of(problem, from);
  const bool paired = params.pairs != QuadsPairs::kNone;
  const int64_t halo_w = source_extent(map.w, tiling.tile_q);
  params.halo_w = static_cast<int32_t>(paired ? round_up(halo_w + 1, int64_t{2}) : halo_w);  // a lead of one
  const int32_t units_w = paired ? params.halo_w / 2 : params.halo_w;
  params.units = static_cast<int32_t>(source_extent(map.h, tiling.tile_p)) * units_w;
  params.word_step = params.pairs == QuadsPairs::kInner ? 2 : static_cast<int32_t>(from.stride.c);
  params.whole_runs = whole_runs(config, problem, to);
  const int64_t tiles_h = ceil_div(map.h.rows, tiling.tile_p), tiles_w = ceil_div(map.w.rows, tiling.tile_q);
  params.tiles = static_cast<int32_t>(problem.n * tiles_h * tiles_w), params.walkers = tiling.walkers;
  params.by_tiles_w = FastDivmod(tiles_w), params.by_tiles_h = FastDivmod(tiles_h);
  params.by_tile_q = FastDivmod(tiling.tile_q), params.by_units_w = FastDivmod(units_w);
  params.by_taps_w = FastDivmod(problem.s), params.by_steps = FastDivmod(params.steps);
  params.by_sets = FastDivmod(tiling.sets), params.by_set_blocks = FastDivmod(ceil_div(sets_of(problem), tiling.sets));
  params.filter_at = round_up(params.units * (paired ? 2 : 1) * params.quad_bytes, 16);
  params.table_at = params.filter_at + tiling.sets * params.steps * params.step_bytes();
  return params;
}

const char* quads_why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (device.arch < 80) return "needs compute capability 8.0 or newer";
  if (!(entry.dtypes & dtype_bit(problem.dtype))) return "is not compiled for this dtype";
  if (problem.dtype == DType::kFloat32 && problem.precision != Precision::kTf32) return "rounds operands to TF32";
  if (problem.groups != 1 || problem.c < 1 || problem.c > kQuadChannels || problem.k < 1) {
    return "is for images of 1 to 4 channels, in one group";
  }
  if (!images_fit_int32(problem) || problem.k * problem.c * problem.r * problem.s >= kMaxExtent) {
    return "counts with 32 bits: extents, and elements of an image or of the filter";
  }
  if (cheapest(entry, problem, device).kernel == nullptr) {
    return "has no tile whose pixels threads can bring, and whose filter fits shared memory";
  }
  return nullptr;
}

Plan quads_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  return cheapest(entry, problem, device);
}

}  // namespace fastconv
