#include "fastconv/families/depthwise/banded_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "fastconv/core/integers.h"
#include "fastconv/families/depthwise/cost.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/copies.h"

namespace fastconv {
namespace {

using namespace cost::banded;

constexpr int64_t kWarps = kBandedThreads / 32;
constexpr int64_t kFewParts = 16;  // that rows are cut into: up to those any number, then each the double of the last
// Weight gradient: slices that are tried, and the most rows that one warp adds up, which bounds the rounding errors of
// its sums.
constexpr int64_t kMostSlices = 256;
constexpr int64_t kMostRowsOfWarp = 1024;
constexpr int32_t kMostFilterBytes = 48 << 10;
constexpr int64_t kMostBlocks = 32;  // that an SM takes
constexpr int64_t kSectorBytes = 32;

// Padding as a window sees it that slides over the filter: dgrad of stride 1 does so with the last tap first.
int64_t padding_of(const DepthwiseBandedConfig& config, Pass pass, int64_t padding, int64_t taps) {
  return pass == Pass::kDgrad && !config.transposed() ? taps - 1 - padding : padding;
}

struct Window {
  int32_t first;  // column at the begin of block 0's
  int32_t lead;   // columns before the first that a target sees: words begin at even columns
  int32_t size;
};
Window window_of(const DepthwiseBandedConfig& config, const ConvProblem& problem) {
  DepthwiseConfig columns = config.rows();
  columns.taps = static_cast<int32_t>(problem.s);
  const auto padding = static_cast<int32_t>(padding_of(config, problem.pass, problem.padding.w, problem.s));
  const int32_t first = columns.first(padding), lead = first & 1;
  return {first - lead, lead, lead + columns.seen(kBandedBlock)};
}

bool aligned(const Side& side, const ConvProblem& a, int64_t channels, int64_t elements) {
  const Strides& strides = side.stride;
  return side.w % elements == 0 && side.align >= elements * element_size(a.dtype) &&
         keeps_multiples(strides.n, a.n, elements) && keeps_multiples(strides.c, channels, elements) &&
         keeps_multiples(strides.h, side.h, elements);
}

// Where rows are staged, of a tile's even share or of whole tiles: the last ones may lie outside.
int64_t row_blocks(const DepthwiseBandedConfig& config, const ConvProblem& a) {
  const int64_t blocks = std::max<int64_t>(1, ceil_div(target_side(a).w, kBandedBlock));
  if (!config.staged()) return blocks;
  if (blocks > kBandedTile) return round_up(blocks, kBandedTile);
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(blocks)));
}
// Tiles that follow each other: of a row, so that warps read on where others end. The weight gradient's warps take them
// one after the other; of all images is best there.
int64_t near_tiles(const DepthwiseBandedConfig& config, const ConvProblem& a) {
  const int64_t blocks = row_blocks(config, a), all = std::max<int64_t>(1, ceil_div(a.n * blocks, kBandedTile));
  return a.pass == Pass::kWgrad ? all : std::min(all, ceil_div(blocks, kBandedTile));
}
int64_t tiles_of_run(const DepthwiseBandedConfig& config, const ConvProblem& a) {
  return round_up(ceil_div(a.n * row_blocks(config, a), kBandedTile), near_tiles(config, a));
}

int64_t row_bytes(const Side& side) { return 2 * side.w; }

int64_t tile_images(const DepthwiseBandedConfig& config, const ConvProblem& a) {
  return std::clamp<int64_t>(kBandedTile / row_blocks(config, a), 1, std::max<int64_t>(1, a.n));
}
// From an image's rows to the next one's: images that a lane's first or second blocks share begin in other banks.
int64_t image_bytes(const Side& side, int64_t rows, int64_t blocks_bytes) {
  const int64_t skew = round_up(blocks_bytes, int64_t{16}) % 128;
  return round_up(std::min(side.h, rows) * row_bytes(side) + 30, int64_t{128}) + (skew == 0 ? 16 : skew);
}
int64_t source_image_bytes(const DepthwiseBandedConfig& config, const ConvProblem& a, int64_t run_rows) {
  return image_bytes(source_side(a), config.rows().seen(static_cast<int32_t>(run_rows)),
                     2 * config.advance() * row_blocks(config, a));
}
int64_t target_image_bytes(const DepthwiseBandedConfig& config, const ConvProblem& a, int64_t run_rows) {
  return image_bytes(target_side(a), run_rows, 2 * kBandedBlock * row_blocks(config, a));
}
int64_t smem_bytes(const DepthwiseBandedConfig& config, const ConvProblem& a, int64_t run_rows) {
  if (!config.staged()) return config.filter_bytes(a.r);
  const int64_t images = tile_images(config, a), source = images * source_image_bytes(config, a, run_rows);
  if (a.pass != Pass::kWgrad) return source + kBandedBarrierBytes;
  const int64_t target = images * target_image_bytes(config, a, run_rows);
  return kBandedBarriersBytes + std::max(kWarps * (source + target), config.sums_bytes());
}

int64_t block_warps(const DepthwiseBandedConfig& config, const ConvProblem& a) {
  if (config.any_rows() || a.pass == Pass::kWgrad) return kWarps;
  return config.staged() ? near_tiles(config, a) : 1;
}

// Of an SM, at once.
double resident_warps(const DepthwiseBandedConfig& config, const ConvProblem& a, int64_t run_rows,
                      const DeviceSpec& device) {
  if (!config.staged()) return config.warps;
  const int64_t warps = block_warps(config, a);
  const int64_t fit = device.smem_optin_bytes / (smem_bytes(config, a, run_rows) + kReservedSmemBytes);
  return double(warps) * double(std::clamp<int64_t>(std::min(config.warps / warps, fit), 1, kMostBlocks));
}

int64_t runs_of(const ConvProblem& problem, int64_t run_rows) {
  return std::max<int64_t>(1, ceil_div(target_side(problem).h, run_rows));
}

// Rows of the source that all runs see, without those outside the image.
double rows_of_runs(const DepthwiseBandedConfig& config, const ConvProblem& a, int64_t run_rows) {
  const DepthwiseConfig rows = config.rows();
  const int64_t runs = runs_of(a, run_rows), last = std::max<int64_t>(1, target_side(a).h) - (runs - 1) * run_rows;
  const int64_t first = rows.first(static_cast<int32_t>(padding_of(config, a.pass, a.padding.h, a.r)));
  const int64_t step = config.transposed() ? 1 : config.stride, over = config.transposed() ? config.stride : 1;
  const int64_t seen = rows.seen(static_cast<int32_t>(last));
  const int64_t end = first + (runs - 1) * run_rows / over * step + seen;
  const int64_t all = (runs - 1) * rows.seen(static_cast<int32_t>(run_rows)) + seen;
  return static_cast<double>(
      std::max(runs, all - std::max<int64_t>(0, -first) - std::max<int64_t>(0, end - source_side(a).h)));
}

double row_instructions(const DepthwiseBandedConfig& config, const ConvProblem& a, int32_t run_rows) {
  const double seen = run_rows + double(a.r) - 1;
  const double rows_a_product = config.any_rows() ? double(run_rows) * double(a.r) / seen : config.rows().slots();
  const double products = rows_a_product * std::max(1, config.words() / 2) * (config.any_rows() ? kAnyRowsProduct : 1);
  return kWord * config.words() / config.word() + (a.pass == Pass::kWgrad ? kWgradProduct : kProduct) * products + kRow;
}

// Runs of rows to choose from, the longest ones first.
template <typename Consider>
void each_run(const DepthwiseBandedConfig& config, const ConvProblem& a, const DeviceSpec& device,
              const Consider& consider) {
  const int64_t rows = std::max<int64_t>(1, target_side(a).h);
  int64_t last = 0;
  for (int64_t parts = 1; parts <= rows; parts += parts < kFewParts ? 1 : parts) {
    const int64_t run = round_up(ceil_div(rows, parts), config.rows().shift());
    if (run != last && smem_bytes(config, a, run) <= device.smem_optin_bytes) consider(static_cast<int32_t>(run));
    last = run;
  }
}

// Short runs see many rows twice, and their warps begin often; few warps leave some SMs idle at the end.
int32_t choose_run(const DepthwiseBandedConfig& config, const ConvProblem& a, const DeviceSpec& device) {
  if (config.any_rows()) return kBandedRows;
  const double tiles = double(tiles_of_run(config, a)) * double(target_channels(a));
  const double bytes = (config.transposed() ? kTransposedMemory : 1) * compulsory_bytes(a);
  auto best = static_cast<int32_t>(std::max<int64_t>(1, target_side(a).h));
  double least = 0;
  each_run(config, a, device, [&](int32_t run) {
    const double runs = double(runs_of(a, run)), resident = resident_warps(config, a, run, device);
    const double rounds = std::max(1., tiles * runs) / (resident * device.sm_count);
    const double waits = std::max(1., kEnoughWarps / resident) * (1 + kIdleAtEnd / rounds);
    const double rows = rows_of_runs(config, a, run) + kStartRows * runs;
    const double lone = kLone * (double(config.rows().seen(run)) + kStartRows);
    const double clocks =
        std::max(kRun * tiles * rows / (4.0 * device.sm_count), lone) * row_instructions(config, a, run);
    const double time = time_us({.clocks = clocks, .bytes = waits * bytes, .shown = kRunShown, .fades = true}, device);
    if (least == 0 || time < least) least = time, best = run;
  });
  return best;
}

// Of the weight gradient's filter, each some rows of it.
int64_t parts_of(const DepthwiseBandedConfig& config, const ConvProblem& problem) {
  return config.kind == DepthwiseKind::kWeights ? ceil_div(problem.r, config.taps) : 1;
}

// Weight gradient: slices of a filter's tiles, and the rows of those. Blocks of a round go through theirs at once.
struct Slicing {
  DepthwiseBandedTiling tiling;
  int64_t slices = 1;
};
Slicing choose_slicing(const DepthwiseBandedConfig& config, const ConvProblem& a, const DeviceSpec& device) {
  const double blocks = double(a.k) * double(parts_of(config, a));
  const int64_t sums = std::max<int64_t>(1, a.k * a.r * a.s);
  Slicing best{{static_cast<int32_t>(std::max<int64_t>(1, target_side(a).h))}};
  double fastest = 0;
  each_run(config, a, device, [&](int32_t run) {
    const int64_t runs = runs_of(a, run), tiles = tiles_of_run(config, a) * runs;
    const int64_t most = std::max<int64_t>(1, std::min(tiles, kMaxWorkspaceBytes / (4 * sums)));
    const int64_t least = std::max<int64_t>(1, std::min(most, ceil_div(tiles * run, kMostRowsOfWarp * kWarps)));
    const double resident = resident_warps(config, a, run, device) / kWarps * device.sm_count;
    const double rows = rows_of_runs(config, a, run) / double(runs) + kTileRows;
    for (int64_t slices = least; slices <= std::min(most, least + kMostSlices); ++slices) {
      const double shares = blocks * double(slices) / resident;
      const double rounds = (1 - kEvenRounds) * std::ceil(shares) + kEvenRounds * std::max(1., shares);
      if (fastest > 0 && rounds * (rows + kBlockRows) >= fastest) break;  // as are those of more slices
      const int64_t own_tiles = ceil_div(ceil_div(tiles, slices), kWarps);
      if (own_tiles * run > kMostRowsOfWarp && slices < most) continue;
      const double reduce = slices > 1 ? kReduceRows + kSliceRows * static_cast<double>(slices) : 0;
      const double time = rounds * (static_cast<double>(own_tiles) * rows + kBlockRows) + reduce;
      if (fastest > 0 && time >= fastest) continue;
      fastest = time, best = {{run}, slices};
    }
  });
  return best;
}

Slicing choose_tiling(const DepthwiseBandedConfig& config, const ConvProblem& a, const DeviceSpec& device) {
  if (a.pass == Pass::kWgrad) return choose_slicing(config, a, device);
  return {{choose_run(config, a, device)}};
}

const char* why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const DepthwiseBandedConfig& config = entry.config.as<DepthwiseBandedConfig>();
  if (config.staged() && device.arch != 90) return "needs compute capability 9.0";
  if (problem.c_per_group() != 1) return "is for groups of one input channel";
  if (problem.pass == Pass::kDgrad && problem.k_per_group() != 1) return "is for groups of one filter";
  if (problem.dilation != kUnitStep) return "takes no dilation";
  if (problem.stride != Pair{config.stride, config.stride}) return "is compiled for another stride";
  // One more row is the least that is compiled, a smaller filter takes the smallest kernel.
  const bool other = problem.r > config.taps || (problem.r < config.taps - 1 && config.taps > 3);
  if (other && !config.any_rows() && config.kind != DepthwiseKind::kWeights) return "is compiled for another filter";
  if (config.kind == DepthwiseKind::kWeights && config.steps == config.stride && config.taps > 3 &&
      problem.r <= config.taps / 2) {
    return "is compiled for more rows of taps";
  }
  if (config.transposed()) {
    if (problem.r != config.taps || problem.s % 2 == 0) return "takes filters of odd extents alone";
    for (const auto [padding, taps] : {Pair{problem.padding.h, problem.r}, Pair{problem.padding.w, problem.s}}) {
      if (padding % config.stride != (taps - 1) / 2 % config.stride) {
        return "is compiled for another padding modulo the stride";
      }
    }
  }
  const auto padding = [&](int64_t of, int64_t taps) { return padding_of(config, problem.pass, of, taps); };
  if (padding(problem.padding.h, problem.r) < 0 || padding(problem.padding.h, problem.r) >= problem.r) {
    return "leaves rows of padding out: needs fewer than the filter has";
  }
  for (const int64_t extent :
       {problem.n, problem.c, problem.k, problem.h + 2 * problem.padding.h, problem.w + 2 * problem.padding.w,
        problem.stride.h, problem.stride.w, problem.r * problem.s}) {
    if (extent >= kMaxExtent) return "counts with 32 bits: extents stay below 2^29";
  }
  if (window_of(config, problem).size > config.window()) return "multiplies by fewer columns of the filter";
  if (config.filter_bytes(problem.r) > kMostFilterBytes) return "has no room for so many rows of taps";
  const Side from = source_side(problem), to = target_side(problem);
  const int64_t channels = target_channels(problem);
  const int64_t source_channels = problem.pass == Pass::kDgrad ? problem.k : problem.c;
  if ((from.stride.w != 1 && from.w > 1) || (to.stride.w != 1 && to.w > 1))
    return "reads rows of columns that lie side by side";
  if (!aligned(from, problem, source_channels, config.word()) || !aligned(to, problem, channels, config.word())) {
    return "reads words: needs aligned rows of even length";
  }
  if (config.staged() && !planes_copyable(from, source_channels, problem.dtype)) {
    return "copies rows at once: needs planes without gaps, all or each a multiple of 16 bytes";
  }
  const bool wgrad = problem.pass == Pass::kWgrad;
  if (config.staged() && wgrad && !planes_copyable(to, channels, problem.dtype)) {
    return "copies rows at once: needs planes of the output's gradient without gaps";
  }
  // A warp of the weight gradient has its rows alone.
  if (config.staged() && row_blocks(config, problem) > kBandedTile * (wgrad ? 1 : kBandedMostWarps)) {
    return "has room for fewer columns";
  }
  // A lane's distance from its tile's begin has 32 bits.
  const double images = double(ceil_div(kBandedTile, row_blocks(config, problem)));
  for (const Side& side : {from, to}) {
    if (2 * (images * double(side.stride.n) + double(side.w + problem.padding.w) + config.window()) > UINT32_MAX) {
      return "counts with 32 bits: images lie too far apart";
    }
  }
  const int32_t run_rows = choose_tiling(config, problem, device).tiling.run_rows;
  if (config.staged() && smem_bytes(config, problem, run_rows) > device.smem_optin_bytes) {
    return "has no room for the rows that one of the target sees";
  }
  const double blocks = double(tiles_of_run(config, problem)) * double(runs_of(problem, run_rows)) * double(channels);
  if (blocks * double(parts_of(config, problem)) > INT32_MAX / 2 ||
      double(problem.n) * double(row_blocks(config, problem)) > INT32_MAX / 2) {
    return "would need more blocks than a grid has";
  }
  return nullptr;
}

}  // namespace

Offer depthwise_banded_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem, device)) return reason;
  const DepthwiseBandedConfig& config = entry.config.as<DepthwiseBandedConfig>();
  const DepthwiseConfig rows = config.rows();
  Plan plan;
  plan.kernel = &entry;
  const auto [tiling, slices] = choose_tiling(config, problem, device);
  plan.tiling = tiling;
  const int32_t run_rows = plan.tiling.as<DepthwiseBandedTiling>().run_rows;
  const int64_t warps = block_warps(config, problem);
  plan.block_threads = static_cast<int32_t>(32 * warps);
  plan.smem_bytes = static_cast<int32_t>(smem_bytes(config, problem, run_rows));
  const int64_t channels = target_channels(problem);
  const int64_t tiles = tiles_of_run(config, problem) * runs_of(problem, run_rows);
  const int64_t parts = parts_of(config, problem);
  if (problem.pass == Pass::kWgrad) {
    // Rounding a slice's tiles up can leave the last ones empty.
    plan.split = std::max<int64_t>(1, ceil_div(tiles, std::max<int64_t>(1, ceil_div(tiles, slices))));
    plan.workspace_bytes = plan.split > 1 ? 4 * plan.split * problem.k * problem.r * problem.s : 0;
    plan.grid = channels * plan.split * parts;
  } else {
    plan.grid = channels * ceil_div(tiles, warps);
  }
  const double seen = config.any_rows() ? run_rows + double(problem.r) - 1 : rows.seen(run_rows);
  const double all_rows = double(channels) * double(tiles) * double(parts) * seen;
  const bool wgrad = problem.pass == Pass::kWgrad, staged = config.staged(), single = config.word() == 1;
  const double waits = config.any_rows() ? kAnyRowsWaits : wgrad ? kWgradWaits : kWaits;
  const double cycles = std::max(waits * all_rows * row_instructions(config, problem, run_rows) / 4.0,
                                 kLeastRun * double(channels) * double(tiles) * double(parts)) /
                        device.sm_count;
  const double unused = config.taps > problem.r ? kUnusedTaps : 1;
  const double strided = wgrad && config.stride > 1
                             ? unused * double(rows.seen(run_rows)) / double(config.stride * run_rows)
                         : config.transposed() ? kTransposed
                                               : kMemory;
  const double moved = staged ? (wgrad ? kStagedWgrad : kStaged) : strided;
  const bool narrow = row_bytes(wgrad ? source_side(problem) : target_side(problem)) <= kSectorBytes;
  double more = wgrad && single ? kSingleWgrad : 1;
  if (narrow && wgrad && !staged) more *= kNarrowWgrad;
  if (narrow && single && !wgrad) more = staged ? kNarrowSingleStaged : kNarrowSingle;
  const double bytes = compulsory_bytes(problem) + 2.0 * static_cast<double>(plan.workspace_bytes);
  plan.cost_us = kLaunchUs * (plan.split > 1 ? 2 : 1) +
                 more * time_us({.clocks = cost::depthwise::kInstruction * cycles, .bytes = moved * bytes}, device);
  return plan;
}

DepthwiseBandedParams depthwise_banded_params(const Plan& plan, const ConvProblem& problem) {
  const DepthwiseBandedConfig& config = plan.kernel->config.as<DepthwiseBandedConfig>();
  const DepthwiseConfig rows = config.rows();
  const Side from = source_side(problem), to = target_side(problem);
  const Window window = window_of(config, problem);
  DepthwiseBandedParams params{};
  params.source_strides = from.stride, params.target_strides = to.stride, params.filter_strides = problem.w_strides;
  params.source_row_bytes = 2 * from.stride.h, params.target_row_bytes = 2 * to.stride.h;
  params.source_h = static_cast<int32_t>(from.h), params.source_w = static_cast<int32_t>(from.w);
  params.target_h = static_cast<int32_t>(to.h), params.target_w = static_cast<int32_t>(to.w);
  params.padding_h = static_cast<int32_t>(padding_of(config, problem.pass, problem.padding.h, problem.r));
  params.padding_w = static_cast<int32_t>(padding_of(config, problem.pass, problem.padding.w, problem.s));
  params.taps_h = static_cast<int32_t>(problem.r), params.taps_w = static_cast<int32_t>(problem.s);
  params.first_h = rows.first(params.padding_h);
  params.first_w = window.first;
  DepthwiseConfig columns = rows;
  columns.taps = params.taps_w;
  params.first_tap =
      config.transposed() ? columns.phase() + config.stride * (columns.before() + window.lead) : -window.lead;
  params.run_rows = plan.tiling.as<DepthwiseBandedTiling>().run_rows;
  params.channels = static_cast<int32_t>(target_channels(problem));
  params.blocks = static_cast<int32_t>(problem.n * row_blocks(config, problem));
  params.by_blocks = FastDivmod(row_blocks(config, problem));
  const int64_t runs = runs_of(problem, params.run_rows), tiles = std::max<int64_t>(1, tiles_of_run(config, problem));
  params.by_near = FastDivmod(near_tiles(config, problem));
  params.by_runs = FastDivmod(runs);
  params.by_channels = FastDivmod(std::max(params.channels, 1));
  params.by_filters = FastDivmod(problem.pass == Pass::kDgrad ? 1 : std::max<int64_t>(1, problem.k_per_group()));
  params.tiles = static_cast<int32_t>(runs * tiles);
  params.slice_tiles = static_cast<int32_t>(ceil_div(params.tiles, plan.split));
  params.by_slices = FastDivmod(plan.split);
  params.by_parts = FastDivmod(parts_of(config, problem));
  if (config.staged()) {
    params.source_row_bytes = row_bytes(from);
    if (problem.pass == Pass::kWgrad) {
      params.target_row_bytes = row_bytes(to);
      params.target_image_bytes = static_cast<int32_t>(target_image_bytes(config, problem, params.run_rows));
    }
    params.images = static_cast<int32_t>(problem.n);
    params.tile_images = static_cast<int32_t>(tile_images(config, problem));
    params.image_bytes = static_cast<int32_t>(source_image_bytes(config, problem, params.run_rows));
  }
  return params;
}

}  // namespace fastconv
