#include "fastconv/families/depthwise/diagonal_plan.h"

#include <algorithm>
#include <cmath>

#include "fastconv/core/integers.h"
#include "fastconv/families/depthwise/cost.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/copies.h"

namespace fastconv {
namespace {

using namespace cost::diagonal;

constexpr int64_t kMostPixelBytes = 128;  // of a box, a line of TMA's pattern of banks

// A transposed window has the convolution's padding.
Pair padding_of(const DepthwiseDiagonalConfig& config, const ConvProblem& a) {
  return config.transposed() ? a.padding : sliding_padding(a);
}

// One dimension of a window.
struct Window {
  int32_t first;         // of the source, at the begin of target 0's window
  int32_t first_tap;     // transposed: of target 0 there
  int32_t first_output;  // the target that is done when the first row of the source is, or stage of rows
};
Window window_of(const DepthwiseDiagonalConfig& config, int64_t padding) {
  const DepthwiseConfig rows = config.rows();
  if (!config.transposed()) return {static_cast<int32_t>(-padding), 0, rows.first_output()};
  // A target's taps have the phase of its position and the padding, which here may be any.
  const int64_t phase = padding % config.stride, before = (config.taps - 1 - phase) / config.stride;
  return {static_cast<int32_t>((padding - phase) / config.stride - before),
          static_cast<int32_t>(phase + config.stride * before), static_cast<int32_t>(-config.stride * before - phase)};
}

int64_t chunks_of(const ConvProblem& a) { return ceil_div(a.c, kChunk); }
int64_t groups_of(const ConvProblem& a) { return std::max<int64_t>(1, ceil_div(target_side(a).w, kDiagonalColumns)); }
int64_t runs_of(const ConvProblem& a, int64_t run_rows) {
  return std::max<int64_t>(1, ceil_div(target_side(a).h, run_rows));
}

struct Blocks {
  int64_t of_chunks, of_columns, runs;
  double all;
};
Blocks blocks_of(const ConvProblem& a, const DepthwiseDiagonalTiling& tiling) {
  const int64_t chunks = ceil_div(chunks_of(a), tiling.chunks), columns = ceil_div(groups_of(a), tiling.groups);
  const int64_t runs = runs_of(a, tiling.run_rows);
  return {chunks, columns, runs, double(a.n) * double(chunks) * double(columns) * double(runs)};
}

DiagonalBoxes boxes_of(const DepthwiseDiagonalConfig& config, const ConvProblem& a,
                       const DepthwiseDiagonalTiling& tiling) {
  constexpr int32_t kPattern = 8;  // pixels after which TMA's order of banks repeats
  DiagonalBoxes boxes{};
  boxes.pixel_bytes = tiling.chunks * config.chunk_bytes();
  boxes.plane_pixels = round_up(ceil_div(config.staged(1, tiling.groups).columns, config.planes()), kPattern);
  boxes.plane_bytes = config.box_rows * boxes.row_bytes();
  boxes.stage_bytes = round_up(config.planes() * boxes.plane_bytes, 1024);
  boxes.target_row_bytes = kDiagonalColumns * tiling.groups * boxes.pixel_bytes;
  boxes.filter_bytes = static_cast<int32_t>(config.chunk_bytes() * a.c_per_group() * a.r * a.s);
  boxes.targets_bytes = std::max(kDiagonalTargetBoxes * config.box_targets() * boxes.target_row_bytes,
                                 tiling.chunks * boxes.filter_bytes);
  return boxes;
}

// Of the source, from a box's first to its last one.
int32_t box_columns(const DepthwiseDiagonalConfig& config, const ConvProblem& a,
                    const DepthwiseDiagonalTiling& tiling) {
  return (boxes_of(config, a, tiling).plane_pixels - 1) * config.planes() + 1;
}

int32_t smem_bytes(const DepthwiseDiagonalConfig& config, const ConvProblem& a, const DepthwiseDiagonalTiling& tiling) {
  if (config.boxed()) {
    const DiagonalBoxes boxes = boxes_of(config, a, tiling);
    return 1024 + config.ahead * (boxes.stage_bytes + 16) + boxes.targets_bytes;
  }
  return (config.ahead + 1) * config.stage_rows() * config.staged(tiling.chunks, tiling.groups).bytes();
}

int64_t stages_of(const DepthwiseDiagonalConfig& config, const ConvProblem& a, int64_t run_rows) {
  const Window window = window_of(config, padding_of(config, a).h);
  return (run_rows - 1 - window.first_output) / config.rows().shift() + 1;
}

// Rows of the source that a run reads: those that exist.
int64_t rows_read(const DepthwiseDiagonalConfig& config, const ConvProblem& a, int64_t run_rows) {
  return std::min(source_side(a).h, stages_of(config, a, run_rows) * config.stage_rows());
}

// Of an SM, at once.
int64_t resident_blocks(const DepthwiseDiagonalConfig& config, const ConvProblem& a,
                        const DepthwiseDiagonalTiling& tiling, const DeviceSpec& device) {
  const int64_t fit = device.smem_optin_bytes / (smem_bytes(config, a, tiling) + kReservedSmemBytes);
  return std::clamp<int64_t>(fit, 1, config.warps / (tiling.chunks * tiling.groups));
}

double product_clocks(const DepthwiseDiagonalConfig& config) {
  return config.groups() ? kGroupProductClocks : kProductClocks;
}

// Products and other instructions, of all warps.
double compute_clocks(const DepthwiseDiagonalConfig& config, const ConvProblem& a,
                      const DepthwiseDiagonalTiling& tiling, const DeviceSpec& device) {
  // A stage has one row of products for each of the filter's.
  const double products = double(config.operands()) * config.taps;
  const double others = products + kRowClocks * config.stage_rows() + kTargetClocks * config.rows().shift();
  const double stages = double(rows_read(config, a, tiling.run_rows)) / config.stage_rows();
  const double warp = kStartClocks + std::max(product_clocks(config) * products, others) * stages;
  const double warps = blocks_of(a, tiling).all * tiling.chunks * tiling.groups;
  return kWaits * warps * warp / (4.0 * device.sm_count);
}

// The same where a block goes through boxes of rows of its share of the images.
double boxed_clocks(const DepthwiseDiagonalConfig& config, const ConvProblem& a, const DepthwiseDiagonalTiling& tiling,
                    const DeviceSpec& device) {
  const Blocks blocks = blocks_of(a, tiling);
  const int64_t work = blocks.of_chunks * blocks.of_columns, units = std::max<int64_t>(1, a.n * blocks.runs);
  const int64_t resident = resident_blocks(config, a, tiling, device);
  const double rounds = double(ceil_div(work * tiling.shares, resident * device.sm_count));
  const int64_t at_once = std::min(resident, ceil_div(work * tiling.shares, device.sm_count));
  const double warps = std::max(1., double(at_once * tiling.chunks * tiling.groups) / 4);  // of a quarter
  const double operands = double(config.operands()) * config.taps, start = kBoxedStartClocks + kTapsClocks * operands;
  const double box =
      std::max(kWaits * product_clocks(config) * warps, kOwnProductClocks) * operands * config.box_stages() +
      kBoxClocks + double(at_once) * boxes_of(config, a, tiling).stage_bytes / kBytesOfBoxes;
  const double rows = double(ceil_div(rows_read(config, a, tiling.run_rows), config.box_rows));
  const double all = double(ceil_div(stages_of(config, a, tiling.run_rows), config.box_stages()));
  const double unit = rows * box + std::max(0., all - rows) * kEmptyBoxClocks;
  return rounds * (start + double(ceil_div(units, tiling.shares)) * unit);
}

// What the neighbours read, too, is in L2 by then.
double boxed_bytes(const DepthwiseDiagonalConfig& config, const ConvProblem& a, const DepthwiseDiagonalTiling& tiling) {
  const Side from = source_side(a), to = target_side(a);
  const double rows = double(runs_of(a, tiling.run_rows)) * double(rows_read(config, a, tiling.run_rows));
  const double pixels = double(a.n) * (std::max(rows, double(from.h)) * double(from.w) + double(to.h) * double(to.w));
  const int64_t together = kChunksReadTogether / config.pieces();
  const double bytes = pixels * double(round_up(chunks_of(a), together) * config.chunk_bytes());
  const double read_twice = double(round_up(tiling.chunks, together)) / tiling.chunks;
  return bytes * read_twice * (tiling.chunks * config.chunk_bytes() < kMostPixelBytes ? kHalfLines : 1) *
         (config.transposed() ? kScatteredRows : 1) / kBoxedRate;
}

// Blocks that are wide read few columns twice, and few of their warps may be idle; long runs read few rows twice; and
// blocks should fill whole rounds.
double tiling_us(const DepthwiseDiagonalConfig& config, const ConvProblem& a, const DepthwiseDiagonalTiling& tiling,
                 const DeviceSpec& device) {
  if (config.boxed()) {
    return time_us({.clocks = boxed_clocks(config, a, tiling, device), .bytes = boxed_bytes(config, a, tiling)},
                   device);
  }
  const Side from = source_side(a), to = target_side(a);
  const Blocks blocks = blocks_of(a, tiling);
  const double columns = double(std::min<int64_t>(from.w, config.staged(1, tiling.groups).columns));
  const double rows = double(blocks.runs) * double(rows_read(config, a, tiling.run_rows));
  const double read = double(blocks.of_columns) * columns * rows;
  const double bytes_read = double(round_up(tiling.chunks, kChunksReadTogether) * kChunkBytes);  // of a pixel
  const double bytes = double(a.n) * double(blocks.of_chunks) * bytes_read * (read + double(to.h) * double(to.w));
  const auto resident = static_cast<double>(resident_blocks(config, a, tiling, device));
  const double rounds = std::max(1., blocks.all) / (resident * device.sm_count);
  const double idle =
      rounds > 1 ? std::ceil(rounds) / rounds : std::max(1., device.sm_count / std::max(1., blocks.all));
  return idle * time_us({.clocks = compute_clocks(config, a, tiling, device), .bytes = bytes}, device);
}

// As many as fill the SMs once, or so many fewer that all have as much to do.
int32_t choose_shares(const DepthwiseDiagonalConfig& config, const ConvProblem& a,
                      const DepthwiseDiagonalTiling& tiling, const DeviceSpec& device) {
  const Blocks blocks = blocks_of(a, tiling);
  const int64_t units = std::max<int64_t>(1, a.n * blocks.runs);
  const int64_t work = std::max<int64_t>(1, blocks.of_chunks * blocks.of_columns);
  const int64_t most = resident_blocks(config, a, tiling, device) * device.sm_count / work;
  const int64_t longest = ceil_div(units, std::clamp<int64_t>(most, 1, units));
  return static_cast<int32_t>(ceil_div(units, longest));
}

DepthwiseDiagonalTiling choose_tiling(const DepthwiseDiagonalConfig& config, const ConvProblem& a,
                                      const DeviceSpec& device) {
  const int64_t rows = std::max<int64_t>(1, target_side(a).h), shift = config.rows().shift();
  DepthwiseDiagonalTiling best{config.sources(), 1, static_cast<int32_t>(round_up(rows, shift))};
  double least = 0;
  for (int64_t parts = 1; parts <= rows; parts *= 2) {
    const auto run_rows = static_cast<int32_t>(round_up(ceil_div(rows, parts), shift));
    for (int32_t chunks = kMostDiagonalWarps; chunks >= 1; --chunks) {
      if (chunks > chunks_of(a) || chunks % config.sources() != 0) continue;
      // Rows of TMA's patterns.
      if (config.boxed() && ((chunks & (chunks - 1)) != 0 || chunks * config.chunk_bytes() > kMostPixelBytes)) continue;
      for (int32_t groups = kMostDiagonalWarps / chunks; groups >= 1; --groups) {
        DepthwiseDiagonalTiling tiling{chunks, groups, run_rows};
        if (config.boxed()) tiling.shares = choose_shares(config, a, tiling, device);
        if (groups > groups_of(a) || smem_bytes(config, a, tiling) > device.smem_optin_bytes) continue;
        if (config.boxed() && box_columns(config, a, tiling) > kMaxBox) continue;
        const double time = tiling_us(config, a, tiling, device);
        if (least == 0 || time < least) least = time, best = tiling;
      }
    }
  }
  return best;
}

}  // namespace

const char* diagonal_groups_why_not(const DepthwiseDiagonalConfig& config, const ConvProblem& problem) {
  const int64_t width = problem.c_per_group();
  if (width == problem.k_per_group() && config.takes_groups_of(width)) return nullptr;
  if (config.group_chunks == 2) return "is for groups of 16 channels, and as many filters";
  if (config.kind == DepthwiseKind::kWeights) return "is for groups of 1, 2, 4 or 8 channels, and as many filters";
  return config.groups() ? "is for groups of 2, 4 or 8 channels, and as many filters"
                         : "is for groups of one channel and one filter";
}

const char* diagonal_boxes_why_not(const DepthwiseDiagonalConfig& config, const ConvProblem& problem) {
  if (!config.boxed()) return nullptr;
  return boxes_why_not(problem);
}

namespace {

const char* why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const DepthwiseDiagonalConfig& config = entry.config.as<DepthwiseDiagonalConfig>();
  if (problem.dtype == DType::kFloat32 && problem.precision != Precision::kTf32) return "rounds operands to TF32";
  if (const char* why_not = diagonal_groups_why_not(config, problem)) return why_not;
  if (problem.dilation != kUnitStep) return "takes no dilation";
  if (problem.stride != Pair{config.stride, config.stride}) return "is compiled for another stride";
  // One more row and column is the least that is compiled, a smaller filter takes the smallest kernel.
  const int64_t taps = std::max(problem.r, problem.s);
  if (taps > config.taps || (taps < config.taps - 1 && config.taps > 3)) return "is compiled for another filter";
  for (const int64_t extent : {problem.n, problem.c, problem.h + 2 * problem.padding.h,
                               problem.w + 2 * problem.padding.w, problem.stride.h, problem.stride.w}) {
    if (extent >= kMaxExtent) return "counts with 32 bits: extents stay below 2^29";
  }
  if (problem.c % kChunk != 0 || !channel_vectors(source_side(problem), problem, kChunk) ||
      !channel_vectors(target_side(problem), problem, kChunk)) {
    return "reads 8 channels at a time: needs channels_last tensors, aligned";
  }
  if (const char* why_not = diagonal_boxes_why_not(config, problem)) return why_not;
  if (config.boxed() && !filters_copyable(problem)) return "copies filters: they lie without gaps, aligned";
  if (smem_bytes(config, problem, {config.sources(), 1, 1}) > device.smem_optin_bytes)
    return "needs more shared memory";
  if (blocks_of(problem, choose_tiling(config, problem, device)).all > INT32_MAX) {
    return "would need more blocks than a grid has";
  }
  return nullptr;
}

}  // namespace

Offer depthwise_diagonal_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem, device)) return reason;
  const DepthwiseDiagonalConfig& config = entry.config.as<DepthwiseDiagonalConfig>();
  const DepthwiseDiagonalTiling tiling = choose_tiling(config, problem, device);
  Plan plan;
  plan.kernel = &entry;
  plan.tiling = tiling;
  const Blocks blocks = blocks_of(problem, tiling);
  plan.grid = config.boxed() ? blocks.of_chunks * blocks.of_columns * tiling.shares : static_cast<int64_t>(blocks.all);
  plan.block_threads = 32 * tiling.chunks * tiling.groups;
  plan.smem_bytes = smem_bytes(config, problem, tiling);
  plan.cost_us =
      (config.boxed() ? cost::depthwise::kBoxedStartUs : kLaunchUs) + tiling_us(config, problem, tiling, device);
  return plan;
}

DepthwiseDiagonalParams depthwise_diagonal_params(const Plan& plan, const ConvProblem& problem) {
  const DepthwiseDiagonalConfig& config = plan.kernel->config.as<DepthwiseDiagonalConfig>();
  const DepthwiseDiagonalTiling& tiling = plan.tiling.as<DepthwiseDiagonalTiling>();
  const Side from = source_side(problem), to = target_side(problem);
  const Pair padding = padding_of(config, problem);
  const Window rows = window_of(config, padding.h), columns = window_of(config, padding.w);
  DepthwiseDiagonalParams params{};
  params.source_strides = image_strides(from), params.target_strides = image_strides(to);
  params.filter_strides = problem.w_strides;
  params.source_h = static_cast<int32_t>(from.h), params.source_w = static_cast<int32_t>(from.w);
  params.target_h = static_cast<int32_t>(to.h), params.target_w = static_cast<int32_t>(to.w);
  params.padding_h = static_cast<int32_t>(padding.h), params.padding_w = static_cast<int32_t>(padding.w);
  params.taps_h = static_cast<int32_t>(problem.r), params.taps_w = static_cast<int32_t>(problem.s);
  params.first_h = rows.first, params.first_w = columns.first;
  params.first_tap = columns.first_tap;
  params.first_output = rows.first_output;
  params.chunks = static_cast<int32_t>(chunks_of(problem));
  params.group_channels = static_cast<int32_t>(problem.c_per_group());
  const bool dgrad = problem.pass == Pass::kDgrad;
  params.target_channel_step = dgrad ? problem.w_strides.c : problem.w_strides.n;
  params.source_channel_step = dgrad ? problem.w_strides.n : problem.w_strides.c;
  params.staged = config.staged(tiling.chunks, tiling.groups);
  params.run_rows = tiling.run_rows;
  const Blocks blocks = blocks_of(problem, tiling);
  params.by_staged_chunks = FastDivmod(tiling.chunks);
  params.by_chunk_blocks = FastDivmod(std::max<int64_t>(1, blocks.of_chunks));
  params.by_column_blocks = FastDivmod(blocks.of_columns);
  params.by_runs = FastDivmod(blocks.runs);
  if (config.boxed()) {
    params.boxes = boxes_of(config, problem, tiling);
    params.units = static_cast<int32_t>(problem.n * blocks.runs), params.shares = tiling.shares;
  }
  return params;
}

PixelMaps depthwise_diagonal_maps(const Plan& plan, const ConvProblem& problem) {
  const DepthwiseDiagonalConfig& config = plan.kernel->config.as<DepthwiseDiagonalConfig>();
  const DepthwiseDiagonalTiling& tiling = plan.tiling.as<DepthwiseDiagonalTiling>();
  const DiagonalBoxes boxes = boxes_of(config, problem, tiling);
  const auto channels = static_cast<uint32_t>(tiling.chunks * kChunk), step = static_cast<uint32_t>(config.planes());
  const auto columns = static_cast<uint32_t>(box_columns(config, problem, tiling));
  const auto rows = static_cast<uint32_t>(config.box_rows);
  const auto target_columns = static_cast<uint32_t>(kDiagonalColumns * tiling.groups);
  PixelMaps maps{pixels_map(source_side(problem), problem.c, {channels, columns, rows, 1}, step, boxes.pixel_bytes),
                 pixels_map(target_side(problem), problem.c, {channels, target_columns, 1, 1}, 1, boxes.pixel_bytes)};
  maps.target.exact = true;  // float32 is rounded on its way to operands alone
  return maps;
}

}  // namespace fastconv
