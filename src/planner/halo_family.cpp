#include "fastconv/planner/halo_family.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <numeric>

#include "fastconv/core/integers.h"
#include "fastconv/planner/copies.h"
#include "fastconv/planner/cost_model.h"
#include "fastconv/planner/fold.h"
#include "fastconv/planner/reorder.h"
#include "fastconv/planner/sides.h"

namespace fastconv {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxStride = 1 << 12;  // a tile that begins inside and ends outside has 32-bit coordinates
constexpr int64_t kMaxHaloPixels = 1 << 20;
constexpr int64_t kMaxTiles = 1 << 29;
constexpr int64_t kBlock = 64;  // pixels of an M-block

// The runs of each output phase along one dimension.
struct Axis {
  int phases;
  int end[kMaxPhases];
  Run run[kMaxTapGroups];

  int begin(int phase) const { return phase == 0 ? 0 : end[phase - 1]; }
  int runs() const { return end[phases - 1]; }
  int64_t taps() const {
    return std::accumulate(run, run + runs(), int64_t{0}, [](int64_t sum, const Run& r) { return sum + r.count; });
  }
};

bool fprop_axis(int64_t taps, int64_t pad, int64_t dilation, int64_t stride, Axis& axis) {
  const int64_t runs = std::min(tap_period(dilation, stride), taps);
  if (runs > kMaxTapGroups) return false;
  for (int64_t r = 0; r < runs; ++r) axis.run[r] = forward_run(r, taps, pad, dilation, stride);
  axis.phases = 1;
  axis.end[0] = static_cast<int>(runs);
  return true;
}

// Output row stride * i + phase of dx receives dy row i + (phase + pad - r * dilation) / stride where that is whole.
bool dgrad_axis(int64_t taps, int64_t pad, int64_t dilation, int64_t stride, int64_t outputs, Axis& axis) {
  const int64_t common = std::gcd(dilation, stride), period = stride / common;
  const int64_t phases = std::min(stride, outputs);
  if (phases > kMaxPhases) return false;
  int runs = 0;
  for (int64_t phase = 0; phase < phases; ++phase) {
    for (int64_t r = 0; r < std::min(period, taps); ++r) {
      if ((phase + pad - r * dilation) % stride != 0) continue;
      const int64_t count = ceil_div(taps - r, period), last = r + (count - 1) * period;
      axis.run[runs++] = {(phase + pad - last * dilation) / stride, count, dilation / common, last, -period};
      break;
    }
    axis.end[phase] = runs;
  }
  axis.phases = static_cast<int>(phases);
  return true;
}

// Which tensors pass through the workspace.
struct Reordering {
  bool in = false, out = false;
};

// What is computed, freed of its pass.
struct Work {
  Side in, out;  // as the products meet them
  Reordering reordering;
  Side in_planes, out_planes;  // as they are in memory
  Fold fold;                   // of the input, for HaloStaging::kFolded
  Pair in_step, out_step;
  int64_t groups;
  Axis h, w;
  int64_t taps;        // of all phases
  int64_t rows, cols;  // of the largest phase

  int phases() const { return h.phases * w.phases; }
};

void sides(const ConvProblem& p, Side& in, Side& out) {
  in = input_side(p), out = output_side(p);
  if (p.pass == Pass::kDgrad) std::swap(in, out);
}

// False if there are more phases or planes than the kernels' tables have room for.
bool make_work(const ConvProblem& p, HaloStaging staging, Reordering reordering, Work& work) {
  sides(p, work.in, work.out);
  work.reordering = reordering, work.in_planes = work.in, work.out_planes = work.out;
  if (reordering.in) work.in = reordered(work.in, p.groups);
  if (reordering.out) work.out = reordered(work.out, p.groups);
  if (is_pointwise(p)) flatten(work.in, work.out);
  work.groups = p.groups;
  if (staging == HaloStaging::kFolded) {
    const Fold& fold = work.fold = make_fold(p);
    work.in = folded(work.in, fold);
    work.in_step = work.out_step = kUnitStep;
    if (!fprop_axis(folded_taps(fold.h), folded_padding(fold.h, p.padding.h), 1, 1, work.h) ||
        !fprop_axis(folded_taps(fold.w), folded_padding(fold.w, p.padding.w), 1, 1, work.w)) {
      return false;
    }
  } else if (p.pass == Pass::kFprop) {
    work.in_step = p.stride, work.out_step = {1, 1};
    if (!fprop_axis(p.r, p.padding.h, p.dilation.h, p.stride.h, work.h) ||
        !fprop_axis(p.s, p.padding.w, p.dilation.w, p.stride.w, work.w)) {
      return false;
    }
  } else {
    work.in_step = {1, 1}, work.out_step = p.stride;
    if (!dgrad_axis(p.r, p.padding.h, p.dilation.h, p.stride.h, p.h, work.h) ||
        !dgrad_axis(p.s, p.padding.w, p.dilation.w, p.stride.w, p.w, work.w)) {
      return false;
    }
  }
  work.taps = work.h.taps() * work.w.taps();
  work.rows = ceil_div(work.out.h, work.out_step.h), work.cols = ceil_div(work.out.w, work.out_step.w);
  return work.phases() <= kMaxPhases;
}

// Whether every run of filter columns can be multiplied side by side.
bool takes_columns(const Work& work, const HaloConfig& config) {
  return std::all_of(work.w.run, work.w.run + work.w.runs(), [&](const Run& run) {
    return run.count % config.columns == 0 && (config.columns - 1) * run.step <= 7;
  });
}

// Strides that a dimension of one element never uses need not be multiples of anything.
bool pixels_divisible(const Side& side, int64_t by) {
  return (side.n == 1 || side.stride.n % by == 0) && (side.h == 1 || side.stride.h % by == 0) &&
         (side.w == 1 || side.stride.w % by == 0);
}
bool planes_divisible(const Side& side, int64_t groups, int64_t by) {
  return (side.n == 1 || side.stride.n % by == 0) && (side.h == 1 || side.stride.h % by == 0) &&
         (side.c * groups == 1 || side.stride.c % by == 0);
}

bool tma_can_stage(const Side& in, int64_t groups, Pair in_step) {
  return in.stride.c == 1 && in.align >= 16 && copies(in.n, in.stride.n) && copies(in.h, in.stride.h) &&
         copies(in.w, in.stride.w) && (groups == 1 || in.c % 8 == 0) && in_step.h <= 8 && in_step.w <= 8;
}

// A filter with contiguous channels needs no packing.
bool tma_can_load_filter(const ConvProblem& p) {
  const Strides& w = p.w_strides;
  return w.c == 1 && p.w_align >= 16 && copies(p.k, w.n) && copies(p.r, w.h) && copies(p.s, w.w);
}

int64_t plane_phases(const Side& in, int64_t groups) { return address_phases(in.c * groups, in.stride.c); }

// Contiguous images. The copy engine is slow to write the zeros of channels that do not exist.
bool planes_can_stage(const Side& in, int64_t groups, Pair in_step) {
  const int64_t phases = plane_phases(in, groups);
  return in.c > 8 && phases <= (in.c > 16 ? 8 : 4) && in.stride.w == 1 && (in.h == 1 || in.stride.h == in.w) &&
         in.align >= 16 && in.h * in.w < kMaxExtent && copies(2, in.stride.c * phases) &&
         copies(groups, in.stride.c * in.c) && copies(in.n, in.stride.n) &&
         std::has_single_bit(static_cast<uint64_t>(in_step.w));
}

HaloStaging best_staging(const ConvProblem& problem, const Side& in, Pair in_step) {
  const int64_t groups = problem.groups;
  if (tma_can_stage(in, groups, in_step)) return HaloStaging::kTma;
  if (planes_can_stage(in, groups, in_step)) {
    const bool planes = in.c > 32 && is_pointwise(problem) && in.w >= kBlock && plane_phases(in, groups) == 1;
    return planes ? HaloStaging::kPlanes : HaloStaging::kTransposed;
  }
  // Pairs of pixels that never straddle the end of a row, aligned.
  const bool pairs =
      in.stride.w == 1 && in_step.w == 1 && in.w % 2 == 0 && in.align >= 4 && planes_divisible(in, groups, 2);
  return pairs ? HaloStaging::kPairs : HaloStaging::kPixels;
}

Pair in_step_of(const ConvProblem& problem) { return problem.pass == Pass::kFprop ? problem.stride : kUnitStep; }

// Kernels for contiguous channels write an NCHW input anew as such, and may do so with their output in reverse.
bool reorders_input(const HaloConfig& config, const ConvProblem& problem) {
  Side in, out;
  sides(problem, in, out);
  const Pair step = in_step_of(problem);
  if (!reorders(config.staging) || !reorderable(in, problem.groups)) return false;
  return !tma_can_stage(in, problem.groups, step) && tma_can_stage(reordered(in, problem.groups), problem.groups, step);
}
bool can_reorder_output(const HaloConfig& config, const ConvProblem& problem) {
  Side in, out;
  sides(problem, in, out);
  return reorders(config.staging) && out.stride.c != 1 && out.c % 8 == 0 && reorderable(out, problem.groups);
}

// Along one dimension, under a split of its taps.
struct Reach {
  int64_t groups;  // over all phases
  int64_t extent;  // positions that a halo has beyond the outputs
  int64_t linear;  // positions a row (or image) must have so that a shift by `extent` off its end meets padding: its
                   // own, or the zeros that the next row starts with
};

Reach reach(const Axis& axis, bool split, int64_t outputs, int64_t inputs, int64_t in_step) {
  Reach out{0, 0, outputs};
  for (int i = 0; i < axis.runs(); ++i) {
    const Run& run = axis.run[i];
    out.groups += split ? run.count : 1;
    if (split) continue;
    const int64_t extent = (run.count - 1) * run.step;
    const int64_t lead = run.d >= 0 ? 0 : ceil_div(-run.d, in_step);
    const int64_t inputs_end = ceil_div(inputs - run.d, in_step);
    const int64_t linear =
        run.d >= 0 ? outputs + extent : std::min(outputs + extent, std::max(outputs + extent - lead, inputs_end));
    out.extent = std::max(out.extent, extent);
    out.linear = std::max(out.linear, linear);
  }
  return out;
}

struct Reaches {
  Reach h, w;
  bool aligned;  // halos begin at columns that are multiples of 8, if tiles do
  int64_t groups() const { return h.groups * w.groups; }
};

bool begins_aligned(const Work& work, TapSplit split) {
  for (int i = 0; i < work.w.runs(); ++i) {
    const Run& run = work.w.run[i];
    if (run.d % 8 != 0 || (split == TapSplit::kTaps && run.count > 1 && run.step * work.in_step.w % 8 != 0)) {
      return false;
    }
  }
  return true;
}

Reaches reaches(const Work& work, TapSplit split) {
  return {reach(work.h, split != TapSplit::kNone, work.rows, work.in.h, work.in_step.h),
          reach(work.w, split == TapSplit::kTaps, work.cols, work.in.w, work.in_step.w), begins_aligned(work, split)};
}

struct Store {
  StoreMode mode;
  int pixel_vector;
};

Store store_mode(const Work& work, const HaloConfig& config, bool linear) {
  const Side& out = work.out;
  if (out.stride.c == 1 && out.align >= 16 && out.c % 8 == 0 && pixels_divisible(out, 8))
    return {StoreMode::kChannels, 1};
  if (out.stride.w != 1) return {StoreMode::kElements, 1};
  for (const int vector : {8, 2}) {
    // A strip of columns is an even number of pixels.
    const bool long_runs = !linear && config.columns == 1;
    if ((long_runs || vector == 2) && work.out_step.w == 1 && out.w % vector == 0 && out.align >= 2 * vector &&
        planes_divisible(out, work.groups, vector)) {
      return {StoreMode::kPixels, vector};
    }
  }
  return {StoreMode::kPixels, 1};
}

// Whether rows of pixels do not begin with a sector: they then share one with the row's next tile, or the next row.
bool stores_pieces(const Work& work, Store store) {
  return store.mode == StoreMode::kPixels && (work.out.h > 1 ? work.out.stride.h : work.out.stride.c) % 16 != 0;
}

// Rows of whole, aligned pairs of pixels that follow each other without a gap. A row's first tile is whole: it ends the
// line in which it begins.
bool lines_can_store(const Work& work, const HaloConfig& config) {
  const Side& out = work.out;
  return out.stride.w == 1 && (out.h == 1 || out.stride.h == out.w) && out.w % 2 == 0 && out.align >= 4 &&
         out.w >= kBlock * config.m_blocks && planes_divisible(out, work.groups, 2) && work.phases() == 1 &&
         work.out_step == kUnitStep && work.groups == 1 && out.c <= config.block_k && work.in.c <= config.channels;
}

// A tiling's consequences for a problem.
struct Tiles {
  int64_t pixels;      // of a tile
  int64_t per_filter;  // tiles of one phase, group and filter tile
  int64_t filters;     // filter tiles of a group
  int64_t count;
  int64_t linear_h, linear_w;
  int64_t halo_rows, halo_pitch;
  int64_t c_blocks;
  int64_t steps;  // of all phases: a step is one tap, or a row of them on N, of one channel block
  int64_t pixel_bytes, step_bytes, halo_bytes, halo_stage_bytes;
  RawPlanes raw;

  int64_t raw_bytes() const { return int64_t{raw.stages} * raw.stage_bytes; }
};

// Enough stages for the latency of memory, no more than six warps can take part in.
RawPlanes raw_planes(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Reaches& reaches,
                     const Tiles& tiles) {
  constexpr int64_t kLinearBox = 104;  // short enough that the last of an image wastes little
  RawPlanes raw{};
  if (config.staging != HaloStaging::kTransposed) return raw;
  const Side& in = work.in;
  const int64_t phases = plane_phases(in, work.groups), step = work.in_step.w;
  raw.phases_log2 = std::countr_zero(static_cast<uint64_t>(phases));
  raw.step_log2 = std::countr_zero(static_cast<uint64_t>(step));
  raw.width = FastDivmod(in.w);
  raw.shared = tiling.linear && work.in_step.h == 1;
  const bool aligned =
      phases == 1 && in.w % 8 == 0 && (tiling.linear || (reaches.aligned && tiling.tile_q * step % 8 == 0));
  const int64_t run = raw.shared      ? std::min(tiles.halo_rows, in.h) * in.w
                      : tiling.linear ? in.w
                                      : std::min((tiles.halo_pitch - 1) * step + 1, in.w);
  // Small images whole. Channels that do not exist would be left as they are; a phase's planes lie an odd number of
  // 16-byte chunks apart, so that the eight channels that a block is read from lie in different banks.
  constexpr int64_t kWholeBytes = 26624;
  const int64_t whole_bytes = in.h * in.w * tiles.pixel_bytes;
  const bool spread = in.stride.c == in.h * in.w && in.stride.c * phases / 8 % 2 != 0;
  if (raw.shared && in.c % config.channels == 0 && whole_bytes <= kWholeBytes && spread) {
    raw.whole = true;
    raw.box_w = raw.advance = static_cast<int32_t>(round_up(in.h * in.w + 7, 8));
    raw.stage_bytes = static_cast<int32_t>(round_up(whole_bytes, 128));
    raw.stages = static_cast<int32_t>(std::clamp<int64_t>(ceil_div(24576, raw.stage_bytes), 2, 6));
    return raw;
  }
  const int64_t most = raw.shared ? kLinearBox : kMaxBox - 8, lead = aligned ? 0 : 7;
  // An odd number of chunks here too.
  const int64_t each = std::max<int64_t>(ceil_div(run, ceil_div(run, most - lead)), 2);  // more than the lead takes
  const int64_t box_w = (ceil_div(each + lead, 8) | 1) * 8;
  raw.box_w = static_cast<int32_t>(box_w), raw.advance = static_cast<int32_t>(aligned ? box_w : box_w - 8);
  raw.stage_bytes = static_cast<int32_t>(box_w * tiles.pixel_bytes);
  // A warp has one or two stages of its own. Few filters leave room for them.
  const int32_t room = config.columns > 1 ? 90112 : 43008;
  raw.stages = raw.stage_bytes <= 3072 ? 12 : std::clamp(room / raw.stage_bytes, 3, 6);
  raw.stages -= raw.stages % halo_pipelines(config.lines);
  return raw;
}

// False if something is too large for the kernel's counters or the copy engine.
bool make_tiles(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Reaches& reaches,
                Tiles& out) {
  if (reaches.groups() > kMaxTapGroups) return false;
  const Side& in = work.in;
  out.pixel_bytes = config.channels * 2;
  out.pixels = kBlock * config.m_blocks * (tiling.turns ? 1 : 2);
  out.linear_h = out.linear_w = 1;
  if (tiling.linear) {
    out.linear_h = reaches.h.linear;
    // Rows start at multiples of 128 bytes, and no pair of pixels that is stored together straddles them.
    out.linear_w = round_up(reaches.w.linear,
                            std::max<int64_t>(128 / out.pixel_bytes, store_mode(work, config, true).pixel_vector));
    const double positions =
        static_cast<double>(in.n) * static_cast<double>(out.linear_h) * static_cast<double>(out.linear_w);
    if (positions + static_cast<double>(out.pixels) > kInt32Max) return false;
    out.per_filter =
        in.n == 0 ? 0 : ceil_div(((in.n - 1) * out.linear_h + work.rows - 1) * out.linear_w + work.cols, out.pixels);
    out.halo_pitch = out.linear_w;
    out.halo_rows =
        (out.linear_w - 1 + out.pixels - 1 + reaches.h.extent * out.linear_w + reaches.w.extent) / out.linear_w + 1;
  } else {
    out.per_filter = in.n * ceil_div(work.rows, tiling.tile_p) * ceil_div(work.cols, tiling.tile_q);
    out.halo_pitch = tiling.tile_q + reaches.w.extent;
    out.halo_rows = tiling.tile_p + reaches.h.extent;
  }
  if (out.halo_rows * out.halo_pitch > kMaxHaloPixels) return false;
  if (config.staging == HaloStaging::kTma) {
    const int64_t load_rows = tiling.linear ? 1 : out.halo_rows;
    if ((out.halo_pitch - 1) * work.in_step.w >= kMaxBox || (load_rows - 1) * work.in_step.h >= kMaxBox) return false;
  }
  out.filters = ceil_div(work.out.c, config.block_k);
  out.count = out.per_filter;
  for (const int64_t factor : {out.filters, int64_t{work.phases()}, work.groups}) {
    if (out.count > kMaxTiles) return false;
    out.count *= factor;
  }
  out.c_blocks = ceil_div(in.c, config.channels);
  out.steps = work.taps / config.columns * out.c_blocks;
  if (out.count > kMaxTiles || out.steps > kInt32Max) return false;
  out.step_bytes = config.n() * out.pixel_bytes;
  out.halo_bytes = out.halo_rows * out.halo_pitch * out.pixel_bytes;
  out.halo_stage_bytes = round_up(out.halo_bytes, kHaloAlignment);
  out.raw = raw_planes(work, config, tiling, reaches, out);
  return true;
}

// False if no stages fit.
bool choose_stages(const Work& work, const HaloConfig& config, const Tiles& tiles, int64_t smem_bytes,
                   HaloTiling& tiling) {
  const int64_t room = smem_bytes - halo_fixed_bytes(config) - tiles.raw_bytes();
  const int64_t halo = tiles.halo_stage_bytes, step = tiles.step_bytes;
  // A folded halo is given away when the next one is on its way, and free again when the next one is in use.
  const int64_t least = config.staging == HaloStaging::kFolded ? 3 : 2;
  tiling.filter_resident = tiles.filters == 1 && work.groups == 1 && tiles.steps > 0 &&
                           tiles.steps + 4 + tiles.raw.stages <= kMaxHaloStages &&
                           tiles.steps * step + least * halo <= room;
  int64_t halo_stages, filter_stages;
  if (tiling.filter_resident) {
    filter_stages = tiles.steps;
    halo_stages = std::min<int64_t>(4, (room - tiles.steps * step) / halo);
    halo_stages -= halo_stages % halo_pipelines(config.lines);
  } else {
    // Enough filter stages to cover the latency of L2 come first, a third halo stage after that.
    const int64_t want = std::max<int64_t>(4, ceil_div(49152, step));
    halo_stages = std::clamp<int64_t>((room - want * step) / halo, least, 4);
    filter_stages = std::min<int64_t>(24, (room - halo_stages * halo) / step);
    if (filter_stages < 3) return false;
  }
  tiling.halo_stages = static_cast<int16_t>(halo_stages), tiling.filter_stages = static_cast<int16_t>(filter_stages);
  if (config.lines) return tiling.filter_resident;
  // In turns, filters come from L2 twice as often.
  return !tiling.turns || tiling.filter_resident || config.block_k <= 128;
}

// Of all images, when runs of `run_rows` are handed out to the consumer warpgroups of all blocks.
int64_t rows_of_busiest(const Work& work, int64_t run_rows, int sm_count) {
  return ceil_div(ceil_div(work.in.n * work.rows, run_rows), 2 * sm_count) * run_rows;
}

// Even shares, few lines that runs share.
int16_t choose_run_rows(const Work& work, int sm_count) {
  constexpr int kMost = 64;
  constexpr double kSharedLines = .1;  // rows that storing the ends of a run takes
  int best = 1;
  auto cost = [&](int rows) {
    return static_cast<double>(rows_of_busiest(work, rows, sm_count)) * (1 + kSharedLines / rows);
  };
  for (int rows = 2; rows <= kMost; ++rows) {
    if (cost(rows) < cost(best)) best = rows;
  }
  return static_cast<int16_t>(best);
}

// The workspace: the packed filter, then tensors as rows of pixels.
struct Workspace {
  int64_t packed, in, out;  // bytes

  int64_t in_offset() const { return round_up(packed, 128); }
  int64_t out_offset() const { return in_offset() + in; }
  int64_t bytes() const { return out_offset() + out; }
};

// Of all filter tiles.
int64_t pack_rows(const Work& work, const HaloConfig& config, const Tiles& tiles) {
  return work.groups * tiles.filters * config.block_k;
}

int64_t packed_filter_bytes(const Work& work, const ConvProblem& problem, const HaloConfig& config,
                            const Tiles& tiles) {
  constexpr int64_t kNoWorkspace = int64_t{1} << 50;
  if (config.staging != HaloStaging::kFolded && problem.r * problem.s > kMaxPackTaps) return kNoWorkspace;
  const int64_t pieces = pack_rows(work, config, tiles) * tiles.c_blocks;  // at most
  return pieces > kInt32Max ? kNoWorkspace : work.groups * tiles.filters * tiles.steps * tiles.step_bytes;
}

// As it is, and so with channels in their order.
bool reads_filter_directly(const Work& work, const HaloConfig& config, const ConvProblem& problem) {
  if (config.columns > 1) return false;
  if (config.staging == HaloStaging::kTransposed && plane_phases(work.in, work.groups) > 1) return false;
  if (config.staging == HaloStaging::kFolded) return false;
  return (config.filter == FilterTile::kNMajor || problem.pass == Pass::kFprop) && tma_can_load_filter(problem);
}

Workspace workspace_of(const Work& work, const HaloConfig& config, const ConvProblem& problem, const Tiles& tiles) {
  return {reads_filter_directly(work, config, problem) ? 0 : packed_filter_bytes(work, problem, config, tiles),
          work.reordering.in ? reordered_bytes(work.in_planes, work.groups) : 0,
          work.reordering.out ? reordered_bytes(work.out_planes, work.groups) : 0};
}

// Loads of a staging thread that cover a halo row.
int64_t stage_row_units(HaloStaging staging, int64_t halo_pitch) {
  return staging == HaloStaging::kPairs ? halo_pitch / 2 + 1 : halo_pitch;
}

// Whether the ring of filter stages is too short to cover the latency of L2 at all times.
bool short_of_filters(const HaloTiling& tiling, const Tiles& tiles) {
  return !tiling.filter_resident && tiling.filter_stages * tiles.step_bytes <= 65536;
}

// Bytes a clock of a multiprocessor. Rows of pixels: what matters is how many bytes a warpgroup writes to a row at
// once, and that pieces of a sector are written together, or at least while L2 still has the rest.
double store_rate(const Work& work, const HaloConfig& config, const HaloTiling& tiling, Store store) {
  if (config.lines) return 12;
  if (store.mode == StoreMode::kElements) return 5;
  if (work.out_step.w > 1 && store.mode == StoreMode::kPixels) return 3;
  if (store.mode == StoreMode::kChannels) return 40;
  const bool narrow = tiling.block_w_log2 == 3;
  const int across = tiling.linear ? config.m_blocks : std::min(config.m_blocks, 1 << tiling.across_log2);
  const double run = 2. * across * (narrow ? 8 : 64);
  double rate = std::min(40., run / 2);
  if (stores_pieces(work, store)) {
    constexpr double kSmallOutput = 2e7;  // elements
    const bool small =
        static_cast<double>(work.out.n * work.out.h * work.out.w) * static_cast<double>(work.out.c * work.groups) <
        kSmallOutput;
    rate = narrow ? run / (small ? 10 : 25) : std::min(16., run / (small ? 11 : 16));
  }
  if (store.pixel_vector == 1 || tiling.linear) rate = std::min(store.pixel_vector == 1 ? 10. : 16., rate);
  return tiling.turns && stores_pieces(work, store) ? rate / 2 : rate;
}

// Copies of raw planes that an average halo takes.
double raw_copies(const Work& work, const HaloTiling& tiling, const Tiles& tiles) {
  const auto rows = static_cast<double>(tiles.halo_rows);
  const auto row =
      static_cast<double>(tiling.linear ? work.in.w : std::min((tiles.halo_pitch - 1) * work.in_step.w + 1, work.in.w));
  if (!tiles.raw.shared) return rows * std::ceil(row / tiles.raw.advance);
  const double images = 1 + rows / static_cast<double>(tiles.linear_h);
  return tiles.raw.whole ? images : rows * row / tiles.raw.advance + images / 2;
}

// Clocks that staging takes of the warps and the copy engine, a halo.
double staging_clocks(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles) {
  constexpr double kBytesPerClock[] = {40, 0, 40, 4.6, 4, 3};  // by HaloStaging
  if (config.staging != HaloStaging::kTransposed) {
    return static_cast<double>(tiles.halo_bytes) / kBytesPerClock[static_cast<int>(config.staging)];
  }
  // A row that one warp turns waits for its copy; columns that a stride leaves out are only loaded. What all warps
  // share makes them wait for each other and look up where pixels go.
  const double bytes = tiles.raw.stage_bytes, left_out = tiles.raw.step_log2 == 0 || tiling.linear ? 1 : .7;
  const double copy = tiles.raw.shared ? 900 + bytes / 60 : std::max(330., left_out * (230 + bytes / 21));
  return (work.taps == 1 ? 1.4 : 1) * copy * raw_copies(work, tiling, tiles);
}

// Clocks of an average tile, times tiles of the busiest multiprocessor. Rates measured on an H200.
double cost_us(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles,
               const Reaches& reaches, Store store, int64_t packed_bytes, double bytes, int sm_count) {
  constexpr double kClocksPerUs = 1755;
  constexpr double kLoadBytesPerClock = 40;
  constexpr double kFixedClocks = 6000;  // launch, first loads, last store
  constexpr double kPackUs = .8, kWaitUs = 1.8, kPackBytesPerUs = 1.4e6;
  const double phases = work.phases();
  const double steps = static_cast<double>(tiles.steps) / phases;
  const double halos = static_cast<double>(reaches.groups()) / phases * static_cast<double>(tiles.c_blocks);
  const double wgmmas = steps * (config.channels / 16) * config.m_blocks * (tiling.turns ? 1 : 2);
  const double halo_load = halos * static_cast<double>(tiles.halo_bytes);
  const double filter_load = tiling.filter_resident ? 0. : steps * static_cast<double>(tiles.step_bytes);
  const double out_bytes = 2. * static_cast<double>(tiles.pixels * config.block_k);
  const double mma = wgmmas * config.n() / 2. / .95;
  const double raw_load =
      config.staging == HaloStaging::kTransposed ? halos * raw_copies(work, tiling, tiles) * tiles.raw.stage_bytes : 0;
  const double smem = (wgmmas * (64 + config.n()) * 32 + halo_load + filter_load + 2 * raw_load + 2 * out_bytes) / 128;
  const double staging = halos * staging_clocks(work, config, tiling, tiles);
  const double load = std::max((halo_load + filter_load + raw_load) / kLoadBytesPerClock, staging);
  const double epilogue = out_bytes / store_rate(work, config, tiling, store) + 300;
  // Warps that stage and products compete for shared memory.
  const bool by_warps = staged_by_warps(config.staging);
  const double body =
      std::max({mma, smem, load}) + (by_warps ? .15 * std::min(mma, staging) : 0) + (tiles.raw.whole ? 900 * halos : 0);
  const double tile = tiling.turns ? std::max({body + 100, epilogue, (body + epilogue + 500) / 2}) : body + epilogue;
  const auto waves = static_cast<double>(config.lines ? 2 * rows_of_busiest(work, tiling.run_rows, sm_count) *
                                                            ceil_div(work.cols, tiling.tile_q)
                                                      : ceil_div(tiles.count, sm_count));
  // What the model does not see, measured: short rings, linear tiles and long runs of pixels each lose a little,
  // filters that do not exist as well; staging warps lose more where they cannot run ahead.
  const double idle = 1 - static_cast<double>(work.out.c) / static_cast<double>(tiles.filters * config.block_k);
  const bool by_threads = config.staging == HaloStaging::kPairs || config.staging == HaloStaging::kPixels;
  const double rough = !by_threads ? 1 +
                                         (config.staging != HaloStaging::kTransposed ? .02
                                          : tiling.linear                            ? .06
                                                                                     : .08) *
                                             (tiling.halo_stages == 2) +
                                         .02 * short_of_filters(tiling, tiles) + .01 * tiling.linear +
                                         .05 * ((tiling.linear || config.columns > 1) && tiling.turns) +
                                         .03 * (config.staging == HaloStaging::kTransposed && tiling.turns) +
                                         .01 * (!tiling.linear && tiling.block_w_log2 == 6) + .02 * idle +
                                         .1 * (by_warps && tiling.linear && config.channels < 64 && work.in.c > 32)
                                   : 1 + .06 * (4 - tiling.halo_stages) + .1 * idle;
  const bool reorders = work.reordering.in || work.reordering.out;  // they wait anyway
  const double pack =
      packed_bytes > 0 ? kPackUs + (reorders ? 0 : kWaitUs) + static_cast<double>(packed_bytes) / kPackBytesPerUs : 0;
  const double share = static_cast<double>(std::min<int64_t>(tiles.count, sm_count)) / sm_count;
  constexpr double kLastUs = 4;  // until all have stored, and with nothing else to do
  const double reorder = (work.reordering.in ? reorder_us(work.in_planes, work.groups, share) : 0) +
                         (work.reordering.out ? reorder_us(work.out_planes, work.groups, share) + kLastUs : 0);
  // What is moved twice takes power: it is short where a kernel runs long.
  constexpr double kLongClocks = 200000;
  const bool hungry = tiling.turns && config.block_k > 64 && !tiling.filter_resident && waves * tile > kLongClocks;
  const double clocks =
      waves * tile * (rough + 2. / config.channels * hungry) + kFixedClocks + (tiling.turns ? epilogue : 0);
  const double compute_us = clocks / kClocksPerUs, memory_us = bytes / (kBytesPerUsPerSm * sm_count);
  return pack + reorder + std::max(compute_us, memory_us) +
         .1 * std::min(compute_us, memory_us);  // they overlap, not entirely
}

// Input pixels between neighbouring columns of a filter; the same for all runs.
int64_t column_step(const Work& work) { return work.w.run[0].step; }

// Rows of eight strips, see halo_config.h. As many tiles as the longest strips would make, and no longer than that
// takes.
template <typename F>
void for_each_strips(const Work& work, const HaloConfig& config, TapSplit split, F f) {
  for (const bool turns : {false, true}) {
    const int blocks = config.m_blocks * (turns ? 1 : 2);
    for (int across_log2 = 0; config.m_blocks % (1 << across_log2) == 0; ++across_log2) {
      const int64_t overlap = (config.columns - 1) * column_step(work);
      const int64_t longest = (int64_t{8} << across_log2) - round_up(overlap, 2);
      if (longest <= 0) continue;
      const int64_t strip = round_up(ceil_div(ceil_div(work.cols, ceil_div(work.cols, 8 * longest)), 8), 2);
      HaloTiling tiling{};
      tiling.split = split, tiling.turns = turns;
      tiling.tile_p = static_cast<int16_t>(blocks >> across_log2), tiling.tile_q = static_cast<int16_t>(8 * strip);
      tiling.block_w_log2 = 3, tiling.across_log2 = static_cast<int16_t>(across_log2);
      if (f(tiling)) return;
    }
  }
}

// Calls f(tiling) for each tiling worth a look, stages not yet chosen, until it returns true.
template <typename F>
void for_each_tiling(const Work& work, const HaloConfig& config, TapSplit split, F f) {
  if (config.columns > 1) {
    if (split != TapSplit::kTaps) for_each_strips(work, config, split, f);
    return;
  }
  for (const bool turns : {false, true}) {
    HaloTiling tiling{};
    tiling.split = split, tiling.turns = turns;
    const int blocks = config.m_blocks * (turns ? 1 : 2);
    for (const int block_w_log2 : {3, 6}) {
      const int block_w = 1 << block_w_log2, block_h = 64 >> block_w_log2;
      for (int across_log2 = 0; 1 << across_log2 <= blocks; ++across_log2) {
        const int across = 1 << across_log2;
        tiling.tile_p = static_cast<int16_t>(block_h * (blocks / across));
        tiling.tile_q = static_cast<int16_t>(block_w * across);
        tiling.block_w_log2 = static_cast<int16_t>(block_w_log2);
        tiling.across_log2 = static_cast<int16_t>(across_log2);
        // Whole rows of pixels, as they lie; elsewhere, where more than half of a tile lies outside, linear ones do
        // better.
        const bool planes = config.staging == HaloStaging::kPlanes;
        const bool outside =
            tiling.tile_p >= 2 * work.rows || (tiling.tile_q >= 2 * work.cols && tiling.tile_q > kBlock);
        const bool row = tiling.tile_p == 1 && block_w == kBlock;
        if (planes ? !row : outside && config.staging != HaloStaging::kFolded) continue;
        if (config.lines && !(row && turns)) continue;
        if (f(tiling)) return;
      }
    }
    if (config.staging == HaloStaging::kPlanes || config.staging == HaloStaging::kFolded || config.lines) continue;
    tiling.linear = true;
    tiling.tile_p = tiling.tile_q = tiling.block_w_log2 = tiling.across_log2 = 0;
    if (f(tiling)) return;
  }
}

struct Best {
  HaloTiling tiling{};
  Tiles tiles{};
  Workspace workspace{};
  double cost_us = std::numeric_limits<double>::infinity();  // if nothing fits
};

// The cheapest tiling, or with `any` the first that fits.
Best best_tiling(const Work& work, const HaloConfig& config, const ConvProblem& problem, const DeviceSpec& device,
                 bool any) {
  Best best;
  const double bytes = compulsory_bytes(problem);
  const int64_t max_workspace = max_workspace_bytes(problem);
  const bool rows_apart = work.h.runs() > work.h.phases || work.h.run[0].step > 1;
  const bool cols_apart = work.w.runs() > work.w.phases || work.w.run[0].step > 1;
  for (const TapSplit split : {TapSplit::kNone, TapSplit::kRows, TapSplit::kTaps}) {
    if (config.lines && fastconv::reaches(work, split).groups() > 1) continue;
    // Halos of fewer taps pay where taps lie apart, or where large halos leave too little room for stages.
    const bool pays = split == TapSplit::kNone || (work.h.taps() > work.h.runs() && rows_apart) ||
                      (work.w.taps() > work.w.runs() && cols_apart);
    const bool roomy = best.cost_us < std::numeric_limits<double>::infinity() && best.tiling.halo_stages > 2 &&
                       !short_of_filters(best.tiling, best.tiles);
    // Smaller halos may also make room for tiles that both warpgroups share.
    const bool shared = !best.tiling.turns || best.tiling.filter_resident || config.block_k <= 64;
    if (!pays && roomy && shared) continue;
    const Reaches reaches = fastconv::reaches(work, split);
    for_each_tiling(work, config, split, [&](HaloTiling& tiling) {
      Tiles tiles;
      if (!make_tiles(work, config, tiling, reaches, tiles)) return false;
      if (!choose_stages(work, config, tiles, device.smem_optin_bytes, tiling)) return false;
      if (config.lines) tiling.run_rows = choose_run_rows(work, device.sm_count);
      const Workspace workspace = workspace_of(work, config, problem, tiles);
      if (workspace.bytes() > max_workspace) return false;
      const double cost = any ? 0
                              : cost_us(work, config, tiling, tiles, reaches, store_mode(work, config, tiling.linear),
                                        workspace.packed, bytes, device.sm_count);
      if (cost < best.cost_us) best = {tiling, tiles, workspace, cost};
      return any;
    });
    if (any && best.cost_us == 0) break;
  }
  return best;
}

bool fits_int32(const ConvProblem& p) {
  for (const int64_t extent : {p.n, p.c, p.k, p.h + 2 * p.padding.h, p.w + 2 * p.padding.w}) {
    if (extent >= kMaxExtent) return false;
  }
  return p.stride.h < kMaxStride && p.stride.w < kMaxStride;
}

void fill_taps(const Work& work, TapSplit split, const Tiles& tiles, HaloParams& params) {
  int groups = 0, steps = 0;
  const int64_t row_bytes = tiles.halo_pitch * tiles.pixel_bytes;
  params.phase_count = 0;
  for (int h = 0; h < work.h.phases; ++h) {
    for (int w = 0; w < work.w.phases; ++w) {
      OutputPhase& phase = params.phase[params.phase_count++];
      phase.h = h, phase.w = w;
      phase.p = static_cast<int32_t>(ceil_div(work.out.h - h, work.out_step.h));
      phase.q = static_cast<int32_t>(ceil_div(work.out.w - w, work.out_step.w));
      phase.group_begin = groups, phase.taps = 0, phase.first_step = steps;
      for (int y = work.h.begin(h); y < work.h.end[h]; ++y) {
        for (int x = work.w.begin(w); x < work.w.end[w]; ++x) {
          const Run &row = work.h.run[y], &col = work.w.run[x];
          const int64_t row_parts = split == TapSplit::kNone ? 1 : row.count;
          const int64_t col_parts = split == TapSplit::kTaps ? col.count : 1;
          for (int64_t i = 0; i < row_parts; ++i) {
            for (int64_t j = 0; j < col_parts; ++j) {
              TapGroup& group = params.group[groups++];
              group.rows = static_cast<int32_t>(row.count / row_parts);
              group.cols = static_cast<int32_t>(col.count / col_parts);
              group.dh = static_cast<int32_t>(row.d + i * row.step * work.in_step.h);
              group.dw = static_cast<int32_t>(col.d + j * col.step * work.in_step.w);
              group.row_step = group.rows == 1 ? 0 : static_cast<int32_t>(row.step * row_bytes);
              group.col_step = group.cols == 1 ? 0 : static_cast<int32_t>(col.step * tiles.pixel_bytes);
              group.r0 = static_cast<int32_t>(row.tap0 + i * row.dtap);
              group.s0 = static_cast<int32_t>(col.tap0 + j * col.dtap);
              group.dr = static_cast<int32_t>(row.dtap), group.ds = static_cast<int32_t>(col.dtap);
              phase.taps += group.rows * group.cols;
            }
          }
        }
      }
      phase.group_end = groups;
      steps += phase.taps * params.c_blocks;
    }
  }
  params.steps_per_filter_tile = steps;
}

TensorMapSpec in_map(const Work& work, const HaloConfig& config, const HaloParams& params) {
  const Side& in = work.in;
  return {
      {static_cast<uint64_t>(in.c), static_cast<uint64_t>(work.groups), static_cast<uint64_t>(in.w),
       static_cast<uint64_t>(in.h), static_cast<uint64_t>(in.n)},
      {stride_bytes(work.groups, in.c), stride_bytes(in.w, in.stride.w), stride_bytes(in.h, in.stride.h),
       stride_bytes(in.n, in.stride.n)},
      {static_cast<uint32_t>(config.channels), 1, static_cast<uint32_t>((params.halo_pitch - 1) * work.in_step.w + 1),
       static_cast<uint32_t>((params.load_rows - 1) * work.in_step.h + 1), 1},
      {1, 1, static_cast<uint32_t>(work.in_step.w), static_cast<uint32_t>(work.in_step.h), 1},
      config.channels * 2};
}

TensorMapSpec planes_map(const Work& work, const HaloConfig& config) {
  const Side& in = work.in;
  return {{static_cast<uint64_t>(in.w), static_cast<uint64_t>(in.c), static_cast<uint64_t>(work.groups),
           static_cast<uint64_t>(in.h), static_cast<uint64_t>(in.n)},
          {stride_bytes(in.c, in.stride.c), stride_bytes(work.groups, in.c * in.stride.c),
           stride_bytes(in.h, in.stride.h), stride_bytes(in.n, in.stride.n)},
          {kBlock, static_cast<uint32_t>(config.channels), 1, 1, 1},
          {1, 1, 1, 1, 1},
          2 * kBlock};
}

// Of the channels `phase`, `phase` + number of maps and so on. It begins up to 7 pixels before their planes.
TensorMapSpec raw_planes_map(const Work& work, const HaloConfig& config, const RawPlanes& raw, int phase) {
  const Side& in = work.in;
  const int64_t maps = int64_t{1} << raw.phases_log2, shift = raw_shift(in.stride.c, phase);
  return {{static_cast<uint64_t>(in.h * in.w + shift), static_cast<uint64_t>(ceil_div(in.c - phase, maps)),
           static_cast<uint64_t>(work.groups), static_cast<uint64_t>(in.n), 1},
          {stride_bytes(2, in.stride.c * maps), stride_bytes(work.groups, in.c * in.stride.c),
           stride_bytes(in.n, in.stride.n), 16},
          {static_cast<uint32_t>(raw.box_w), static_cast<uint32_t>(config.channels >> raw.phases_log2), 1, 1, 1},
          {1, 1, 1, 1, 1},
          0,
          phase * in.stride.c - shift};
}

TensorMapSpec filter_map(const ConvProblem& problem, const HaloConfig& config) {
  const Strides& w = problem.w_strides;
  const int64_t k = problem.k_per_group();
  const bool n_major = config.filter == FilterTile::kNMajor;
  const auto channels = static_cast<uint32_t>(config.channels);
  return {{static_cast<uint64_t>(problem.c_per_group()), static_cast<uint64_t>(problem.s),
           static_cast<uint64_t>(problem.r), static_cast<uint64_t>(k), static_cast<uint64_t>(problem.groups)},
          {stride_bytes(problem.s, w.w), stride_bytes(problem.r, w.h), stride_bytes(k, w.n),
           stride_bytes(problem.groups, k * w.n)},
          {n_major ? 64 : channels, 1, 1, n_major ? channels : static_cast<uint32_t>(config.block_k), 1},
          {1, 1, 1, 1, 1},
          n_major ? 128 : config.channels * 2};
}

PackParams pack_params(const Work& work, const ConvProblem& problem, const HaloConfig& config, const Tiles& tiles,
                       const RawPlanes& raw) {
  const Strides& w = problem.w_strides;
  const int64_t taps = problem.r * problem.s, channels = config.channels, groups = problem.groups;
  PackParams pack{};
  pack.row = problem.pass == Pass::kDgrad ? w.c : w.n, pack.col = problem.pass == Pass::kDgrad ? w.n : w.c;
  pack.r = w.h, pack.s = w.w;
  pack.group = problem.k_per_group() * w.n;
  pack.rows = static_cast<int32_t>(work.out.c), pack.cols = static_cast<int32_t>(work.in.c);
  pack.block_k_log2 = std::countr_zero(static_cast<uint32_t>(config.block_k));
  pack.channels_log2 = std::countr_zero(static_cast<uint32_t>(config.channels));
  pack.channel_phases_log2 = raw.phases_log2;
  pack.taps = FastDivmod(taps), pack.filter_w = FastDivmod(problem.s);
  pack.c_blocks = FastDivmod(tiles.c_blocks), pack.k_tiles = FastDivmod(tiles.filters);
  pack.along_cols = pack.col <= pack.row;

  // Pieces for all multiprocessors; of columns, eight rows make contiguous multiples of 16 bytes.
  constexpr int64_t kEnough = 128;
  int64_t inner, outer, rows = 16, pieces;
  do {
    rows /= 2;
    inner = pack.along_cols ? channels : rows, outer = pack.along_cols ? rows : channels;
    pieces = pack_rows(work, config, tiles) * tiles.c_blocks / rows;
    const int64_t pitch = round_up(inner * taps, 8);
    pack.row_pitch = static_cast<int32_t>(pack.along_cols ? pitch : taps);
    pack.col_pitch = static_cast<int32_t>(pack.along_cols ? taps : pitch);
    pack.spread = pack.along_cols ? 0 : -8;
    pack.piece_bytes = static_cast<int32_t>(2 * (outer * pitch + (pack.along_cols ? 0 : outer)));
  } while (rows > 1 && (pack.piece_bytes > kPackBytes || (pack.along_cols && pieces < kEnough)));
  pack.piece_rows_log2 = std::countr_zero(static_cast<uint32_t>(rows)), pack.pieces = static_cast<int32_t>(pieces);
  pack.at_once = kPackBytes / pack.piece_bytes;
  pack.segment = FastDivmod(inner * taps), pack.segments = FastDivmod(outer);
  pack.chunks = FastDivmod(rows * taps * channels / 8);
  const int64_t inner_stride = std::min(pack.row, pack.col), outer_stride = std::max(pack.row, pack.col);
  const int64_t last = (pack.along_cols ? pack.cols : pack.rows) % inner;
  pack.copied = inner_stride == taps && (problem.s == 1 || pack.s == 1) && (problem.r == 1 || pack.r == problem.s) &&
                problem.w_align >= 16 && outer_stride % 8 == 0 && (groups == 1 || pack.group % 8 == 0) &&
                inner * taps % 8 == 0 && last * taps % 8 == 0;
  return pack;
}

PackParams folded_pack_params(const ConvProblem& problem, const HaloConfig& config, const HaloParams& params) {
  const Strides& w = problem.w_strides;
  PackParams pack{};
  pack.row = w.n, pack.col = w.c, pack.r = w.h, pack.s = w.w;
  pack.rows = params.k;
  pack.block_k_log2 = std::countr_zero(static_cast<uint32_t>(config.block_k));
  pack.channels_log2 = std::countr_zero(static_cast<uint32_t>(config.channels));
  pack.pieces = static_cast<int32_t>(int64_t{params.k_tiles.divisor} * params.steps_per_filter_tile * config.block_k *
                                     config.channels / 8);
  return pack;
}

// All, or those that a tensor leaves idle. If it keeps all of them busy more than once, the first begin late with it.
int32_t pack_warps(const Reorder& order, const Plan& plan) {
  constexpr int64_t kEnough = 4;
  const int64_t warps = plan.block_threads / 32;
  if (order.units == 0) return static_cast<int32_t>(warps);
  const int64_t idle = warps - ceil_div(order.units, plan.grid);
  return static_cast<int32_t>(idle > 0 ? std::min(idle, kEnough) : kEnough);
}

const char* tiles_why_not(const KernelEntry& entry, const ConvProblem& problem, Reordering reordering,
                          const DeviceSpec& device) {
  const HaloConfig& config = entry.halo;
  Work work;
  if (!make_work(problem, config.staging, reordering, work)) return "has room for 16 phases and 64 halos of a tile";
  if (work.taps == 0) return "needs a tap that reaches an output";
  if (!takes_columns(work, config)) return "takes three filter columns at a time, at most three pixels apart";
  if (config.lines && !lines_can_store(work, config)) {
    return "stores rows of pixels longer than a tile, whole pairs of them, that follow each other without a gap";
  }
  if (config.lines && !stores_pieces(work, store_mode(work, config, false))) {
    return "stores rows that begin within a sector";
  }
  if (best_tiling(work, config, problem, device, /*any=*/true).cost_us > 0) {
    return "finds no tile that fits shared memory, the copy engine's boxes and the workspace";
  }
  return nullptr;
}

}  // namespace

const char* halo_why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const HaloConfig& config = entry.halo;
  if (device.arch != 90) return "needs compute capability 9.0";
  if (!(entry.dtypes & dtype_bit(problem.dtype))) return "needs float16 or bfloat16";
  if (std::min(problem.c_per_group(), problem.k_per_group()) < 1 ||
      std::max(problem.c_per_group(), problem.k_per_group()) < 16) {
    return "multiplies 16 channels at a time: needs groups of 16 channels or filters";
  }
  if (!fits_int32(problem)) return "counts with 32 bits: padded extents stay below 2^29, strides below 2^12";
  Side in, out;
  sides(problem, in, out);
  const Reordering reordering{reorders_input(config, problem)};
  if (is_pointwise(problem)) flatten(in, out);
  if (config.block_k >= 4 * std::max<int64_t>(out.c, 17)) return "has tiles of too many filters";
  if (config.staging == HaloStaging::kFolded) {
    const char* why = fold_why_not(problem);
    return why != nullptr ? why : tiles_why_not(entry, problem, reordering, device);
  }
  if (config.columns > 1 && out.c > 2 * config.block_k) return "has tiles of too few filters";
  if (config.channels >= 4 * std::max<int64_t>(in.c, 9)) return "has stages of too many channels";
  if (config.channels * 2 < std::min<int64_t>(in.c, 33)) return "has stages of too few channels";
  const HaloStaging best = best_staging(problem, in, in_step_of(problem));
  if (config.staging != best && !reordering.in &&
      !(config.staging == HaloStaging::kPixels && best == HaloStaging::kPairs)) {
    switch (config.staging) {
      case HaloStaging::kTma:
        return "needs contiguous channels, 16-byte strides and addresses, or planes without gaps; strides of the "
               "convolution up to 8";
      case HaloStaging::kTransposed:
        return "needs contiguous images, 16 bytes apart, more than 8 channels, more than one tap or odd planes";
      case HaloStaging::kPlanes: return "needs one tap, contiguous pixels, rows and planes 16 bytes apart";
      case HaloStaging::kPairs: return "needs contiguous rows of whole, aligned pairs of pixels, stride 1";
      case HaloStaging::kPixels: return "reads the input in smaller pieces than it allows";
      case HaloStaging::kFolded: break;  // asked above
    }
  }
  if (config.staging == HaloStaging::kTransposed && config.channels < 8 * plane_phases(in, problem.groups)) {
    return "has stages of too few channels for planes of this size";
  }
  if (config.filter == FilterTile::kNMajor && !tma_can_load_filter(problem)) {
    return "needs a channels_last filter, 16-byte strides and address";
  }
  return tiles_why_not(entry, problem, reordering, device);
}

Plan halo_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  Work work;
  Best best;
  for (const bool out : {false, true}) {
    const Reordering reordering{reorders_input(entry.halo, problem), out};
    if (out && !can_reorder_output(entry.halo, problem)) continue;
    Work one;
    make_work(problem, entry.halo.staging, reordering, one);
    const Best found = best_tiling(one, entry.halo, problem, device, /*any=*/false);
    if (found.cost_us < best.cost_us || !out) best = found, work = one;
  }
  const Tiles& tiles = best.tiles;
  Plan plan;
  plan.kernel = &entry;
  const int64_t runs = entry.halo.lines ? ceil_div(work.in.n * work.rows, best.tiling.run_rows) : 0;
  plan.grid = std::min<int64_t>(entry.halo.lines ? ceil_div(runs, 2) : tiles.count, device.sm_count);
  plan.block_threads = halo_threads(entry.halo.staging);
  plan.smem_bytes =
      static_cast<int32_t>(halo_fixed_bytes(entry.halo) + best.tiling.halo_stages * tiles.halo_stage_bytes +
                           best.tiling.filter_stages * tiles.step_bytes + tiles.raw_bytes());
  plan.workspace_bytes = best.workspace.bytes();
  plan.halo = best.tiling;
  plan.halo.reorder_in = work.reordering.in, plan.halo.reorder_out = work.reordering.out;
  if (best.workspace.bytes() > 0) {
    const int32_t reorder_bytes = reorders(entry.halo.staging) ? plan.block_threads / 32 * kReorderBytes : 0;
    plan.smem_bytes =
        std::max(plan.smem_bytes, kHaloAlignment + reorder_bytes + kPackBytes + kPackTableBytes + kHaloBarrierBytes);
  }
  plan.cost_us = best.cost_us;
  return plan;
}

HaloLaunch halo_launch(const Plan& plan, const ConvProblem& problem) {
  const HaloConfig& config = plan.kernel->halo;
  const HaloTiling& tiling = plan.halo;
  Work work;
  make_work(problem, config.staging, {tiling.reorder_in, tiling.reorder_out}, work);
  const Reaches reaches = fastconv::reaches(work, tiling.split);
  Tiles tiles;
  make_tiles(work, config, tiling, reaches, tiles);

  HaloLaunch launch{};
  HaloParams& params = launch.params;
  const Side &in = work.in, &out = work.out;
  params.in_n = in.stride.n, params.in_c = in.stride.c, params.in_h = in.stride.h, params.in_w = in.stride.w;
  params.out_n = out.stride.n, params.out_k = out.stride.c;
  params.out_phase_h = out.stride.h, params.out_phase_w = out.stride.w;
  params.out_h = out.stride.h * work.out_step.h, params.out_w = out.stride.w * work.out_step.w;
  params.n = static_cast<int32_t>(in.n);
  params.c = static_cast<int32_t>(in.c), params.k = static_cast<int32_t>(out.c);
  params.height = static_cast<int32_t>(in.h), params.width = static_cast<int32_t>(in.w);
  params.in_step_h = static_cast<int32_t>(work.in_step.h), params.in_step_w = static_cast<int32_t>(work.in_step.w);

  const Store store = store_mode(work, config, tiling.linear);
  params.tiles = static_cast<int32_t>(tiles.count);
  params.run_tiles = 1;
  params.k_tiles = FastDivmod(tiles.filters), params.phases = FastDivmod(work.phases());
  params.tiles_npq = FastDivmod(tiles.per_filter);
  params.linear = tiling.linear;
  params.linear_w = FastDivmod(tiles.linear_w), params.linear_h = FastDivmod(tiles.linear_h);
  params.tile_pixels = static_cast<int32_t>(tiles.pixels);
  params.warpgroups_per_tile = tiling.turns ? 1 : 2;
  params.halo_rows = static_cast<int32_t>(tiles.halo_rows), params.halo_pitch = static_cast<int32_t>(tiles.halo_pitch);
  if (tiling.linear) {
    params.loads = params.halo_rows, params.load_rows = 1;
    params.block_q = 64, params.group_pitch = static_cast<int32_t>(8 * tiles.pixel_bytes);
  } else {
    params.tile_p = tiling.tile_p, params.tile_q = tiling.tile_q, params.blocks_q_log2 = tiling.across_log2;
    params.block_q = 1 << tiling.block_w_log2;
    if (config.columns > 1) {
      params.block_p = 1, params.strip = params.group_q = tiling.tile_q / 8;
      params.column_step = static_cast<int32_t>(column_step(work));
    } else {
      params.block_p = 64 >> tiling.block_w_log2, params.strip = tiling.tile_q;
      (tiling.block_w_log2 == 3 ? params.group_p : params.group_q) = tiling.block_w_log2 == 3 ? 1 : 8;
    }
    const int64_t tiles_q = ceil_div(work.cols, tiling.tile_q);
    if (config.lines) params.run_tiles = static_cast<int32_t>(tiling.run_rows * tiles_q);
    params.tiles_q = FastDivmod(tiles_q), params.tiles_pq = FastDivmod(ceil_div(work.rows, tiling.tile_p) * tiles_q);
    params.loads = 1, params.load_rows = params.halo_rows;
    params.group_pitch = static_cast<int32_t>((params.group_p * tiles.halo_pitch + params.group_q) * tiles.pixel_bytes);
  }
  params.c_blocks = static_cast<int32_t>(tiles.c_blocks);
  params.stage_row_units = FastDivmod(stage_row_units(config.staging, tiles.halo_pitch));
  params.data_bytes = plan.smem_bytes - kHaloAlignment - kHaloBarrierBytes;
  params.a_stages = tiling.halo_stages, params.a_stage_bytes = static_cast<int32_t>(tiles.halo_stage_bytes);
  params.b_stages = tiling.filter_stages;
  params.filter_resident = tiling.filter_resident;
  params.filter_direct = reads_filter_directly(work, config, problem);
  params.store = store.mode, params.pixel_vector = store.pixel_vector;
  fill_taps(work, tiling.split, tiles, params);
  const Workspace workspace = workspace_of(work, config, problem, tiles);
  launch.in_offset = workspace.in_offset(), launch.out_offset = workspace.out_offset();
  if (tiling.reorder_in) params.in_order = make_reorder(work.in_planes, work.groups);
  if (tiling.reorder_out) params.out_order = make_reorder(work.out_planes, work.groups);
  params.raw = tiles.raw;
  switch (config.staging) {
    case HaloStaging::kTma: launch.in_map[launch.in_maps++] = in_map(work, config, params); break;
    case HaloStaging::kPlanes:
      params.loads = params.tile_q / kBlock;
      launch.in_map[launch.in_maps++] = planes_map(work, config);
      break;
    case HaloStaging::kTransposed:
      for (; !params.raw.whole && launch.in_maps < 1 << params.raw.phases_log2; ++launch.in_maps) {
        launch.in_map[launch.in_maps] = raw_planes_map(work, config, params.raw, launch.in_maps);
      }
      break;
    default: break;
  }
  if (params.filter_direct) {
    launch.filter_map = filter_map(problem, config);
  } else {
    params.pack = config.staging == HaloStaging::kFolded ? folded_pack_params(problem, config, params)
                                                         : pack_params(work, problem, config, tiles, params.raw);
    params.pack.warps = pack_warps(params.in_order, plan);
  }
  launch.fold = work.fold;
  return launch;
}

}  // namespace fastconv
