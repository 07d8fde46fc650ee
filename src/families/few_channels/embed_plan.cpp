#include "fastconv/families/few_channels/embed_plan.h"

#include <algorithm>
#include <cmath>

#include "fastconv/core/integers.h"
#include "fastconv/families/few_channels/cost.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/split.h"

namespace fastconv {
namespace {

using namespace cost::few_channels;
using namespace cost::embed;

constexpr int32_t kWgradSmemBytes = 16 * kEmbedWgradThreads * kEmbedMostChunks;  // a lane has a quad of each
constexpr int64_t kMostChannels = 4;
// Steps of 16 pixels that one sum of the weight gradient adds up, which bounds its rounding errors.
constexpr int64_t kMostTurns = 1024;

// A patch's rows of values that lie side by side.
struct PatchRows {
  int64_t length;
  bool of_pixels;  // with all channels of each
};

PatchRows rows_of(const ConvProblem& problem) {
  const Side side = input_side(problem);
  const bool of_pixels = side.c > 1 && side.stride.c == 1 && side.stride.w == side.c;
  return {of_pixels ? problem.s * side.c : problem.s, of_pixels};
}

// Whether chunks can be read at once: where they begin.
bool has_chunks(const ConvProblem& problem) {
  const Side side = input_side(problem);
  const PatchRows rows = rows_of(problem);
  const int64_t chunk = kEmbedChunk;
  if (!rows.of_pixels && side.stride.w != 1) return false;
  return rows.length % chunk == 0 && side.align >= chunk * element_size(problem.dtype) &&
         keeps_multiples(side.stride.n, side.n, chunk) && keeps_multiples(side.stride.h, side.h, chunk) &&
         (rows.of_pixels || keeps_multiples(side.stride.c, side.c, chunk));
}

int64_t chunks_of(const ConvProblem& problem) { return problem.c * problem.r * problem.s / kEmbedChunk; }
int64_t steps_of(const ConvProblem& problem) { return ceil_div(chunks_of(problem), int64_t{kEmbedStepChunks}); }
int64_t sets_of(const ConvProblem& problem) { return ceil_div(problem.k, int64_t{kEmbedUnitFilters}); }

// Values of the output that a lane accesses at once.
int64_t run_of(const EmbedConfig& config, const ConvProblem& problem) {
  const bool stores_filters = config.channels_inner && problem.pass == Pass::kFprop;
  return stores_filters ? 16 / element_size(problem.dtype) : kEmbedChunk;
}

bool whole_runs(const EmbedConfig& config, const ConvProblem& problem) {
  const Side side = output_side(problem);
  const int64_t run = run_of(config, problem);
  if (side.align < run * element_size(problem.dtype) || !keeps_multiples(side.stride.n, side.n, run)) return false;
  if (config.channels_inner) {
    return side.c % run == 0 && side.stride.c == 1 && keeps_multiples(side.stride.h, side.h, run) &&
           keeps_multiples(side.stride.w, side.w, run);
  }
  const bool planes = side.h == 1 || side.stride.h == side.w * side.stride.w;  // are rows themselves
  return side.stride.w == 1 && keeps_multiples(side.stride.c, side.c, run) &&
         (planes ? side.h * side.w % run == 0 : side.w % run == 0 && keeps_multiples(side.stride.h, side.h, run));
}

int64_t set_bytes(const EmbedConfig& config, const ConvProblem& problem) {
  return steps_of(problem) * config.parts * 1024;
}

struct Clocks {
  double split, multiply, store;
};
Clocks clocks_of(const EmbedConfig& config, const ConvProblem& problem) {
  const int part = config.parts - 1;
  return {kSplit[part], kMultiply[part], whole_runs(config, problem) ? kStore : kStoreElements};
}

int64_t turns_of(const ConvProblem& problem, int64_t threads) {
  return ceil_div(problem.n * problem.p() * problem.q(), kEmbedUnitPixels * threads / 32);
}

double cost_us(const EmbedConfig& config, const ConvProblem& problem, const DeviceSpec& device,
               const EmbedTiling& tiling) {
  const Clocks of = clocks_of(config, problem);
  const auto steps = static_cast<double>(steps_of(problem));
  const double rounds = std::ceil(steps / kEmbedSteps), reads = rounds > 1 ? tiling.sets : 1;
  const double blocks = double(tiling.walkers) * double(ceil_div(sets_of(problem), int64_t{tiling.sets}));
  const double at_once = std::ceil(blocks / device.sm_count);  // of the busiest SM
  const double warps = config.threads() / 32.;
  const double units = std::ceil(double(turns_of(problem, config.threads())) / tiling.walkers);
  const double unit = reads * steps * (kRead + 2 * of.split) + tiling.sets * (steps * of.multiply + of.store);
  const double lone = reads * rounds * kRoundClocks + tiling.sets * (steps * of.multiply + of.store);
  const double pack = kPackClocks * std::ceil(2 * tiling.sets * steps / warps);
  const double clocks = kFirstClocks + pack + units * std::max(at_once * warps / 4 * unit, lone);
  return time_us({.clocks = clocks, .bytes = compulsory_bytes(problem), .shown = kShown, .us = kStartUs}, device);
}

double wgrad_cost_us(const EmbedConfig& config, const ConvProblem& problem, const DeviceSpec& device,
                     const EmbedTiling& tiling) {
  const Clocks of = clocks_of(config, problem);
  const double pairs = std::ceil(static_cast<double>(chunks_of(problem)) / 4);  // of a lane
  const double waves = std::ceil(double(tiling.walkers) * double(sets_of(problem)) / device.sm_count);
  const double units = waves * std::ceil(double(turns_of(problem, kEmbedWgradThreads)) / tiling.walkers);
  const double unit = (1 + pairs) * kRead + (4 + 2 * pairs) * of.split + pairs * of.multiply + of.store;
  const double clocks = kWgradFirstClocks + kUnseenWgrad * units * kEmbedWgradWarps / 4 * unit;
  const double sums = 2. * 4 * tiling.walkers * static_cast<double>(problem.k * problem.c * problem.r * problem.s);
  return time_us(
      {.clocks = clocks, .bytes = compulsory_bytes(problem) + sums, .shown = kShown, .us = kStartUs + kReduceUs},
      device);
}

// Blocks that share the turns, each with as many or one less.
int64_t walkers_of(int64_t turns, int64_t wanted) {
  return ceil_div(turns, ceil_div(turns, std::clamp<int64_t>(wanted, 1, turns)));
}

Plan plan_wgrad(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const int64_t sums_bytes = 4 * problem.k * problem.c * problem.r * problem.s;
  const int64_t turns = turns_of(problem, kEmbedWgradThreads);
  const int64_t wanted = std::max(device.sm_count / sets_of(problem), ceil_div(turns, kMostTurns));
  Plan plan;
  plan.kernel = &entry;
  plan.block_threads = kEmbedWgradThreads;
  plan.smem_bytes = kWgradSmemBytes;
  plan.split = walkers_of(turns, std::min(wanted, kMaxWorkspaceBytes / sums_bytes));
  const EmbedTiling tiling{1, static_cast<int32_t>(plan.split)};
  plan.tiling = tiling;
  plan.grid = plan.split * sets_of(problem);
  plan.workspace_bytes = plan.split * sums_bytes;
  plan.cost_us = wgrad_cost_us(entry.config.as<EmbedConfig>(), problem, device, tiling);
  return plan;
}

// None if plan.kernel is null.
Plan cheapest(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const EmbedConfig& config = entry.config.as<EmbedConfig>();
  const int64_t sets = sets_of(problem), resident = config.blocks_per_sm();
  const int64_t bytes = set_bytes(config, problem);
  const int64_t turns = turns_of(problem, config.threads());
  Plan best;
  for (int64_t blocks = 1; blocks <= sets; blocks += 1 + blocks / 4) {
    const int64_t some = ceil_div(sets, blocks), set_blocks = ceil_div(sets, some);
    if (some * bytes > device.smem_optin_bytes / resident - kReservedSmemBytes) continue;
    const int64_t walkers = walkers_of(turns, resident * device.sm_count / set_blocks);
    const EmbedTiling tiling{static_cast<int32_t>(some), static_cast<int32_t>(walkers)};
    const double cost = cost_us(config, problem, device, tiling);
    if (best.kernel != nullptr && cost >= best.cost_us) continue;
    best.kernel = &entry;
    best.block_threads = config.threads();
    best.smem_bytes = static_cast<int32_t>(some * bytes);
    best.tiling = tiling;
    best.grid = walkers * set_blocks;
    best.cost_us = cost;
  }
  return best;
}

}  // namespace

EmbedParams embed_params(const EmbedConfig& config, const ConvProblem& problem, const EmbedTiling& tiling) {
  const Side from = input_side(problem), to = output_side(problem);
  const PatchRows rows = rows_of(problem);
  EmbedParams params{};
  params.filter = problem.w_strides;
  params.source_n = from.stride.n, params.target_n = to.stride.n, params.target_c = to.stride.c;
  params.source_p = static_cast<int32_t>(problem.r * from.stride.h);
  params.source_q = static_cast<int32_t>(problem.s * from.stride.w);
  params.target_p = static_cast<int32_t>(to.stride.h), params.target_q = static_cast<int32_t>(to.stride.w);
  params.source_c = static_cast<int32_t>(from.stride.c), params.source_h = static_cast<int32_t>(from.stride.h);
  params.chunks = static_cast<int32_t>(chunks_of(problem));
  params.steps = static_cast<int32_t>(steps_of(problem));
  params.rounds = ceil_div(params.steps, kEmbedSteps);
  params.pixels = static_cast<int32_t>(problem.n * problem.p() * problem.q());
  params.filters = static_cast<int32_t>(problem.k);
  params.taps_h = static_cast<int32_t>(problem.r), params.taps_w = static_cast<int32_t>(problem.s);
  params.channels = static_cast<int32_t>(problem.c);
  params.whole_runs = whole_runs(config, problem);
  params.by_pixels = FastDivmod(problem.p() * problem.q()), params.by_columns = FastDivmod(problem.q());
  params.by_row_chunks = FastDivmod(rows.length / kEmbedChunk), params.by_taps_h = FastDivmod(problem.r);
  params.by_channels = FastDivmod(rows.of_pixels ? problem.c : 1);
  params.by_set_blocks = FastDivmod(ceil_div(sets_of(problem), tiling.sets));
  params.sets = tiling.sets, params.walkers = tiling.walkers;
  return params;
}

namespace {

const char* why_not(const KernelEntry& entry, const ConvProblem& p, const DeviceSpec& device) {
  if (p.dtype == DType::kFloat32 && p.precision == Precision::kIeee &&
      entry.config.as<EmbedConfig>().parts < kMaxSplitParts) {
    return "has fewer parts of a value than all of its bits take";
  }
  if (p.groups != 1) return "takes one group alone";
  if (!is_patches(p)) return "needs a filter as large as its stride, of several taps, without padding or dilation";
  if (p.c > kMostChannels) return "is for images of up to 4 channels";
  if (chunks_of(p) > kEmbedMostChunks || !has_chunks(p)) {
    return "reads patches of up to 64 values, four side by side at a time";
  }
  if (kWgradSmemBytes > device.smem_optin_bytes) return "needs more shared memory";
  if (p.precision == Precision::kIeee && p.dtype == DType::kFloat32 && products_of_a_sum(p) < kLeastTensorProducts) {
    return "rounds sums of so few products less well than float32 does";
  }
  // Units beyond the last pixel are numbered too.
  if (!images_fit_int32(p) || p.n * p.p() * p.q() > INT32_MAX / 2 || p.k * p.c * p.r * p.s >= kMaxExtent) {
    return "counts with 32 bits: extents, pixels, and elements of an image or of the filter";
  }
  return nullptr;
}

}  // namespace

Offer embed_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem, device)) return reason;
  if (problem.pass == Pass::kWgrad) return plan_wgrad(entry, problem, device);
  Plan plan = cheapest(entry, problem, device);
  if (plan.kernel == nullptr) return "keeps a set of filters in shared memory, which has no room for them";
  return plan;
}

}  // namespace fastconv
