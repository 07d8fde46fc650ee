#include "fastconv/families/few_channels/ready_quads_plan.h"

#include <algorithm>
#include <cmath>

#include "fastconv/core/integers.h"
#include "fastconv/families/few_channels/cost.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/extent.h"

namespace fastconv {
namespace {

using namespace cost::few_channels;
using namespace cost::ready_quads;

constexpr int64_t kMostPasses = 16;  // of a block, measured up to there

int64_t sets_of(const ConvProblem& problem) { return ceil_div(problem.k, int64_t{kQuadsSet}); }
int64_t pixels_of(const ConvProblem& problem) { return problem.n * problem.p() * problem.q(); }

// Channels side by side, pixels without a gap.
bool is_piece(const Side& side, int64_t step) {
  return is_step(side.stride.c, side.c, 1) && is_step(side.stride.w, side.w, step) &&
         is_step(side.stride.h, side.h, side.w * step) && is_step(side.stride.n, side.n, side.h * side.w * step);
}
Side filter_side(const ConvProblem& problem) {
  return {problem.k, problem.c, problem.r, problem.s, problem.w_strides, problem.w_align};
}
// From a pixel of the output to the next one: all that it has may be channels of more.
int64_t target_step(const ConvProblem& problem) {
  const Side to = output_side(problem);
  return to.w > 1 ? to.stride.w : to.h > 1 ? to.stride.h : to.n > 1 ? to.stride.n : to.c;
}

// Rows of the images that a block needs at most, of all of them.
int64_t rows_of(const ConvProblem& problem, const ReadyQuadsParams& params) {
  const int64_t rows = std::min((params.block_pixels - 2) / problem.q() + 2, problem.n * problem.p());
  const int64_t images = std::min(ceil_div(rows - 1, problem.p()), problem.n - 1);  // that end within
  const int64_t lacking = problem.h - problem.p() * problem.stride.h;
  return std::min(problem.n * problem.h,
                  (rows - 1) * problem.stride.h + params.reach + 1 + images * std::max<int64_t>(0, lacking));
}
int64_t smem_of(const KernelEntry& entry, const ConvProblem& problem, const ReadyQuadsParams& params) {
  const int64_t quads = rows_of(problem, params) * problem.w + kReadyCopied;  // what is copied begins and ends with two
  return ready_rows_at(entry.config.as<ReadyQuadsConfig>().steps) +
         round_up(quads, int64_t{kReadyCopied}) * kReadyQuadBytes;
}

// The cheapest blocks; none if plan.kernel is null.
Plan cheapest(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const int64_t pixels = pixels_of(problem), sets = sets_of(problem);
  Plan best;
  for (int64_t passes = 1; passes <= kMostPasses; ++passes) {
    QuadsTiling tiling{1, static_cast<int32_t>(passes * kReadyPass), 1, 1};
    tiling.walkers = static_cast<int32_t>(ceil_div(pixels, int64_t{tiling.tile_q}));
    const int64_t smem = smem_of(entry, problem, ready_quads_params(problem, tiling));
    if (smem > device.smem_optin_bytes) break;
    // Of the busiest SM.
    const double blocks = std::ceil(double(tiling.walkers) * double(sets) / device.sm_count);
    const double turns = std::ceil(blocks / double(resident_blocks(smem, device, kReadyBlocks)));
    const double copies = double(smem) / kCopied;  // of a block: all but a quad of it
    const double busy = blocks * (double(passes) * kReadyWarps * kUnitClocks + kBlockClocks + copies);
    const double lone = turns * (double(passes) * kPassClocks + copies) + (turns - 1) * kFirstClocks;
    const double cost = time_us({.clocks = std::max(busy, lone),
                                 .bytes = compulsory_bytes(problem) / kStoredRate,
                                 .shown = kShown,
                                 .fades = true,
                                 .us = kStartUs + compute_us(kFirstClocks, device)},
                                device);
    if (best.kernel != nullptr && cost >= best.cost_us) continue;
    best.kernel = &entry;
    best.grid = tiling.walkers * sets;
    best.block_threads = kReadyThreads;
    best.smem_bytes = static_cast<int32_t>(smem);
    best.tiling = tiling;
    best.cost_us = cost;
    if (tiling.walkers == 1) break;
  }
  return best;
}

}  // namespace

ReadyQuadsParams ready_quads_params(const ConvProblem& problem, const QuadsTiling& tiling) {
  const ConvMap map = make_conv_map(problem, false);
  auto axis = [](const Axis& of) {
    return ReadyAxis{of.source_step, of.tap_source_step, of.padding, of.source_extent};
  };
  ReadyQuadsParams params{};
  params.by_sets = FastDivmod(sets_of(problem));
  params.block_pixels = tiling.tile_q, params.pixels = static_cast<int32_t>(pixels_of(problem));
  params.by_columns = FastDivmod(problem.q()), params.by_rows = FastDivmod(problem.p());
  params.h = axis(map.h), params.w = axis(map.w);
  params.reach = static_cast<int32_t>(problem.r - 1) * params.h.tap_step;
  params.filters = static_cast<int32_t>(problem.k), params.taps = static_cast<int32_t>(problem.r * problem.s);
  params.by_taps_w = FastDivmod(problem.s);
  params.target_w = static_cast<int32_t>(target_step(problem));
  return params;
}

namespace {

const char* why_not(const KernelEntry& entry, const ConvProblem& problem) {
  if (problem.groups != 1 || problem.c != kQuadChannels) return "is for images of 4 channels, in one group";
  if (ceil_div(problem.r * problem.s, int64_t{kQuadsStepTaps}) != entry.config.as<ReadyQuadsConfig>().steps) {
    return "is for filters of another number of taps";
  }
  const Side from = input_side(problem), to = output_side(problem);
  if (!is_piece(from, problem.c) || !is_piece(filter_side(problem), problem.c) || from.align < kReadyCopiedBytes ||
      problem.w_align < kReadyCopiedBytes || problem.n * problem.h * problem.w % kReadyCopied != 0) {
    return "needs images and filter in one piece each, channels side by side, aligned, and an even number of pixels";
  }
  if (!is_piece(to, target_step(problem)) || problem.k % kQuadsFilters != 0 ||
      target_step(problem) % kQuadsFilters != 0 || to.align < kQuadsFilters * element_size(problem.dtype)) {
    return "stores four aligned channels of the output at once, of rows and images without gaps";
  }
  constexpr int64_t kMostBlockPixels = kMostPasses * kReadyPass;
  if (!images_fit_int32(problem) || pixels_of(problem) > INT32_MAX - 2 * kMostBlockPixels ||
      problem.n * problem.h * problem.w > INT32_MAX || target_step(problem) > INT32_MAX / (2 * kMostBlockPixels) ||
      ceil_div(pixels_of(problem), int64_t{kReadyPass}) * sets_of(problem) > INT32_MAX ||
      problem.k * problem.c * problem.r * problem.s >= kMaxExtent) {
    return "counts with 32 bits: pixels, blocks, elements of the filter";
  }
  return nullptr;
}

}  // namespace

Offer ready_quads_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem)) return reason;
  Plan plan = cheapest(entry, problem, device);
  if (plan.kernel == nullptr) return "needs more shared memory for a block's rows";
  return plan;
}

}  // namespace fastconv
