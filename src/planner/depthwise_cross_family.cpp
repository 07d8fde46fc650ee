#include "fastconv/planner/depthwise_cross_family.h"

#include <algorithm>

#include "fastconv/core/integers.h"
#include "fastconv/planner/cost_model.h"
#include "fastconv/planner/depthwise_pairs_family.h"
#include "fastconv/planner/sides.h"

namespace fastconv {
namespace {

constexpr int32_t kLeastStages = 2, kMostStages = 5;
constexpr int64_t kMostColumns = 64;  // of a box
constexpr int64_t kAlignment = 1024;
// Steps of 8 columns that one sum adds up, which bounds its rounding errors: tensor cores truncate.
constexpr int64_t kMostSteps = 1024;
// Cycles, as fits layers of ConvNeXt measured on an H200.
constexpr double kBlockCycles = 13000;  // until a block's first boxes are there, and its sums stored
constexpr double kProductCycles = 9;    // of a warp's quarter of a multiprocessor, two warps
constexpr double kBoxCycles = 100;      // until a stage is free again
constexpr double kTwoStages = 1.4;      // times all: fewer boxes on their way
constexpr double kSumUs = 1.9;          // of slices
constexpr double kSliceCycles = 10;     // until a thread has added up one slice more
constexpr double kMemoryShare = 1.05;   // times what a copy takes

int64_t channel_blocks(const ConvProblem& a) { return ceil_div(a.c, int64_t{kCrossChannels}); }
int64_t row_boxes(const ConvProblem& a) { return ceil_div(a.p(), int64_t{kCrossRows}); }
int64_t column_tiles(const ConvProblem& a) { return ceil_div(a.w, kMostColumns); }
int64_t boxes_of(const ConvProblem& a, const DepthwiseCrossTiling& tiling) {
  return ceil_div(a.n, tiling.images) * column_tiles(a) * row_boxes(a);
}
int64_t slices_of(const ConvProblem& a, const DepthwiseCrossTiling& tiling) {
  return ceil_div(boxes_of(a, tiling), int64_t{tiling.slice_boxes});
}
// Of the sums of a slice.
int64_t slice_bytes(const ConvProblem& a) { return 4 * a.k * a.r * a.s; }

int64_t smem_bytes(const DepthwiseCrossConfig& config, const DepthwiseCrossTiling& tiling) {
  return kAlignment + tiling.smem_bytes(config);
}

double time_us(const DepthwiseCrossConfig& config, const ConvProblem& a, const DepthwiseCrossTiling& tiling,
               const DeviceSpec& device) {
  const int64_t slices = slices_of(a, tiling), boxes = tiling.slice_boxes;
  const double rounds = double(ceil_div(channel_blocks(a) * slices, int64_t{device.sm_count}));
  const double products = double(config.taps) * kCrossChunk * double(tiling.images * tiling.columns) / kCrossColumns;
  const double runs = double(ceil_div(boxes, row_boxes(a)));  // each with a box of x before
  const double block = double(boxes) * products * kProductCycles + (double(boxes) + runs) * kBoxCycles + kBlockCycles;
  const double sum = slices > 1 ? kSumUs + kSliceCycles * double(slices) / kTensorCyclesPerUs : 0;
  const double memory = kMemoryShare * compulsory_bytes(a) / (kBytesPerUsPerSm * device.sm_count);
  const double waits = tiling.stages == 2 ? kTwoStages : 1;
  return waits * std::max(memory, rounds * block / kTensorCyclesPerUs) + sum;
}

// The fastest; none if time is 0.
struct Choice {
  DepthwiseCrossTiling tiling;
  double us = 0;
};
Choice fastest(const DepthwiseCrossConfig& config, const ConvProblem& a, const DeviceSpec& device) {
  Choice best;
  const int64_t columns = round_up(ceil_div(a.w, column_tiles(a)), int64_t{kCrossColumns});
  const int64_t most_slices = std::max<int64_t>(1, kMaxWorkspaceBytes / slice_bytes(a));
  for (int64_t images = std::min(a.n, kMostColumns / columns); images >= 1; --images) {
    DepthwiseCrossTiling tiling{static_cast<int32_t>(columns), static_cast<int32_t>(images), kMostStages, 1};
    while (tiling.stages >= kLeastStages && smem_bytes(config, tiling) > device.smem_optin_bytes) --tiling.stages;
    if (tiling.stages < kLeastStages) continue;
    // As many blocks as multiprocessors, or so many fewer that all have as much to do.
    const int64_t boxes = boxes_of(a, tiling);
    const int64_t slices = std::clamp<int64_t>(device.sm_count / channel_blocks(a), 1, most_slices);
    const int64_t most_boxes = kMostSteps / (images * columns / kCrossColumns);
    tiling.slice_boxes = static_cast<int32_t>(std::min(ceil_div(boxes, slices), most_boxes));
    if (slices_of(a, tiling) > most_slices) continue;
    const double us = time_us(config, a, tiling, device);
    if (best.us == 0 || us < best.us) best = {tiling, us};
  }
  return best;
}

}  // namespace

const char* depthwise_cross_why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const DepthwiseCrossConfig& config = entry.depthwise_cross;
  if (const char* why_not = wide_pixels_why_not(entry, config.taps, problem, device)) return why_not;
  if (double(problem.n) * double(row_boxes(problem)) * double(column_tiles(problem)) >= kMaxExtent) {
    return "counts boxes of all images with 32 bits: they stay below 2^29";
  }
  if (fastest(config, problem, device).us == 0)
    return "needs more shared memory, or would sum up too many pixels at once";
  return nullptr;
}

Plan depthwise_cross_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const Choice choice = fastest(entry.depthwise_cross, problem, device);
  Plan plan;
  plan.kernel = &entry;
  plan.depthwise_cross = choice.tiling;
  plan.split = slices_of(problem, choice.tiling);
  plan.workspace_bytes = plan.split > 1 ? plan.split * slice_bytes(problem) : 0;
  plan.grid = channel_blocks(problem) * plan.split;
  plan.block_threads = kCrossThreads;
  plan.smem_bytes = static_cast<int32_t>(smem_bytes(entry.depthwise_cross, choice.tiling));
  plan.cost_us = kBoxedLaunchUs + choice.us;
  return plan;
}

DepthwiseCrossParams depthwise_cross_params(const Plan& plan, const ConvProblem& problem) {
  const Side from = source_side(problem), to = target_side(problem);
  DepthwiseCrossParams params{};
  params.tiling = plan.depthwise_cross;
  params.source_strides = from.stride, params.target_strides = to.stride, params.filter_strides = problem.w_strides;
  params.source_h = static_cast<int32_t>(from.h), params.source_w = static_cast<int32_t>(from.w);
  params.target_h = static_cast<int32_t>(to.h), params.target_w = static_cast<int32_t>(to.w);
  params.padding_h = static_cast<int32_t>(problem.padding.h);
  params.padding_w = static_cast<int32_t>(problem.padding.w);
  params.taps_h = static_cast<int32_t>(problem.r), params.taps_w = static_cast<int32_t>(problem.s);
  params.images = static_cast<int32_t>(problem.n), params.channels = static_cast<int32_t>(problem.c);
  params.boxes = static_cast<int32_t>(boxes_of(problem, params.tiling));
  params.by_channel_blocks = FastDivmod(channel_blocks(problem));
  params.by_row_boxes = FastDivmod(row_boxes(problem));
  params.by_column_tiles = FastDivmod(column_tiles(problem));
  return params;
}

PixelMaps depthwise_cross_maps(const Plan& plan, const ConvProblem& problem) {
  const DepthwiseCrossTiling& tiling = plan.depthwise_cross;
  auto map = [&](const Side& side, int32_t pitch) {
    return pixels_map(side, problem.c,
                      {kCrossChannels, static_cast<uint32_t>(pitch), kCrossRows, static_cast<uint32_t>(tiling.images)},
                      1, kCrossPixelBytes);
  };
  return {map(source_side(problem), tiling.source_pitch()), map(target_side(problem), tiling.target_pitch())};
}

}  // namespace fastconv
