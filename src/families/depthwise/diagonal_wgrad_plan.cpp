#include <algorithm>
#include <bit>
#include <cmath>

#include "fastconv/core/integers.h"
#include "fastconv/families/depthwise/cost.h"
#include "fastconv/families/depthwise/diagonal_plan.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/copies.h"

namespace fastconv {
namespace {

using namespace cost::depthwise;
using namespace cost::diagonal_wgrad;

// That one sum adds up, which bounds its rounding errors: tensor cores truncate.
constexpr int64_t kMostProducts = 1024;

DiagonalWgradConfig config_of(const KernelEntry& entry) { return {entry.config.as<DepthwiseDiagonalConfig>()}; }

int64_t all_columns(const ConvProblem& a) { return a.n * a.q(); }

int64_t chunk_blocks(const ConvProblem& a) { return ceil_div(a.c, kChunk * kDiagonalWgradWarps); }

// Of the sums of a slice.
int64_t slice_bytes(const ConvProblem& a) { return 4 * a.k * a.c_per_group() * a.r * a.s; }

// Of a tile, at most.
int64_t images_of(const ConvProblem& a, int64_t columns) {
  if (columns % a.q() == 0) return columns / a.q();
  return a.q() % columns == 0 ? 1 : (columns + a.q() - 2) / a.q() + 1;
}

// Positions of a phase in a staged row of x.
int64_t plane_of(const DiagonalWgradConfig& config, const ConvProblem& a, int64_t columns) {
  int64_t plane = columns + config.gap() * images_of(a, columns);
  while (config.stride * plane % 4 != 2) ++plane;  // as target_positions()
  return plane;
}

// Of so many rows of dy, and of steps that bring rows of x alone: products with rows that a slice lacks are left out.
double run_clocks(const DiagonalWgradConfig& config, const ConvProblem& a, const DeviceSpec& device, int64_t columns,
                  double rows, double others = 0) {
  const double products =
      double(ceil_div(columns, kDiagonalWgradPixels) * config.sources()) * config.tap_pairs() * config.taps;
  // Whole images see padding beside them; a tensor's last chunks may not fill a block.
  const int64_t seen = columns + (columns % a.q() == 0 ? 0 : config.gap() * images_of(a, columns));
  const double pixels = double(config.stride * config.stride * seen + columns);
  const double bytes = 2.0 * pixels * double(a.c) / double(chunk_blocks(a));
  return std::max(rows * kProductClocks * products + (rows + others) * kStepClocks,
                  wait_clocks((rows + others) * bytes / kRate, device));
}

int64_t choose_columns(const DiagonalWgradConfig& config, const ConvProblem& a, const DeviceSpec& device) {
  int64_t best = 1;
  double least = 0;
  for (int64_t columns = std::min<int64_t>(config.columns(), all_columns(a)); columns >= 1; --columns) {
    if (config.stride * plane_of(config, a, columns) > config.most_positions()) continue;
    const double time = double(ceil_div(all_columns(a), columns)) * run_clocks(config, a, device, columns, 1);
    if (least > 0 && time > least) continue;
    least = time, best = columns;
  }
  return best;
}

DiagonalWgradBoxes boxes_of(const DiagonalWgradConfig& config, const ConvProblem& a, int64_t run_rows) {
  DiagonalWgradBoxes boxes{};
  boxes.columns = a.q() <= 8 ? 8 : a.q() <= 16 ? 16 : 32;
  boxes.images = static_cast<int32_t>(config.columns()) / boxes.columns;
  boxes.rows = config.box_rows, boxes.targets = config.box_targets(), boxes.stride = config.stride;
  boxes.pitch = round_up(boxes.columns + config.gap(), 8);
  boxes.run_rows = static_cast<int32_t>(run_rows);
  const int64_t tiles = ceil_div(a.q(), boxes.columns), runs = ceil_div(a.p(), run_rows);
  boxes.units = static_cast<int32_t>(tiles * runs * ceil_div(a.n, boxes.images));
  boxes.by_tiles = FastDivmod(tiles), boxes.by_runs = FastDivmod(runs);
  return boxes;
}

struct Work {
  int64_t columns;   // of a tile
  int64_t rows = 0;  // of dy: of all tiles
  int64_t slices = 1;
  int32_t smem_bytes = 0;
  double us = 0;
  int64_t run_rows = 0;  // boxed
};

Work boxed_work_of(const DiagonalWgradConfig& config, const ConvProblem& a, const DeviceSpec& device) {
  Work best{};
  best.columns = 1, best.run_rows = 1;
  const int64_t most_slices = std::max<int64_t>(1, kMaxWorkspaceBytes / slice_bytes(a));
  for (int64_t parts = 1; parts <= a.p(); parts *= 2) {
    Work work{};
    work.run_rows = std::min<int64_t>(ceil_div(a.p(), parts), kMostProducts / config.units());
    const DiagonalWgradBoxes boxes = boxes_of(config, a, work.run_rows);
    work.columns = boxes.columns;
    work.smem_bytes = 1024 + config.ahead * (boxes.stage_bytes() + 16);
    const int64_t resident =
        std::clamp<int64_t>(device.smem_optin_bytes / (work.smem_bytes + kReservedSmemBytes), 1, config.blocks());
    const int64_t at_once = std::max<int64_t>(1, resident * device.sm_count / chunk_blocks(a));
    const int64_t most_units = std::max<int64_t>(1, kMostProducts / config.units() / work.run_rows);
    const int64_t units = std::min(most_units, ceil_div(boxes.units, std::min<int64_t>(at_once, boxes.units)));
    work.slices = ceil_div(boxes.units, units);
    if (work.slices > most_slices) continue;
    const double rounds = double(ceil_div(work.slices, at_once));
    const int64_t steps = (work.run_rows - 1) * config.stride + a.r;
    const double products =
        double(config.units() * config.sources()) * config.tap_pairs() * config.taps * double(work.run_rows);
    const double warps = std::min(double(resident), std::ceil(double(chunk_blocks(a) * work.slices) / device.sm_count));
    const double unit = warps * (kBoxedProductClocks * products + kBoxedRowClocks * double(steps)) +
                        kBoxClocks * double(ceil_div(steps, int64_t{config.box_rows})) + kUnitClocks;
    work.us = compute_us(rounds * (double(units) * unit + kBoxedBlockClocks), device) +
              (work.slices > 1 ? slices_us(work.slices, kSumUs, device) : 0);
    if (best.us == 0 || work.us < best.us) best = work;
  }
  return best;
}

Work work_of(const DiagonalWgradConfig& config, const ConvProblem& a, const DeviceSpec& device) {
  if (config.boxed()) return boxed_work_of(config, a, device);
  Work work{};
  work.columns = 1;
  work.columns = choose_columns(config, a, device);
  work.rows = ceil_div(all_columns(a), work.columns) * a.p();
  DiagonalWgradParams staged{};
  staged.positions = static_cast<int32_t>(config.stride * plane_of(config, a, work.columns));
  work.smem_bytes = (config.ahead + 1) * staged.stage_bytes(config);

  const int64_t blocks_of_sm =
      std::clamp<int64_t>(device.smem_optin_bytes / (work.smem_bytes + kReservedSmemBytes), 1, config.blocks());
  const int64_t units = ceil_div(work.columns, kDiagonalWgradPixels);
  const int64_t most_slices = std::max<int64_t>(1, kMaxWorkspaceBytes / slice_bytes(a));
  int64_t rows = std::clamp<int64_t>(kMostProducts / units, ceil_div(work.rows, most_slices), work.rows);
  for (; rows >= 1; --rows) {  // of a slice
    const int64_t slices = ceil_div(work.rows, rows);
    if (slices > most_slices) break;
    rows = ceil_div(work.rows, slices);
    const double rounds = double(ceil_div(chunk_blocks(a) * slices, blocks_of_sm * device.sm_count));
    // What begins within an image sees rows of x that another slice sees, too.
    const int64_t others = rows % a.p() == 0 ? 0 : (a.r - 1) / config.stride;
    const double slice =
        double(blocks_of_sm) * run_clocks(config, a, device, work.columns, double(rows), double(others));
    const double us =
        compute_us(rounds * (slice + kBlockClocks), device) + (slices > 1 ? slices_us(slices, kLaunchUs, device) : 0);
    if (work.us > 0 && us >= work.us) continue;
    work.us = us, work.slices = slices;
  }
  return work;
}

const char* why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const DiagonalWgradConfig config = config_of(entry);
  if (const char* why_not = diagonal_groups_why_not(config, problem)) return why_not;
  if (problem.dilation != kUnitStep) return "takes no dilation";
  if (problem.stride != Pair{config.stride, config.stride}) return "is compiled for another stride";
  if (problem.r > config.taps || problem.s > config.taps) return "is compiled for smaller filters";
  if (config.taps > 3 && std::max(problem.r, problem.s) <= config.taps - 2) return "is compiled for larger filters";
  for (const int64_t extent :
       {problem.n, problem.c, problem.h + 2 * problem.padding.h, problem.w + 2 * problem.padding.w}) {
    if (extent >= kMaxExtent) return "counts with 32 bits: extents stay below 2^29";
  }
  const Side from = source_side(problem), to = target_side(problem);
  if (problem.c % kChunk != 0 || !channel_vectors(from, problem, kChunk) || !channel_vectors(to, problem, kChunk)) {
    return "reads 8 channels at a time: needs channels_last tensors, aligned";
  }
  if (double(problem.n) * double(std::max<int64_t>(1, problem.p())) * double(problem.q() + config.columns()) >
      kMaxExtent) {
    return "counts with 32 bits: fewer than 2^29 rows and columns";
  }
  if (const char* why_not = diagonal_boxes_why_not(config, problem)) return why_not;
  const Work work = work_of(config, problem, device);
  if (config.boxed() && problem.n > 0 && work.us == 0) return "would sum up too many pixels at once";
  if (double(chunk_blocks(problem)) * double(work.slices) > INT32_MAX) return "would need more blocks than a grid has";
  if (work.smem_bytes > device.smem_optin_bytes) return "needs more shared memory";
  // A pixel's distance from its tile's begin has 32 bits; TMA counts with more.
  if (config.boxed()) return nullptr;
  for (const Side& side : {from, to}) {
    const int64_t images = std::min(std::max<int64_t>(problem.n - 1, 0), images_of(problem, work.columns) + 1);
    if (2 * (double(images) * double(side.stride.n) + double(side.w) * double(side.stride.w)) > UINT32_MAX) {
      return "counts with 32 bits: images lie too far apart";
    }
  }
  return nullptr;
}

}  // namespace

Offer depthwise_diagonal_wgrad_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem, device)) return reason;
  const Work work = work_of(config_of(entry), problem, device);
  Plan plan;
  plan.kernel = &entry;
  DepthwiseDiagonalTiling tiling{};
  tiling.columns = static_cast<int32_t>(work.columns);
  tiling.run_rows = static_cast<int32_t>(work.run_rows);
  plan.tiling = tiling;
  plan.split = work.slices;
  plan.workspace_bytes = plan.split > 1 ? plan.split * slice_bytes(problem) : 0;
  plan.grid = chunk_blocks(problem) * plan.split;
  plan.block_threads = kDiagonalWgradThreads;
  plan.smem_bytes = work.smem_bytes;
  const bool boxed = entry.config.as<DepthwiseDiagonalConfig>().boxed();
  const int64_t chunks = ceil_div(problem.c, kChunk);
  double read_again = boxed ? double(round_up(chunks, kChunksReadTogether)) / double(chunks) : 1;
  if (boxed && chunks % kChunksReadTogether != 0) read_again *= kSharedReads;
  const double bytes = compulsory_bytes(problem) * read_again + 2.0 * static_cast<double>(plan.workspace_bytes);
  plan.cost_us = (boxed ? kBoxedStartUs : kLaunchUs) + std::max(memory_us(bytes, device), work.us);
  return plan;
}

DiagonalWgradParams depthwise_diagonal_wgrad_params(const Plan& plan, const ConvProblem& problem) {
  const DiagonalWgradConfig config = config_of(*plan.kernel);
  const Side from = source_side(problem), to = target_side(problem);
  DiagonalWgradParams params{};
  params.source_strides = image_strides(from), params.target_strides = image_strides(to);
  params.filter_strides = problem.w_strides;
  params.source_h = static_cast<int32_t>(from.h), params.source_w = static_cast<int32_t>(from.w);
  params.target_h = static_cast<int32_t>(to.h), params.target_w = static_cast<int32_t>(to.w);
  params.padding_h = static_cast<int32_t>(problem.padding.h),
  params.padding_w = static_cast<int32_t>(problem.padding.w);
  params.taps_h = static_cast<int32_t>(problem.r), params.taps_w = static_cast<int32_t>(problem.s);
  params.channels = static_cast<int32_t>(problem.c), params.images = static_cast<int32_t>(problem.n);
  params.group_log2 = std::countr_zero(static_cast<uint64_t>(problem.c_per_group()));
  if (config.boxed()) {
    params.boxes = boxes_of(config, problem, plan.tiling.as<DepthwiseDiagonalTiling>().run_rows);
    params.boxes.slices = static_cast<int32_t>(plan.split);
    params.by_chunks = FastDivmod(std::max<int64_t>(1, chunk_blocks(problem)));
    return params;
  }
  params.columns = plan.tiling.as<DepthwiseDiagonalTiling>().columns;
  params.all_columns = static_cast<int32_t>(problem.n * to.w);
  params.rows = static_cast<int32_t>(ceil_div(params.all_columns, params.columns) * to.h);
  params.slice_rows = static_cast<int32_t>(ceil_div(params.rows, plan.split));
  const int64_t plane = params.rows > 0 ? plane_of(config, problem, params.columns) : 1;
  params.positions = static_cast<int32_t>(config.stride * plane);
  params.by_chunks = FastDivmod(std::max<int64_t>(1, chunk_blocks(problem)));
  params.by_rows = FastDivmod(std::max<int64_t>(1, to.h));
  params.by_columns = FastDivmod(std::max<int64_t>(1, to.w));
  params.by_plane = FastDivmod(plane);
  params.by_positions = FastDivmod(to.w + config.gap());
  return params;
}

PixelMaps depthwise_diagonal_wgrad_maps(const Plan& plan, const ConvProblem& problem) {
  const DiagonalWgradBoxes boxes =
      boxes_of(config_of(*plan.kernel), problem, plan.tiling.as<DepthwiseDiagonalTiling>().run_rows);
  const uint32_t channels = kDiagonalWgradWarps * kChunk;
  const auto rows = static_cast<uint32_t>(boxes.rows), images = static_cast<uint32_t>(boxes.images);
  const auto columns = static_cast<uint32_t>(boxes.columns), targets = static_cast<uint32_t>(boxes.targets);
  const auto stride = static_cast<uint32_t>(boxes.stride);
  const uint32_t source_columns = static_cast<uint32_t>(boxes.pitch - 1) * stride + 1;
  const int32_t bytes = DiagonalWgradBoxes::kPixelBytes;
  return {pixels_map(source_side(problem), problem.c, {channels, source_columns, rows, images}, stride, bytes),
          pixels_map(target_side(problem), problem.c, {channels, columns, targets, images}, 1, bytes)};
}

}  // namespace fastconv
