#include "fastconv/families/depthwise/pairs_plan.h"

#include <algorithm>
#include <cmath>

#include "fastconv/core/integers.h"
#include "fastconv/families/depthwise/cost.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/copies.h"

namespace fastconv {
namespace {

using namespace cost::pairs;

constexpr int64_t kMostStages = 4;
int64_t channel_blocks(const ConvProblem& a) { return ceil_div(a.c, int64_t{kPairsChannels}); }
int64_t column_blocks(const ConvProblem& a, const DepthwisePairsTiling& tiling) {
  return std::max<int64_t>(1, ceil_div(target_side(a).w, tiling.columns()));
}
int64_t row_units(const ConvProblem& a, const DepthwisePairsTiling& tiling) {
  return std::max<int64_t>(1, ceil_div(target_side(a).h, tiling.unit_rows));
}
int64_t units_of(const ConvProblem& a, const DepthwisePairsTiling& tiling) {
  return ceil_div(a.n, tiling.images) * row_units(a, tiling);
}
int64_t blocks_of(const ConvProblem& a, const DepthwisePairsTiling& tiling) {
  return channel_blocks(a) * column_blocks(a, tiling) * tiling.shares;
}

DepthwisePairsParams shape_of(const DepthwisePairsTiling& tiling) {
  DepthwisePairsParams params{};
  params.tiling = tiling;
  return params;
}

// Of a box, of the source and of targets.
int64_t stage_bytes(const DepthwisePairsConfig& config, const DepthwisePairsTiling& tiling) {
  const DepthwisePairsParams params = shape_of(tiling);
  return params.stage_bytes(config.box_rows()) + 16 + config.box_rows() * params.target_row_bytes();
}
constexpr int64_t kAlignment = 1024;
int64_t smem_bytes(const DepthwisePairsConfig& config, const DepthwisePairsTiling& tiling) {
  return kAlignment + tiling.stages * stage_bytes(config, tiling);
}

double tiling_us(const DepthwisePairsConfig& config, const ConvProblem& a, const DepthwisePairsTiling& tiling,
                 const DeviceSpec& device) {
  const double products = 2 * config.taps * kProductClocks * (tiling.targets == kRunTargets ? kSameBanks : 1);
  const int64_t rows = std::min<int64_t>(source_side(a).h, tiling.unit_rows + config.taps - 1);
  const double boxes = double(ceil_div(rows, config.box_rows()));
  const double all = double(ceil_div(tiling.unit_rows + config.taps - 1, config.box_rows()));
  const double unit = boxes * 2 * products * config.box_rows() + all * kBoxClocks;
  const double rounds = double(ceil_div(blocks_of(a, tiling), int64_t{device.sm_count}));
  const double block = kStartClocks + double(ceil_div(units_of(a, tiling), tiling.shares)) * unit;
  const double again = 1 + double(row_units(a, tiling) - 1) * (config.taps - 1) / double(target_side(a).h) / 2;
  const double share = std::min(1., kOwnRate * double(blocks_of(a, tiling)) / device.sm_count);
  const double waits = tiling.stages == 2 ? kTwoStages : tiling.stages == 3 ? kThreeStages : 1;
  return kLeadUs +
         waits * time_us({.clocks = rounds * block, .bytes = kMemory * again * compulsory_bytes(a) / share}, device);
}

// The fastest; none if time is 0.
struct Choice {
  DepthwisePairsTiling tiling;
  double us = 0;
};
Choice fastest(const DepthwisePairsConfig& config, const ConvProblem& a, const DeviceSpec& device) {
  const Side to = target_side(a);
  const int64_t rows = std::max<int64_t>(1, to.h);
  Choice best;
  for (int32_t targets = kRunTargets - 1; targets <= kRunTargets; ++targets) {
    const int64_t all = std::max<int64_t>(1, ceil_div(to.w, targets)), blocks = ceil_div(all, kRuns);
    const auto runs = static_cast<int32_t>(ceil_div(all, blocks));
    const auto most_images = static_cast<int32_t>(blocks > 1 ? 1 : std::min<int64_t>(a.n, kRuns / runs));
    for (int32_t images = most_images; images >= 1; --images) {
      for (int64_t parts = 1; parts <= rows; parts *= 2) {
        DepthwisePairsTiling tiling{targets, runs, images, static_cast<int32_t>(ceil_div(rows, parts)), 0, 1};
        const int64_t fit = (device.smem_optin_bytes - kAlignment) / stage_bytes(config, tiling);
        if (fit < 2) continue;
        tiling.stages = static_cast<int32_t>(std::min(fit, kMostStages));
        // As many blocks as SMs, or so many fewer that all have as much to do.
        const int64_t units = std::max<int64_t>(1, units_of(a, tiling));
        const int64_t most = device.sm_count / std::max<int64_t>(1, blocks_of(a, tiling));
        tiling.shares = static_cast<int32_t>(ceil_div(units, ceil_div(units, std::clamp<int64_t>(most, 1, units))));
        const double us = tiling_us(config, a, tiling, device);
        if (best.us == 0 || us < best.us) best = {tiling, us};
      }
    }
  }
  return best;
}

}  // namespace

const char* wide_pixels_why_not(int32_t taps, int32_t stride, const ConvProblem& problem) {
  if (problem.c_per_group() != 1 || problem.k_per_group() != 1) return "is for groups of one channel and one filter";
  if (problem.dilation != kUnitStep) return "takes no dilation";
  if (problem.stride != Pair{stride, stride}) return "is compiled for another stride";
  const int64_t most = std::max(problem.r, problem.s);
  if (most > taps || most < taps - 1) return "is compiled for another filter";
  const int64_t rows = problem.h + 2 * problem.padding.h;
  for (const int64_t extent : {problem.n, problem.c, rows, problem.w + 2 * problem.padding.w}) {
    if (extent >= kMaxExtent) return "counts with 32 bits: extents stay below 2^29";
  }
  if (problem.n * rows >= kMaxExtent) return "counts rows of all images with 32 bits: they stay below 2^29";
  if (problem.c % 8 != 0 || !channel_vectors(source_side(problem), problem, 8) ||
      !channel_vectors(target_side(problem), problem, 8)) {
    return "reads 8 channels at a time: needs channels_last tensors, aligned";
  }
  return boxes_why_not(problem);
}

namespace {

const char* why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const DepthwisePairsConfig& config = entry.config.as<DepthwisePairsConfig>();
  if (const char* why_not = wide_pixels_why_not(config.taps, 1, problem)) return why_not;
  if (!filters_copyable(problem)) return "copies filters: they lie without gaps, aligned";
  const Choice choice = fastest(config, problem, device);
  if (choice.us == 0) return "needs more shared memory";
  if (blocks_of(problem, choice.tiling) > INT32_MAX) return "would need more blocks than a grid has";
  return nullptr;
}

}  // namespace

Offer depthwise_pairs_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem, device)) return reason;
  const Choice choice = fastest(entry.config.as<DepthwisePairsConfig>(), problem, device);
  Plan plan;
  plan.kernel = &entry;
  plan.tiling = choice.tiling;
  const Side to = target_side(problem);
  plan.grid = to.h > 0 && to.w > 0 ? blocks_of(problem, choice.tiling) : 0;
  plan.block_threads = kPairsThreads;
  plan.smem_bytes = static_cast<int32_t>(smem_bytes(entry.config.as<DepthwisePairsConfig>(), choice.tiling));
  plan.cost_us = choice.us;
  return plan;
}

DepthwisePairsParams depthwise_pairs_params(const Plan& plan, const ConvProblem& problem) {
  const DepthwisePairsTiling& tiling = plan.tiling.as<DepthwisePairsTiling>();
  const Side from = source_side(problem), to = target_side(problem);
  const Pair padding = sliding_padding(problem);
  DepthwisePairsParams params = shape_of(tiling);
  params.source_strides = from.stride, params.target_strides = to.stride, params.filter_strides = problem.w_strides;
  params.source_h = static_cast<int32_t>(from.h), params.source_w = static_cast<int32_t>(from.w);
  params.target_h = static_cast<int32_t>(to.h), params.target_w = static_cast<int32_t>(to.w);
  params.padding_h = static_cast<int32_t>(padding.h), params.padding_w = static_cast<int32_t>(padding.w);
  params.taps_h = static_cast<int32_t>(problem.r), params.taps_w = static_cast<int32_t>(problem.s);
  params.images = static_cast<int32_t>(problem.n), params.channels = static_cast<int32_t>(problem.c);
  params.units = static_cast<int32_t>(units_of(problem, tiling));
  params.filter_bytes = static_cast<int32_t>(problem.r * problem.s * element_size(problem.dtype));
  params.by_channel_blocks = FastDivmod(channel_blocks(problem));
  params.by_column_blocks = FastDivmod(column_blocks(problem, tiling));
  params.by_units_h = FastDivmod(row_units(problem, tiling));
  params.by_runs = FastDivmod(tiling.runs);
  return params;
}

PixelMaps depthwise_pairs_maps(const Plan& plan, const ConvProblem& problem) {
  const DepthwisePairsTiling& tiling = plan.tiling.as<DepthwisePairsTiling>();
  auto extent = [](int64_t v) { return static_cast<uint32_t>(v); };
  const uint32_t channels = kPairsChannels, images = extent(tiling.images);
  const uint32_t rows = extent(plan.kernel->config.as<DepthwisePairsConfig>().box_rows());
  return {pixels_map(source_side(problem), problem.c, {channels, extent(tiling.pitch()), rows, images}, 1,
                     kPairsPixelBytes),
          pixels_map(target_side(problem), problem.c, {channels, extent(tiling.columns()), 1, images}, 1,
                     kPairsPixelBytes)};
}

}  // namespace fastconv
