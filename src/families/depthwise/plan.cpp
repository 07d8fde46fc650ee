#include "fastconv/families/depthwise/plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "fastconv/core/integers.h"
#include "fastconv/families/depthwise/cost.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/copies.h"

namespace fastconv {
namespace {

using namespace cost::depthwise;
using namespace cost::multiply_rows;

constexpr int32_t kLanesOfChannels = 32;   // at most: a warp then reads whole sectors
constexpr int32_t kLanesOfColumns = 64;    // at most; the rest of a block are runs and channels
constexpr int32_t kLanesOfStage = 28;      // the same, so that a box has no more than kMaxBox columns
constexpr int32_t kStagedBytes = 54 << 8;  // of rows, a warp: 16 then run on an SM at once
constexpr int32_t kMostStageRows = 8;
// A run of rows is cut in two until so many threads have work, unless it becomes so short that the rows which two runs
// see cost more. Threads with columns take fewer registers, so that more of them run at once; runs of those that
// read device memory are short in any case, so that what blocks read at once lies close together, as fits KernelBench's
// and EfficientNet's layers on an H200.
constexpr int64_t kColumnThreadsPerSm = 2048, kChannelThreadsPerSm = 768;
constexpr int32_t kLeastRun = 8;       // times the filter's rows
constexpr int32_t kShortRun = 56;      // outputs of a thread, over the stride
constexpr int32_t kLeastShortRun = 2;  // times the filter's rows, and one more
// Weight gradient: blocks per SM that slices fill, and the most rows that one thread adds up, which bounds
// the rounding errors of its sums.
constexpr int64_t kBlocksPerSm = 16, kStagedBlocksPerSm = 4;  // the latter run at once
constexpr int64_t kMostRowsOfThread = 256;
bool column_vectors(const Side& side, const ConvProblem& a, int64_t channels, int64_t elements) {
  const Strides& strides = side.stride;
  return strides.w == 1 && side.w % elements == 0 && side.align >= elements * element_size(a.dtype) &&
         keeps_multiples(strides.n, a.n, elements) && keeps_multiples(strides.c, channels, elements) &&
         keeps_multiples(strides.h, side.h, elements);
}

DepthwiseAxis make_axis(const DepthwiseConfig& config, Pass pass, int32_t tile, int64_t source_extent,
                        int64_t target_extent, int64_t stride, int64_t padding, int64_t dilation) {
  DepthwiseAxis axis{};
  const bool turned = pass == Pass::kDgrad && !config.transposed();
  axis.source_extent = static_cast<int32_t>(source_extent);
  axis.target_extent = static_cast<int32_t>(target_extent);
  axis.source_step = static_cast<int32_t>(dilation);
  axis.stride = config.transposed() ? 1 : static_cast<int32_t>(stride);
  axis.up = FastDivmod(config.transposed() ? config.stride : 1);
  // dgrad of stride 1 slides over dy with the last tap first.
  axis.first = config.first(static_cast<int32_t>(turned ? dilation * (config.taps - 1) - padding : padding));
  axis.tile = tile;
  const int64_t strands = std::min(dilation / std::gcd(stride, dilation), std::max<int64_t>(target_extent, 1));
  axis.strands = FastDivmod(strands);
  axis.tiles = static_cast<int32_t>(strands * ceil_div(ceil_div(target_extent, strands), tile));
  return axis;
}

DepthwiseAxis axis_h(const DepthwiseConfig& config, const ConvProblem& a, int32_t run_rows) {
  return make_axis(config, a.pass, run_rows, source_side(a).h, target_side(a).h, a.stride.h, a.padding.h, a.dilation.h);
}
DepthwiseAxis axis_w(const DepthwiseConfig& config, const ConvProblem& a) {
  return make_axis(config.across(), a.pass, config.columns, source_side(a).w, target_side(a).w, a.stride.w, a.padding.w,
                   a.dilation.w);
}

int32_t choose_run(const DepthwiseConfig& config, const ConvProblem& problem, int64_t units, const DeviceSpec& device) {
  const DepthwiseAxis w = axis_w(config, problem);
  const int64_t strands = axis_h(config, problem, 1).strands.divisor;
  const int64_t rows = ceil_div(target_side(problem).h, strands);
  const bool columns = config.lanes == Lanes::kColumns && config.kind != DepthwiseKind::kWeights;
  const auto wanted = static_cast<double>((columns ? kColumnThreadsPerSm : kChannelThreadsPerSm) * device.sm_count);
  const double threads = double(problem.n) * double(units) * w.tiles * double(strands);  // of whole runs
  int64_t parts = 1;
  if (columns && !config.staged()) {
    const int32_t least = std::max(kShortRun / (config.columns * config.stride), kLeastShortRun * config.taps + 1);
    while (rows / (2 * parts) >= least) parts *= 2;
  }
  while (rows / (2 * parts) >= kLeastRun * config.taps && threads * double(parts) < wanted) parts *= 2;
  if (config.kind != DepthwiseKind::kWeights && !config.staged()) {
    while (rows / (2 * parts) >= config.taps && threads * double(parts) < kFewThreads * wanted) parts *= 2;
  }
  return static_cast<int32_t>(round_up(std::max<int64_t>(1, ceil_div(rows, parts)), config.shift()));
}

DepthwiseTiling choose_tiling(const DepthwiseConfig& config, const ConvProblem& problem, int64_t channels,
                              const DeviceSpec& device) {
  const int64_t units = std::max<int64_t>(1, ceil_div(channels, config.channels()));
  DepthwiseTiling tiling{choose_run(config, problem, units, device), 1, 1, 1};
  if (config.staged() && config.kind == DepthwiseKind::kWeights) {
    tiling.run_rows = static_cast<int32_t>(std::max<int64_t>(1, target_side(problem).h));  // see StagedPatches
  }
  const DepthwiseAxis h = axis_h(config, problem, tiling.run_rows), w = axis_w(config, problem);
  const bool wgrad = config.kind == DepthwiseKind::kWeights;
  if (config.lanes == Lanes::kColumns) {
    if (wgrad) return tiling;
    tiling.columns = even_part(std::max(w.tiles, 1), config.staged() ? kLanesOfStage : kLanesOfColumns);
    if (!config.staged()) tiling.runs = even_part(std::max(h.tiles, 1), kDepthwiseThreads / tiling.columns);
    tiling.channels = even_part(units, kDepthwiseThreads / (tiling.columns * tiling.runs));
    return tiling;
  }
  tiling.channels =
      static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(std::min<int64_t>(units, kLanesOfChannels))));
  if (config.staged()) tiling.channels = kStagedLanes;
  if (wgrad && !config.staged()) return tiling;
  tiling.columns = even_part(std::max(w.tiles, 1), kDepthwiseThreads / tiling.channels);
  if (!config.staged()) {
    tiling.runs = even_part(std::max(h.tiles, 1), kDepthwiseThreads / (tiling.channels * tiling.columns));
  }
  return tiling;
}

// `rows` of each.
DepthwiseStages make_stages(const DepthwiseConfig& config, const DepthwiseTiling& tiling, int32_t size, int32_t columns,
                            int32_t rows) {
  const bool by_channel = config.lanes == Lanes::kChannels;
  DepthwiseStages stages{};
  stages.rows = rows;
  stages.channels = tiling.channels * config.channels();
  stages.columns = round_up(columns, 16 / size);
  stages.row_bytes = stages.columns * size * (by_channel ? stages.channels : 1);
  stages.channel_bytes = by_channel ? size : rows * stages.row_bytes;
  stages.box_bytes = rows * stages.row_bytes * (by_channel ? 1 : stages.channels);
  stages.bytes = round_up(stages.box_bytes, 128);
  return stages;
}

struct Staging {
  DepthwiseStages source, target;
  int32_t smem_bytes;
};
// Weight gradient: as many stages as find room in `smem_bytes`, if that is more than a block has in any case.
Staging make_staging(const DepthwiseConfig& config, const DepthwiseTiling& tiling, DType dtype,
                     int64_t smem_bytes = 0) {
  const auto size = static_cast<int32_t>(element_size(dtype));
  const bool wgrad = config.kind == DepthwiseKind::kWeights;
  // Accesses of a thread reach a vector further than what it sees, and a box begins up to 16 bytes early.
  const int32_t seen = config.across().seen(config.columns) + (config.column_vectors() ? config.vector + 16 / size : 0);
  const int32_t steps = wgrad ? config.rows_a_shift() : 1;
  auto with = [&](int32_t rows) {
    Staging staging{};
    staging.source =
        make_stages(config, tiling, size, (tiling.columns - 1) * config.source_columns() + seen, rows * steps);
    if (wgrad) staging.target = make_stages(config, tiling, size, tiling.columns * config.columns, rows);
    return staging;
  };
  auto bytes = [](const Staging& staging) { return staging.source.bytes + staging.target.bytes; };
  Staging staging = with(1);
  const int32_t warps =
      wgrad ? kDepthwiseThreads / 32 : static_cast<int32_t>(ceil_div(tiling.columns * tiling.channels, 32));
  const int32_t ring_bytes = warps * kStagedBytes;
  staging = with(std::clamp(ring_bytes / 3 / bytes(staging), 1, kMostStageRows));
  const int64_t more = wgrad ? smem_bytes - kDepthwiseBarrierBytes : 0;
  const auto room = static_cast<int32_t>(std::max<int64_t>(ring_bytes, more));
  staging.source.count = std::clamp(room / bytes(staging), 2, kDepthwiseBarrierBytes / 16);
  staging.smem_bytes = kDepthwiseBarrierBytes + staging.source.count * bytes(staging);
  return staging;
}

// Weight gradient: tiles that threads or, staged, blocks number; and how many of them a block has under way.
int64_t tiles_of(const DepthwiseConfig& config, const DepthwiseTiling& tiling, const DepthwiseAxis& h,
                 const DepthwiseAxis& w, int64_t n) {
  return n * h.tiles * (config.staged() ? ceil_div(w.tiles, tiling.columns) : w.tiles);
}
int64_t strands_of(const DepthwiseConfig& config, const DepthwiseTiling& tiling) {
  return config.staged() ? 1 : kDepthwiseThreads / tiling.channels;
}

// Slices of the weight gradient's tiles.
int64_t choose_slices(const DepthwiseConfig& config, const DepthwiseTiling& tiling, int64_t strands, int64_t tiles,
                      int64_t chunks, int64_t sums, const DeviceSpec& device) {
  const int64_t fill = config.staged() ? std::max<int64_t>(1, kStagedBlocksPerSm * device.sm_count / chunks)
                                       : ceil_div(kBlocksPerSm * device.sm_count, chunks);
  const int64_t most = std::max<int64_t>(1, tiles / strands);
  const int64_t least = ceil_div(tiles * tiling.run_rows, kMostRowsOfThread * strands);
  const int64_t slices = std::max(std::min(fill, most), least);
  return std::clamp<int64_t>(slices, 1, std::max<int64_t>(1, kMaxWorkspaceBytes / (4 * sums)));
}

// How many blocks of staged rows run at once on an SM: as many as registers permit; or fewer, where the last
// ones would leave most places empty, or because two store faster than four.
int64_t choose_resident(const DepthwiseConfig& config, int64_t grid, const DeviceSpec& device) {
  const double (&rates)[kStagedBlocksPerSm + 1] = config.transposed() ? kStagedStoreRates : kStagedRates;
  const int64_t blocks = ceil_div(grid, device.sm_count);
  auto time = [&](int64_t resident) {
    const int64_t last = blocks % resident;
    return double(blocks - last) / rates[resident] + (last > 0 ? double(last) / (kLastRound * rates[last]) : 0);
  };
  int64_t best = kStagedBlocksPerSm;
  for (int64_t resident = kStagedBlocksPerSm - 1; resident >= 2; --resident) {
    if (time(resident) < time(best)) best = resident;
  }
  return best;
}

// As many for each thread, so that none works alone in the last round.
int64_t slice_tiles(int64_t strands, int64_t tiles, int64_t slices) {
  return std::max(strands, round_up(ceil_div(tiles, slices), strands));
}

const char* why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const DepthwiseConfig& config = entry.config.as<DepthwiseConfig>();
  if (problem.c_per_group() != 1) return "is for groups of one input channel";
  if (problem.pass == Pass::kDgrad && problem.k_per_group() != 1) return "is for groups of one filter";
  if (problem.r != config.taps || problem.s != config.taps_w) return "is compiled for another filter size";
  const int64_t stride_h = problem.stride.h / std::gcd(problem.stride.h, problem.dilation.h);
  const int64_t stride_w = problem.stride.w / std::gcd(problem.stride.w, problem.dilation.w);
  const bool dgrad = problem.pass == Pass::kDgrad;
  if (dgrad ? problem.stride != Pair{config.stride, config.stride}
            : stride_h != config.stride || stride_w != config.stride) {
    return "is compiled for another stride (over its common divisor with the dilation)";
  }
  if (config.transposed()) {
    if (problem.dilation != Pair{1, 1}) return "takes no dilation";
    if (problem.padding.h % config.stride != config.phase() || problem.padding.w % config.stride != config.phase()) {
      return "is compiled for another padding modulo the stride";
    }
  }
  // Coordinates have 32 bits, and so has the distance of a thread's columns in bytes.
  for (const int64_t extent :
       {problem.n, problem.c, problem.k, problem.h + 2 * problem.padding.h + problem.dilation.h * problem.r,
        problem.w + 2 * problem.padding.w + problem.dilation.w * problem.s, problem.stride.h, problem.stride.w}) {
    if (extent >= kMaxExtent) return "counts with 32 bits: extents stay below 2^29";
  }
  const Side from = source_side(problem), to = target_side(problem);
  const int64_t most = INT32_MAX / element_size(problem.dtype) / problem.dilation.w;
  for (const Side& side : {from, to}) {
    if (side.stride.w > most) return "counts with 32 bits: columns lie too far apart";
  }
  if (problem.pass != Pass::kWgrad && to.h > 1 && to.stride.h > INT32_MAX / problem.dilation.h)
    return "counts with 32 bits: rows lie too far apart";
  const int64_t channels = target_channels(problem);
  if (config.lanes == Lanes::kChannels && config.vector > 1) {
    if (problem.k_per_group() != 1 || channels % config.vector != 0 || !channel_vectors(from, problem, config.vector) ||
        !channel_vectors(to, problem, config.vector)) {
      return "reads several channels at a time: needs channels_last tensors, aligned, as many filters as channels";
    }
  }
  const DepthwiseTiling tiling = choose_tiling(config, problem, channels, device);
  const double tiles =
      double(axis_h(config, problem, tiling.run_rows).tiles) * axis_w(config, problem).tiles * double(problem.n);
  // Blocks are no more than tiles times chunks of channels. The weight gradient numbers tiles with 32 bits, too.
  const double chunks = std::ceil(double(channels) / (tiling.channels * config.channels()));
  if (tiles * std::max(chunks, 1.) > INT32_MAX) return "would need more blocks than a grid has";
  if (depthwise_ring_bytes(config, static_cast<int32_t>(element_size(problem.dtype))) > device.smem_optin_bytes) {
    return "needs more shared memory";
  }
  if (config.staged()) {
    const int64_t size = element_size(problem.dtype), unit = 16 / size;
    auto readable = [&](const Side& side) {
      const Strides& strides = side.stride;
      if (!copies(side.n, strides.n, size) || !copies(side.h, strides.h, size)) return false;
      return config.lanes == Lanes::kChannels
                 ? copies(side.w, strides.w, size) && channel_vectors(side, problem, unit)
                 : copies(channels, strides.c, size) && column_vectors(side, problem, channels, unit);
    };
    const bool wgrad = problem.pass == Pass::kWgrad;
    if (problem.n < 1 || problem.k_per_group() != 1 || problem.dilation != Pair{1, 1} || !readable(from) ||
        (wgrad && !readable(to))) {
      return "is read by TMA: needs aligned rows or channels, no dilation, as many filters as channels";
    }
    if (wgrad && to.h > kMostRowsOfThread) return "adds up all rows of an image in one thread: that would be too many";
  }
  if (config.column_vectors()) {
    const int64_t source_channels = dgrad ? problem.k : problem.c;
    const bool turned = dgrad && !config.transposed();
    const int64_t padding = turned ? config.taps_w - 1 - problem.padding.w : problem.padding.w;
    if (padding != config.padding_w || problem.dilation != Pair{1, 1} ||
        !column_vectors(from, problem, source_channels, RowAccesses::source(config).vector) ||
        !column_vectors(to, problem, channels, config.target_vector)) {
      return "reads several columns at a time: needs aligned rows, no dilation, the padding that it is compiled for";
    }
  }
  return nullptr;
}

}  // namespace

Offer depthwise_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem, device)) return reason;
  const DepthwiseConfig& config = entry.config.as<DepthwiseConfig>();
  const int64_t channels = target_channels(problem);
  const DepthwiseTiling tiling = choose_tiling(config, problem, channels, device);
  const DepthwiseAxis h = axis_h(config, problem, tiling.run_rows), w = axis_w(config, problem);
  const int64_t tiles = tiles_of(config, tiling, h, w, problem.n);
  const int64_t taps = int64_t{config.taps} * config.taps_w;
  Plan plan;
  plan.kernel = &entry;
  plan.tiling = tiling;
  plan.smem_bytes = config.staged() ? make_staging(config, tiling, problem.dtype).smem_bytes
                                    : depthwise_ring_bytes(config, static_cast<int32_t>(element_size(problem.dtype)));
  const int64_t chunks = ceil_div(channels, int64_t{tiling.channels} * config.channels());
  if (problem.pass == Pass::kWgrad) {
    const int64_t strands = strands_of(config, tiling);
    plan.split = choose_slices(config, tiling, strands, tiles, chunks, channels * taps, device);
    // Rounding slices up can leave the last ones empty.
    plan.split = std::max<int64_t>(1, ceil_div(tiles, slice_tiles(strands, tiles, plan.split)));
    plan.workspace_bytes = plan.split > 1 ? plan.split * channels * taps * 4 : 0;
    const auto sums_bytes = static_cast<int32_t>(depthwise_block_sums(config, tiling) * taps * 4);
    plan.smem_bytes = std::max(plan.smem_bytes, sums_bytes + (config.staged() ? kDepthwiseBarrierBytes : 0));
    plan.grid = chunks * plan.split;
    plan.block_threads = kDepthwiseThreads;
    if (config.staged() && plan.grid > 0) {
      // Blocks that run at once share the SM; no more of them fit than there are for each.
      const int64_t resident = std::min(ceil_div(plan.grid, device.sm_count), kStagedBlocksPerSm);
      const int64_t room = (device.smem_optin_bytes + kReservedSmemBytes) / resident - kReservedSmemBytes;
      plan.smem_bytes = std::max(plan.smem_bytes, make_staging(config, tiling, problem.dtype, room).smem_bytes);
    }
  } else {
    plan.grid = chunks * ceil_div(h.tiles, tiling.runs) * ceil_div(w.tiles, tiling.columns) * problem.n;
    plan.block_threads = static_cast<int32_t>(round_up(int64_t{tiling.runs} * tiling.columns * tiling.channels, 32));
    const int64_t resident = config.staged() ? choose_resident(config, plan.grid, device) : kStagedBlocksPerSm;
    if (resident < kStagedBlocksPerSm && plan.block_threads == kDepthwiseThreads) {
      // With so much shared memory that another block finds none.
      const int64_t of_sm = device.smem_optin_bytes + kReservedSmemBytes;
      plan.smem_bytes = std::max(plan.smem_bytes, static_cast<int32_t>(of_sm / (resident + 1)));
    }
  }

  // Lanes whose elements do not lie side by side use a sector each, of which caches give some back.
  const Side from = source_side(problem);
  const bool beside = (config.lanes == Lanes::kChannels ? from.stride.c : from.stride.w) == 1;
  const double bytes = compulsory_bytes(problem) * (beside ? 1 : 32.0 / double(4 * element_size(problem.dtype))) +
                       2.0 * static_cast<double>(plan.workspace_bytes);
  const double outputs = double(tiling.run_rows) * config.columns * config.channels();
  const double products = outputs * double(taps) / (config.transposed() ? config.stride * config.stride : 1);
  const double rows = config.seen(tiling.run_rows);
  const double accesses =
      double(config.across().seen(config.columns)) / (config.column_vectors() ? config.vector : 1) + 1;
  const double instructions =
      products + rows * (config.staged() ? kStagedAccess * accesses + kStagedRow : kAccess * accesses + kRow) +
      kOutput * outputs + kRun;
  const double threads =
      static_cast<double>(int64_t{h.tiles} * w.tiles * problem.n * ceil_div(channels, config.channels()));
  double cycles = threads * instructions / (128.0 * device.sm_count);
  if (!config.staged()) {
    const int64_t strands = strands_of(config, tiling);
    const double own_tiles =
        problem.pass == Pass::kWgrad ? double(slice_tiles(strands, tiles, plan.split)) / double(strands) : 1;
    const double row_cycles = beside ? kLoneRow : kScatteredRow;
    cycles = std::max(cycles, own_tiles * (kLone * instructions + row_cycles * rows));
  } else if (plan.grid > 0 && plan.grid < device.sm_count) {
    // Images are not cut, however few there are.
    cycles *= kLoneStaged * static_cast<double>(device.sm_count) / double(plan.grid);
  }
  double unseen = config.staged() ? kUnseenStaged : 1;
  if (from.stride.c == 1 && from.stride.w != 1 && element_size(problem.dtype) == 2) {
    if (config.staged()) {
      if (problem.pass != Pass::kFprop) unseen = kUnseenStagedHalf;
    } else {
      unseen = config.taps > 3 ? kUnseenHalf : problem.pass == Pass::kWgrad ? kUnseenHalfGradient : kUnseenHalf3x3;
    }
  } else if (from.stride.w == 1 && element_size(problem.dtype) == 2 && config.kind == DepthwiseKind::kWeights &&
             config.stride > 1 && config.taps > 3) {
    unseen = kUnseenStridedGradient;
  }
  plan.cost_us = kLaunchUs * (plan.split > 1 ? 2 : 1) + (config.staged() ? kStagedStartUs : 0) +
                 unseen * time_us({.clocks = kInstruction * cycles, .bytes = bytes}, device);
  return plan;
}

DepthwiseParams depthwise_params(const Plan& plan, const ConvProblem& problem) {
  const DepthwiseConfig& config = plan.kernel->config.as<DepthwiseConfig>();
  const bool dgrad = problem.pass == Pass::kDgrad;
  DepthwiseParams params{};
  params.h = axis_h(config, problem, plan.tiling.as<DepthwiseTiling>().run_rows);
  params.w = axis_w(config, problem);
  params.channels = static_cast<int32_t>(target_channels(problem));
  params.by_filters = FastDivmod(dgrad ? 1 : std::max<int64_t>(1, problem.k_per_group()));
  params.source_strides = source_side(problem).stride;
  params.target_strides = target_side(problem).stride;
  params.filter_strides = problem.w_strides;
  const DepthwiseTiling& tiling = params.tiling = plan.tiling.as<DepthwiseTiling>();
  if (config.staged()) {
    const Staging staging = make_staging(config, tiling, problem.dtype, plan.smem_bytes);
    params.stages = staging.source, params.target_stages = staging.target;
  }
  params.by_chunks = FastDivmod(std::max<int64_t>(1, ceil_div(params.channels, tiling.channels * config.channels())));
  params.by_patches_w = FastDivmod(std::max<int64_t>(1, ceil_div(params.w.tiles, tiling.columns)));
  params.by_patches_h = FastDivmod(std::max<int64_t>(1, ceil_div(params.h.tiles, tiling.runs)));
  params.by_channels = FastDivmod(tiling.channels);
  params.by_columns = FastDivmod(tiling.columns);
  params.by_runs = FastDivmod(tiling.runs);
  params.tiles = tiles_of(config, tiling, params.h, params.w, problem.n);
  params.slice_tiles = slice_tiles(strands_of(config, tiling), params.tiles, plan.split);
  if (config.staged() && problem.pass == Pass::kWgrad) {
    const int32_t stride = config.rows_a_shift(), first = params.h.source(0);
    const int32_t rows = std::min(config.seen(params.h.target_extent), params.h.source_extent - first);
    const auto steps = static_cast<int32_t>(ceil_div(rows, stride));
    params.steps_before = std::min(std::max(0, -first) / stride, steps);
    params.patch_steps = params.steps_before + round_up(steps - params.steps_before, config.unroll);
    params.patch_boxes =
        static_cast<int32_t>(std::max<int64_t>(1, ceil_div(params.patch_steps, params.target_stages.rows)));
  }
  params.by_tiles_w = FastDivmod(std::max(1, params.w.tiles));
  params.by_tiles_h = FastDivmod(std::max(1, params.h.tiles));
  return params;
}

DepthwiseMaps depthwise_maps(const Plan& plan, const ConvProblem& problem) {
  const DepthwiseConfig& config = plan.kernel->config.as<DepthwiseConfig>();
  const Staging staging = make_staging(config, plan.tiling.as<DepthwiseTiling>(), problem.dtype, plan.smem_bytes);
  const int64_t channels = target_channels(problem), size = element_size(problem.dtype);
  auto map_of = [&](const Side& side, const DepthwiseStages& stages) {
    auto dimension = [](int64_t v) { return static_cast<uint64_t>(v); };
    auto box = [](int32_t v) { return static_cast<uint32_t>(v); };
    const uint64_t h_bytes = stride_bytes(side.h, side.stride.h, size);
    const uint64_t n_bytes = stride_bytes(side.n, side.stride.n, size);
    TensorMapSpec map{};
    if (config.lanes == Lanes::kChannels) {
      map = {{dimension(channels), dimension(side.w), dimension(side.h), dimension(side.n), 1},
             {stride_bytes(side.w, side.stride.w, size), h_bytes, n_bytes, 16},
             {box(stages.channels), box(stages.columns), box(stages.rows), 1, 1},
             {1, 1, 1, 1, 1},
             0};
    } else {
      map = {{dimension(side.w), dimension(side.h), dimension(channels), dimension(side.n), 1},
             {h_bytes, stride_bytes(channels, side.stride.c, size), n_bytes, 16},
             {box(stages.columns), box(stages.rows), box(stages.channels), 1, 1},
             {1, 1, 1, 1, 1},
             0};
    }
    map.exact = true;
    return map;
  };
  Side source = source_side(problem);
  if (problem.pass == Pass::kWgrad) {  // rows that no output sees are zeros: they meet zeros for dy
    const DepthwiseAxis h = axis_h(config, problem, plan.tiling.as<DepthwiseTiling>().run_rows);
    source.h = std::min<int64_t>(source.h, h.source(0) + config.seen(h.target_extent));
  }
  return {map_of(source, staging.source), map_of(target_side(problem), staging.target)};
}

}  // namespace fastconv
