#include "fastconv/families/depthwise/cross_plan.h"

#include <algorithm>

#include "fastconv/core/integers.h"
#include "fastconv/families/depthwise/cost.h"
#include "fastconv/families/depthwise/pairs_plan.h"
#include "fastconv/planner/sides.h"

namespace fastconv {
namespace {

using namespace cost::depthwise;
using namespace cost::cross;

constexpr int32_t kMostStages = 6, kMostSourceStages = 24;
constexpr int64_t kMostColumns = 64;  // of a box
constexpr int32_t kMostParts = 3;     // boxes of x that a box of dy goes on by
constexpr int64_t kAlignment = 1024;
// Steps of 8 columns that one sum adds up, which bounds its rounding errors: tensor cores truncate.
constexpr int64_t kMostSteps = 1024;

int64_t channel_blocks(const ConvProblem& a) { return ceil_div(a.c, int64_t{kCrossChannels}); }
int64_t row_boxes(const ConvProblem& a, const DepthwiseCrossTiling& tiling) { return ceil_div(a.p(), tiling.rows); }
int64_t plane_columns(const ConvProblem& a) { return ceil_div(a.w, a.stride.w); }
int64_t column_tiles(const ConvProblem& a) { return ceil_div(plane_columns(a), kMostColumns); }
int64_t boxes_of(const ConvProblem& a, const DepthwiseCrossTiling& tiling) {
  return ceil_div(a.n, tiling.images) * column_tiles(a) * row_boxes(a, tiling);
}
int64_t slices_of(const ConvProblem& a, const DepthwiseCrossTiling& tiling) {
  return ceil_div(boxes_of(a, tiling), int64_t{tiling.slice_boxes});
}
// Of the sums of a slice.
int64_t slice_bytes(const ConvProblem& a) { return 4 * a.k * a.r * a.s; }

int64_t smem_bytes(const DepthwiseCrossConfig& config, const DepthwiseCrossTiling& tiling) {
  return kAlignment + tiling.smem_bytes(config);
}

double tiling_us(const DepthwiseCrossConfig& config, const ConvProblem& a, const DepthwiseCrossTiling& tiling,
                 const DeviceSpec& device) {
  const int64_t slices = slices_of(a, tiling), boxes = tiling.slice_boxes;
  const double rounds = double(ceil_div(channel_blocks(a) * slices, int64_t{device.sm_count}));
  const double runs = double(ceil_div(boxes, row_boxes(a, tiling)));  // each with more boxes of x at first
  const double products = double(boxes) * (kTapClocks * config.taps * tiling.steps() + kBoxClocks) + runs * kRunClocks;
  const double source = tiling.source_bytes(config) / kStagedBytes, target = tiling.target_bytes(config) / kStagedBytes;
  const double first = tiling.met_boxes(config) * source + target;
  const double copies = runs * first + (double(boxes) - runs) * (tiling.new_boxes(config) * source + target);
  const double block = kBlockClocks + first + std::max(products, copies) + kBothShown * std::min(products, copies);
  const double sum = slices > 1 ? slices_us(slices, kSumUs, device) : 0;
  return time_us({.clocks = rounds * block, .bytes = kMemory * compulsory_bytes(a), .us = sum}, device);
}

// So many that most are on their way while a box of dy is multiplied; false if that leaves none.
bool set_stages(const DepthwiseCrossConfig& config, const DeviceSpec& device, DepthwiseCrossTiling& tiling) {
  DepthwiseCrossTiling best = tiling;
  best.stages = 0;
  double most = 0;
  const int32_t new_boxes = tiling.new_boxes(config);
  for (tiling.stages = 2; tiling.stages <= kMostStages; ++tiling.stages) {
    tiling.source_stages = kMostSourceStages;
    const int32_t least = tiling.met_boxes(config) + new_boxes;
    while (tiling.source_stages >= least && smem_bytes(config, tiling) > device.smem_optin_bytes) {
      --tiling.source_stages;
    }
    if (tiling.source_stages < least) break;
    const double sources = double(tiling.source_stages - tiling.met_boxes(config)) / new_boxes;
    const double ahead = std::min(sources, double(tiling.stages - 1));
    if (ahead > most) most = ahead, best = tiling;
  }
  tiling = best;
  return tiling.stages > 0;
}

// The fastest; none if time is 0.
struct Choice {
  DepthwiseCrossTiling tiling;
  double us = 0;
};
Choice fastest(const DepthwiseCrossConfig& config, const ConvProblem& a, const DeviceSpec& device) {
  Choice best;
  const int64_t tile = ceil_div(plane_columns(a), column_tiles(a));
  const int64_t most_slices = std::max<int64_t>(1, kMaxWorkspaceBytes / slice_bytes(a));
  auto consider = [&](int32_t rows, int32_t source_rows, int64_t columns, int64_t images) {
    DepthwiseCrossTiling tiling{};
    tiling.rows = rows, tiling.source_rows = source_rows;
    tiling.columns = static_cast<int32_t>(columns), tiling.images = static_cast<int32_t>(images);
    if (!set_stages(config, device, tiling)) return;
    // As many blocks as SMs, or so many fewer that all have as much to do.
    const int64_t boxes = boxes_of(a, tiling);
    const int64_t slices = std::clamp<int64_t>(device.sm_count / channel_blocks(a), 1, most_slices);
    tiling.slice_boxes = static_cast<int32_t>(std::min(ceil_div(boxes, slices), kMostSteps / tiling.steps()));
    if (slices_of(a, tiling) > most_slices) return;
    const double us = tiling_us(config, a, tiling, device);
    if (best.us == 0 || us < best.us) best = {tiling, us};
  };
  for (int64_t images = std::min(a.n, kMostColumns / tile); images >= 1; --images) {
    // A step may have half of its columns of one image and half of the next, but not of more than two.
    const int64_t part = images % 2 == 0 && tile > kCrossColumns ? kCrossColumns / 2 : kCrossColumns;
    const int64_t columns = round_up(tile, part);
    if (images * columns > kMostColumns) continue;
    for (int32_t most_rows = config.most_rows(); 2 * most_rows >= config.most_rows(); --most_rows) {
      const int32_t rows = even_part(a.p(), most_rows), source_rows = config.stride * rows;
      // A box of dy goes on by one box of x, or by several where the smaller ones that it meets have fewer rows.
      int64_t least = INT64_MAX;
      for (int32_t parts = 1; parts <= kMostParts; ++parts) {
        if (source_rows % parts != 0) continue;
        const int64_t met = round_up(config.met_rows(rows), source_rows / parts);
        if (met >= least) continue;
        least = met;
        consider(rows, source_rows / parts, columns, images);
      }
    }
  }
  return best;
}

const char* why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const DepthwiseCrossConfig& config = entry.config.as<DepthwiseCrossConfig>();
  if (const char* why_not = wide_pixels_why_not(config.taps, config.stride, problem)) return why_not;
  if (double(problem.n) * double(problem.p()) * double(column_tiles(problem)) >= kMaxExtent) {
    return "counts boxes of all images with 32 bits: they stay below 2^29";
  }
  if (fastest(config, problem, device).us == 0)
    return "needs more shared memory, or would sum up too many pixels at once";
  return nullptr;
}

}  // namespace

Offer depthwise_cross_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem, device)) return reason;
  const Choice choice = fastest(entry.config.as<DepthwiseCrossConfig>(), problem, device);
  Plan plan;
  plan.kernel = &entry;
  plan.tiling = choice.tiling;
  plan.split = slices_of(problem, choice.tiling);
  plan.workspace_bytes = plan.split > 1 ? plan.split * slice_bytes(problem) : 0;
  plan.grid = channel_blocks(problem) * plan.split;
  plan.block_threads = kCrossThreads;
  plan.smem_bytes = static_cast<int32_t>(smem_bytes(entry.config.as<DepthwiseCrossConfig>(), choice.tiling));
  plan.cost_us = kBoxedStartUs + choice.us;
  return plan;
}

DepthwiseCrossParams depthwise_cross_params(const Plan& plan, const ConvProblem& problem) {
  const Side from = source_side(problem), to = target_side(problem);
  DepthwiseCrossParams params{};
  params.tiling = plan.tiling.as<DepthwiseCrossTiling>();
  params.source_strides = from.stride, params.target_strides = to.stride, params.filter_strides = problem.w_strides;
  params.source_h = static_cast<int32_t>(from.h), params.source_w = static_cast<int32_t>(from.w);
  params.target_h = static_cast<int32_t>(to.h), params.target_w = static_cast<int32_t>(to.w);
  params.padding_h = static_cast<int32_t>(problem.padding.h);
  params.padding_w = static_cast<int32_t>(problem.padding.w);
  params.taps_h = static_cast<int32_t>(problem.r), params.taps_w = static_cast<int32_t>(problem.s);
  params.images = static_cast<int32_t>(problem.n), params.channels = static_cast<int32_t>(problem.c);
  params.boxes = static_cast<int32_t>(boxes_of(problem, params.tiling));
  params.by_channel_blocks = FastDivmod(channel_blocks(problem));
  params.by_row_boxes = FastDivmod(row_boxes(problem, params.tiling));
  params.by_column_tiles = FastDivmod(column_tiles(problem));
  return params;
}

PixelMaps depthwise_cross_maps(const Plan& plan, const ConvProblem& problem) {
  const DepthwiseCrossConfig& config = plan.kernel->config.as<DepthwiseCrossConfig>();
  const DepthwiseCrossTiling& tiling = plan.tiling.as<DepthwiseCrossTiling>();
  auto map = [&](const Side& side, int32_t pitch, int32_t rows, int32_t step) {
    const int32_t columns = (pitch - 1) * step + 1;
    return pixels_map(side, problem.c, {kCrossChannels, static_cast<uint32_t>(columns), static_cast<uint32_t>(rows), 1},
                      static_cast<uint32_t>(step), kCrossPixelBytes);
  };
  return {map(source_side(problem), tiling.source_pitch(), tiling.source_rows, config.stride),
          map(target_side(problem), tiling.target_pitch(config), tiling.rows, 1)};
}

}  // namespace fastconv
