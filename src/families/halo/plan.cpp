#include "fastconv/families/halo/plan.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "fastconv/core/integers.h"
#include "fastconv/families/halo/cost.h"
#include "fastconv/planner/scaled.h"
#include "fastconv/tile/copies.h"
#include "fastconv/tile/plan_fold.h"
#include "fastconv/tile/plan_reorder.h"
#include "fastconv/tile/plan_split.h"

namespace fastconv {
namespace {

using namespace halo;

constexpr int64_t kConsumerWarps = 8;    // which write an output anew
constexpr int8_t kMaxShares = 4;         // larger clusters leave much of some groups of SMs idle
constexpr int64_t kMaxStride = 1 << 12;  // a tile that begins inside and ends outside has 32-bit coordinates

// Input pixels between neighbouring columns of a filter; the same for all runs.
int64_t column_step(const Work& work) { return work.w.run[0].step; }

// Rows of eight strips, see config.h. As many tiles as the longest strips would make, and no longer than that
// takes.
template <typename F>
void for_each_strips(const Work& work, const HaloConfig& config, TapSplit split, F f) {
  for (const bool turns : {false, true}) {
    const int blocks = config.m_blocks * (turns ? 1 : 2);
    for (int across_log2 = 0; config.m_blocks % (1 << across_log2) == 0; ++across_log2) {
      if (config.staging == HaloStaging::kFloats && 1 << across_log2 != kFloatsAcross) continue;
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
    const bool floats = config.staging == HaloStaging::kFloats;
    if (split == TapSplit::kNone || (split == TapSplit::kRows && !floats)) for_each_strips(work, config, split, f);
    return;
  }
  for (const bool turns : {false, true}) {
    HaloTiling tiling{};
    tiling.split = split, tiling.turns = turns;
    const int blocks = config.m_blocks * (turns ? 1 : 2);
    for (const int block_w_log2 : {3, 6}) {
      const int block_w = 1 << block_w_log2, block_h = 64 >> block_w_log2;
      for (int across_log2 = 0; 1 << across_log2 < 2 * blocks; ++across_log2) {
        const int across = std::min(1 << across_log2, blocks);
        // A power of two, or all in a row.
        if (blocks % across != 0 || (across < 1 << across_log2 && block_w < kBlock)) continue;
        tiling.tile_p = static_cast<int16_t>(block_h * (blocks / across));
        tiling.tile_q = static_cast<int16_t>(block_w * across);
        tiling.block_w_log2 = static_cast<int16_t>(block_w_log2);
        tiling.across_log2 = static_cast<int16_t>(across_log2);
        // Whole rows of pixels, as they lie; elsewhere, where more than half of a tile lies outside, linear ones do
        // better.
        const bool planes = staged_as_planes(config.staging);
        const bool outside =
            tiling.tile_p >= 2 * work.rows || (tiling.tile_q >= 2 * work.cols && tiling.tile_q > kBlock);
        const bool row = tiling.tile_p == 1 && block_w == kBlock;
        if (planes ? !row : outside && config.staging != HaloStaging::kFolded) continue;
        if (config.lines && !(row && turns)) continue;
        if (f(tiling)) return;
      }
    }
    if (staged_as_planes(config.staging) || config.staging == HaloStaging::kFolded ||
        config.staging == HaloStaging::kFloats || config.lines) {
      continue;
    }
    tiling.linear = true;
    tiling.tile_p = tiling.tile_q = tiling.block_w_log2 = tiling.across_log2 = 0;
    if (f(tiling)) return;
  }
}

// Of a packed filter, whose rows are outputs and whose columns are reduced.
struct FilterStrides {
  int64_t row, col;

  explicit FilterStrides(const ConvProblem& problem)
      : row(problem.pass == Pass::kDgrad ? problem.w_strides.c : problem.w_strides.n),
        col(problem.pass == Pass::kDgrad ? problem.w_strides.n : problem.w_strides.c) {}
  bool along_cols() const { return col <= row; }
};

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
  const int64_t max_workspace = workspace_room(problem, device, is_scaled(config.operands));
  const FilterStrides filter(problem);
  const bool rows_apart = work.h.runs() > work.h.phases || work.h.run[0].step > 1;
  const bool cols_apart = work.w.runs() > work.w.phases || work.w.run[0].step > 1;
  for (const TapSplit split : {TapSplit::kNone, TapSplit::kRows, TapSplit::kTaps}) {
    if (config.lines && halo::reaches(work, split).groups() > 1) continue;
    // Halos of fewer taps pay where taps lie apart, or where large halos leave too little room for stages.
    const bool pays = split == TapSplit::kNone || (work.h.taps() > work.h.runs() && rows_apart) ||
                      (work.w.taps() > work.w.runs() && cols_apart);
    const bool roomy = best.cost_us < std::numeric_limits<double>::infinity() && best.tiling.halo_stages > 2 &&
                       !short_of_filters(best.tiling, best.tiles);
    // Smaller halos may also make room for tiles that both warpgroups share.
    if (!pays && roomy && !loads_filters_twice(config, best.tiling)) continue;
    const Reaches reaches = halo::reaches(work, split);
    for_each_tiling(work, config, split, [&](HaloTiling& tiling) {
      Tiles tiles;
      if (!make_tiles(work, config, tiling, reaches, tiles)) return false;
      for (tiling.shares = 1; tiling.shares <= kMaxShares; tiling.shares *= 2) {
        if (tiling.shares > 1 && (any || !can_share(work, config, tiling, tiles, device.sm_count))) break;
        if (!choose_stages(work, config, tiles, device.smem_optin_bytes, tiling)) return false;
        if (config.lines) tiling.run_rows = choose_run_rows(work, device.sm_count);
        const Workspace workspace = workspace_of(work, config, problem, tiling, tiles);
        if (workspace.bytes() > max_workspace) return false;
        const double cost = any ? 0
                                : cost_us(work, config, tiling, tiles, reaches,
                                          {workspace.packed, !filter.along_cols()}, bytes, device);
        if (cost < best.cost_us) best = {tiling, tiles, workspace, cost};
        if (any) return true;
      }
      return false;
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
  params.phase_count = 0;
  for (int h = 0; h < work.h.phases; ++h) {
    for (int w = 0; w < work.w.phases; ++w) {
      OutputPhase& phase = params.phase[params.phase_count++];
      phase.offset = h * work.out.stride.h + w * work.out.stride.w;
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
              group.row_step = group.rows == 1 ? 0 : static_cast<int32_t>(row.step * tiles.row_step);
              group.col_step = group.cols == 1 ? 0 : static_cast<int32_t>(col.step * tiles.col_step);
              group.r0 = static_cast<int32_t>(row.tap0 + i * row.dtap);
              group.s0 = static_cast<int32_t>(col.tap0 + j * col.dtap);
              group.dr = static_cast<int32_t>(row.dtap), group.ds = static_cast<int32_t>(col.dtap);
              phase.taps += group.rows * group.cols;
            }
          }
        }
      }
      phase.group_end = groups;
      steps += phase.taps * static_cast<int32_t>(tiles.c_blocks);
    }
  }
  params.steps_per_filter_tile = steps;
}

// Of a large tile's halo. Pieces of a long row arrive sooner than all of it.
void choose_loads(HaloParams& params) {
  constexpr int32_t kPiece = 64;  // pixels
  params.raw.box_w = params.load_rows * params.halo_pitch;
  if (params.linear || params.halo_rows > 1 || params.halo_pitch % kPiece != 0) return;
  params.loads = params.halo_pitch / kPiece, params.load_rows = 0;
  params.raw.box_w = kPiece, params.raw.advance = kPiece * params.in_step_w;
}

TensorMapSpec in_map(const Work& work, const HaloConfig& config, const HaloParams& params) {
  const bool pieces = params.raw.advance > 0;
  const int64_t cols = pieces ? params.raw.box_w : params.halo_pitch, rows = pieces ? 1 : params.load_rows;
  const Side& in = work.in;
  const int64_t groups = work.groups * work.splitting.parts, bytes = operand_bytes(config.operands);
  return {{static_cast<uint64_t>(work.in_channels()), static_cast<uint64_t>(groups), static_cast<uint64_t>(in.w),
           static_cast<uint64_t>(in.h), static_cast<uint64_t>(in.n)},
          {stride_bytes(groups, work.in_channels(), bytes), stride_bytes(in.w, in.stride.w, bytes),
           stride_bytes(in.h, in.stride.h, bytes), stride_bytes(in.n, in.stride.n, bytes)},
          {static_cast<uint32_t>(config.channels), 1, static_cast<uint32_t>((cols - 1) * work.in_step.w + 1),
           static_cast<uint32_t>((rows - 1) * work.in_step.h + 1), 1},
          {1, 1, static_cast<uint32_t>(work.in_step.w), static_cast<uint32_t>(work.in_step.h), 1},
          config.pixel_bytes()};
}

// So many channels to a row.
TensorMapSpec planes_map(const Work& work, const HaloConfig& config, int64_t together, int64_t box_w) {
  const Side& in = work.in;
  return {{static_cast<uint64_t>(in.w * together), static_cast<uint64_t>(in.c / together),
           static_cast<uint64_t>(work.groups), static_cast<uint64_t>(in.h), static_cast<uint64_t>(in.n)},
          {stride_bytes(in.c, in.stride.c * together), stride_bytes(work.groups, in.c * in.stride.c),
           stride_bytes(in.h, in.stride.h), stride_bytes(in.n, in.stride.n)},
          {static_cast<uint32_t>(box_w), static_cast<uint32_t>(config.channels / together), 1, 1, 1},
          {1, 1, 1, 1, 1},
          box_w == kBlock ? int32_t{2 * kBlock} : 0};
}

// Of the channels `phase`, `phase` + number of maps and so on. It begins fewer than 16 bytes before their planes.
TensorMapSpec raw_planes_map(const Work& work, const HaloConfig& config, const RawPlanes& raw, int phase) {
  const Side& in = work.in;
  const int64_t bytes = work.element_bytes, maps = int64_t{1} << raw.phases_log2;
  const int64_t shift = raw_shift(in.stride.c, phase, raw_unit(work.element_bytes));
  return {{static_cast<uint64_t>(in.h * in.w + shift), static_cast<uint64_t>(ceil_div(in.c - phase, maps)),
           static_cast<uint64_t>(work.groups), static_cast<uint64_t>(in.n), 1},
          {stride_bytes(2, in.stride.c * maps, bytes), stride_bytes(work.groups, in.c * in.stride.c, bytes),
           stride_bytes(in.n, in.stride.n, bytes), 16},
          {static_cast<uint32_t>(raw.box_w), static_cast<uint32_t>(config.channels >> raw.phases_log2), 1, 1, 1},
          {1, 1, 1, 1, 1},
          0,
          phase * in.stride.c - shift,
          /*exact=*/config.operands != OperandForm::kTf32};
}

TensorMapSpec filter_map(const ConvProblem& problem, const HaloConfig& config) {
  const Strides& w = problem.w_strides;
  const int64_t k = problem.k_per_group();
  const int64_t bytes = operand_bytes(config.operands);
  const bool n_major = config.filter == FilterTile::kNMajor;
  const auto channels = static_cast<uint32_t>(config.channels);
  return {{static_cast<uint64_t>(problem.c_per_group()), static_cast<uint64_t>(problem.s),
           static_cast<uint64_t>(problem.r), static_cast<uint64_t>(k), static_cast<uint64_t>(problem.groups)},
          {stride_bytes(problem.s, w.w, bytes), stride_bytes(problem.r, w.h, bytes), stride_bytes(k, w.n, bytes),
           stride_bytes(problem.groups, k * w.n, bytes)},
          {n_major ? 64 : channels, 1, 1, n_major ? channels : static_cast<uint32_t>(config.block_k), 1},
          {1, 1, 1, 1, 1},
          n_major ? 128 : config.pixel_bytes()};
}

// The same of a filter in parts: rows are outputs, channels are reduced, whatever the pass.
TensorMapSpec split_filter_map(const ConvProblem& problem, const Work& work, const HaloConfig& config) {
  auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  const int64_t bytes = operand_bytes(config.operands), groups = work.groups * work.splitting.parts;
  const int64_t tap = split_channels(work.in.c, operand_of(config.operands)), row = problem.r * problem.s * tap;
  const auto columns = static_cast<uint32_t>(columns_at_once(config.filter));
  return {{u64(tap), u64(problem.s), u64(problem.r), u64(work.out.c / columns), u64(groups)},
          {stride_bytes(problem.s, tap, bytes), stride_bytes(problem.r, problem.s * tap, bytes),
           stride_bytes(work.out.c / columns, row, bytes), stride_bytes(groups, work.out.c / columns * row, bytes)},
          {static_cast<uint32_t>(config.channels), columns, 1, static_cast<uint32_t>(config.block_k) / columns, 1},
          {1, 1, 1, 1, 1},
          config.pixel_bytes()};
}

// By so many warps; at_once is 0 if `room` bytes of shared memory are too few.
PackParams pack_params(const Work& work, const ConvProblem& problem, const HaloConfig& config, const Tiles& tiles,
                       int64_t warps, int64_t room) {
  const Strides& w = problem.w_strides;
  const int64_t taps = problem.r * problem.s, channels = config.channels, groups = problem.groups;
  PackParams pack{};
  const FilterStrides filter(problem);
  pack.row = filter.row, pack.col = filter.col;
  pack.r = w.h, pack.s = w.w;
  pack.group = problem.k_per_group() * w.n;
  const int columns = columns_at_once(config.filter);
  pack.rows = static_cast<int32_t>(work.out.c / columns), pack.cols = static_cast<int32_t>(work.in.c);
  pack.block_k_log2 = std::countr_zero(static_cast<uint32_t>(config.block_k));
  pack.filters_log2 = std::countr_zero(static_cast<uint32_t>(config.block_k / columns));
  pack.channels_log2 = std::countr_zero(static_cast<uint32_t>(config.channels));
  pack.channel_phases_log2 = tiles.raw.phases_log2;
  pack.taps = FastDivmod(taps), pack.filter_w = FastDivmod(problem.s);
  const Run& run = work.w.run[0];
  pack.step_w = static_cast<int32_t>(columns > 1 ? columns * run.count : problem.s);
  pack.first_s = static_cast<int32_t>(columns > 1 ? run.tap0 + (run.count - 1) * run.dtap : 0);
  pack.step_taps = FastDivmod(problem.r * pack.step_w);
  pack.c_blocks = FastDivmod(tiles.c_blocks), pack.k_tiles = FastDivmod(tiles.filters);
  pack.along_cols = filter.along_cols();

  room -= pack_table_bytes(static_cast<int>(pack.step_taps.divisor));
  // Pieces for all SMs; of columns, eight rows make contiguous multiples of 16 bytes.
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
  } while (rows > 1 && (pack.piece_bytes > room || (pack.along_cols && pieces < kEnough)));
  pack.piece_rows_log2 = std::countr_zero(static_cast<uint32_t>(rows)), pack.pieces = static_cast<int32_t>(pieces);
  pack.segment = FastDivmod(inner * taps), pack.segments = FastDivmod(outer);
  pack.chunks = FastDivmod(rows * problem.r * pack.step_w * channels / 8);
  const int64_t inner_stride = std::min(pack.row, pack.col), outer_stride = std::max(pack.row, pack.col);
  const int64_t last = (pack.along_cols ? pack.cols : pack.rows) % inner;
  pack.copied = inner_stride == taps && (problem.s == 1 || pack.s == 1) && (problem.r == 1 || pack.r == problem.s) &&
                problem.w_align >= 16 && outer_stride % 8 == 0 && (groups == 1 || pack.group % 8 == 0) &&
                inner * taps % 8 == 0 && last * taps % 8 == 0;
  const int64_t fit = std::max<int64_t>(room, 0) / pack.piece_bytes;
  pack.at_once = static_cast<int32_t>(pack.copied ? std::min(fit, 32 * warps * kPackCopies / outer) : fit);
  return pack;
}

PackParams folded_pack_params(const Work& work, const ConvProblem& problem, const HaloConfig& config,
                              const Tiles& tiles) {
  const Strides& w = problem.w_strides;
  PackParams pack{};
  pack.row = w.n, pack.col = w.c, pack.r = w.h, pack.s = w.w;
  pack.rows = static_cast<int32_t>(work.out.c);
  pack.block_k_log2 = std::countr_zero(static_cast<uint32_t>(config.block_k));
  pack.channels_log2 = std::countr_zero(static_cast<uint32_t>(config.channels));
  pack.pieces = static_cast<int32_t>(tiles.filters * tiles.steps * config.block_k * config.channels / 8);
  return pack;
}

// Filter steps between promotions: of so many products each, see mainloop.cuh. Products of fp16 have bits enough
// to be truncated from the first sum on, those of bf16 only once sums are 2^8 times as large.
int32_t promote_steps(const HaloConfig& config, const ConvProblem& problem) {
  const int32_t products = is_scaled(config.operands) ? 64 : problem.precision == Precision::kIeee ? 128 : 1024;
  if (!config.lines) return std::max(1, products / config.channels);
  // One halo's taps in even shares; nine of 16 channels, 144 products, are one.
  const int64_t taps = problem.r * problem.s, shares = ceil_div(taps * config.channels, products + products / 8);
  return static_cast<int32_t>(ceil_div(taps, shares));
}

// What is written to the workspace first, and the warps and shared memory that write the filter.
struct Preparation {
  Prepare what = Prepare::kNothing;
  int64_t warps = 0, buffer = 0, bytes = 0;
  PackParams pack{};
};

Preparation preparation_of(const Work& work, const ConvProblem& problem, const HaloConfig& config, const Tiles& tiles,
                           const Plan& plan) {
  const bool half = config.operands == OperandForm::kHalf, input = work.reordering.in || work.splitting.in;
  const bool filter = half ? !reads_filter_directly(work, config, problem) : work.splitting.filter;
  Preparation found;
  if (!filter && !input) return found;
  found.what = Prepare::kFilter;
  if (config.staging == HaloStaging::kFolded) {
    found.warps = kPackers, found.pack = folded_pack_params(work, problem, config, tiles);
    return found;
  }
  if (!input && !work.reordering.out) {  // a block must not arrive for the output while it waits for the filter
    const int64_t halos = plan.tiling.as<HaloTiling>().halo_stages * tiles.halo_stage_bytes;
    found.buffer = round_up(halos, kHaloAlignment);
    found.bytes = halos + plan.tiling.as<HaloTiling>().filter_stages * tiles.step_bytes - found.buffer;
    found.warps = half ? kPackers : std::min<int64_t>(kPackers, found.bytes / kReorderBytes);
    if (half) found.pack = pack_params(work, problem, config, tiles, found.warps, found.bytes);
    if (half ? found.pack.at_once > 0 : found.warps > 0) return found;
  }
  found.what = Prepare::kInput;
  const int64_t warps = plan.block_threads / 32;
  if (!half) {
    found.warps = warps, found.buffer = 0, found.bytes = warps * kReorderBytes;
    return found;
  }
  found.warps = 0, found.buffer = reorders(config.staging) ? warps * kReorderBytes : 0, found.bytes = 0;
  if (filter) {
    // Those that a tensor leaves idle. If it keeps all of them busy more than once, the last begin late with it.
    constexpr int64_t kLate = 4;
    const int64_t blocks = std::max<int64_t>(plan.grid, 1);  // none where there is no image
    const int64_t units = input ? make_reorder(work.in_planes, work.groups).units : 0;
    const int64_t idle = warps - ceil_div(units, blocks);
    found.warps = idle > 0 ? idle : kLate;
    found.bytes = kPackBytes, found.pack = pack_params(work, problem, config, tiles, found.warps, found.bytes);
  }
  return found;
}

// Truncation loses about 2e-8 of a sum with every 16 products of its largest parts, so that more than so many would
// not keep the contract of bf16x3. TF32's own error is larger.
constexpr int64_t kMaxUnpromoted = 4096;
constexpr int64_t kMaxUnpromotedSideBySide = 3072;  // parts, whose small products are added to that sum too

const char* operands_why_not(const KernelEntry& entry, const ConvProblem& problem) {
  const HaloConfig& config = entry.config.as<HaloConfig>();
  const int64_t products =
      (problem.pass == Pass::kFprop ? problem.c_per_group() : problem.k_per_group()) * problem.r * problem.s;
  const int64_t most = makes_parts(config.staging) ? kMaxUnpromotedSideBySide : kMaxUnpromoted;
  switch (config.operands) {
    case OperandForm::kHalf: return nullptr;
    case OperandForm::kScaled:
    case OperandForm::kPromotedScaled: return scaled_why_not(entry, problem);
    case OperandForm::kPromotedParts:
      if (makes_parts(config.staging) && problem.precision != Precision::kIeee) {
        return "makes three parts of a value, which ieee alone needs";
      }
      return nullptr;
    case OperandForm::kTf32: return problem.precision == Precision::kTf32 ? nullptr : "rounds to TF32";
    case OperandForm::kParts:
      if (problem.precision == Precision::kIeee) return "is less accurate than ieee";
      if (problem.precision == Precision::kBf16x3 && products > most) {
        return "loses too much of sums of so many products";
      }
      return nullptr;
  }
  return nullptr;
}

const char* tiles_why_not(const KernelEntry& entry, const ConvProblem& problem, Reordering reordering,
                          const DeviceSpec& device) {
  const HaloConfig& config = entry.config.as<HaloConfig>();
  Work work;
  if (!make_work(problem, config, reordering, work)) return "has room for 16 phases and 64 halos of a tile";
  if (work.taps == 0) return "needs a tap that reaches an output";
  if (!takes_columns(work, config)) {
    return config.staging == HaloStaging::kFloats
               ? "takes 3x3 filters, rows without gaps, columns at most three pixels apart"
               : "takes three filter columns at a time, at most three pixels apart";
  }
  if (config.lines && !lines_can_store(work, config)) {
    return "reads all columns and stores rows of pixels longer than a tile, whole words of them, without gaps";
  }
  if (config.lines && !stores_pieces(work, store_mode(work, config, false))) {
    return "stores rows that begin within a sector";
  }
  if (is_large_tile(config.m_blocks, config.block_k) && store_mode(work, config, false).mode == StoreMode::kElements) {
    return "stores runs of channels or of pixels";
  }
  if (best_tiling(work, config, problem, device, /*any=*/true).cost_us > 0) {
    return "finds no tile that fits shared memory, TMA's boxes and the workspace";
  }
  return nullptr;
}

const char* split_why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  Side in, out;
  sides(problem, in, out);
  const Pair step = in_step_of(problem);
  if (step.h > 8 || step.w > 8) return "takes strides up to 8";
  const HaloStaging staging = entry.config.as<HaloConfig>().staging;
  if (staging == HaloStaging::kFloats && !(step == kUnitStep && floats_copyable(in, problem.groups))) {
    return "needs contiguous images, 16 bytes apart, stride 1";
  }
  if (staging == HaloStaging::kTransposed && !planes_can_stage(in, problem.groups, step, element_size(problem.dtype))) {
    return "needs contiguous images, 16 bytes apart, more than 8 channels";
  }
  const bool fits = (makes_parts(staging) || splittable(in, problem.groups)) && filter_splittable(problem);
  if (!fits) return "counts pixels and taps with 32 bits";
  return tiles_why_not(entry, problem, {}, device);
}

const char* why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const HaloConfig& config = entry.config.as<HaloConfig>();
  if (const char* why = operands_why_not(entry, problem)) return why;
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
  if (config.filter == FilterTile::kPairs && !stores_pairs(problem)) {
    return "computes two columns at once: needs an input gradient of a column stride of 2, no column dilation, rows of "
           "aligned pairs";
  }
  const int64_t most = 128 / operand_bytes(config.operands);  // channels of a stage
  if (config.channels >= 4 * std::max<int64_t>(in.c, most / 8 + 1)) return "has stages of too many channels";
  const bool floats = config.staging == HaloStaging::kFloats;  // whose copies are long rows, however few
  if (!floats && config.channels * 2 < std::min<int64_t>(in.c, most / 2 + 1)) return "has stages of too few channels";
  if (config.operands != OperandForm::kHalf) return split_why_not(entry, problem, device);
  const HaloStaging best = best_staging(problem, in, in_step_of(problem));
  const bool takes_more = config.staging == HaloStaging::kTransposed && best == HaloStaging::kShifted;
  if (config.staging != best && !reordering.in && !takes_more) {
    switch (config.staging) {
      case HaloStaging::kTma:
        return "needs contiguous channels, 16-byte strides and addresses, or planes without gaps; strides of the "
               "convolution up to 8";
      case HaloStaging::kTransposed:
        return "needs contiguous images, 16 bytes apart, more than 8 channels, more than one tap or planes that "
               "begin elsewhere";
      case HaloStaging::kPlanes: return "needs one tap, contiguous pixels, rows and planes 16 bytes apart";
      case HaloStaging::kShifted: return "needs one tap, planes without gaps, every second of them 16 bytes apart";
      case HaloStaging::kPixels: return "reads the input in smaller pieces than it allows";
      case HaloStaging::kFloats: break;  // asked with float32
      case HaloStaging::kFolded: break;  // asked above
    }
  }
  const int64_t phases = plane_phases(in, problem.groups, element_size(problem.dtype));
  if (config.staging == HaloStaging::kTransposed && config.channels < 8 * phases) {
    return "has stages of too few channels for planes of this size";
  }
  if (config.filter == FilterTile::kNMajor && !tma_can_load_filter(problem)) {
    return "needs a channels_last filter, 16-byte strides and address";
  }
  return tiles_why_not(entry, problem, reordering, device);
}

}  // namespace

Offer halo_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem, device)) return reason;
  const HaloConfig& config = entry.config.as<HaloConfig>();
  Work work{};
  Best best;
  for (const bool out : {false, true}) {
    const Reordering reordering{reorders_input(config, problem), out};
    if (out && !can_reorder_output(config, problem)) continue;
    Work one;
    make_work(problem, config, reordering, one);
    const Best found = best_tiling(one, config, problem, device, /*any=*/false);
    if (found.cost_us < best.cost_us || !out) best = found, work = one;
  }
  const Tiles& tiles = best.tiles;
  Plan plan;
  plan.kernel = &entry;
  const int64_t runs = config.lines ? ceil_div(work.in.n * work.rows, best.tiling.run_rows) : 0;
  plan.grid = std::min<int64_t>(config.lines ? ceil_div(runs, 2) : tiles.count * best.tiling.shares, device.sm_count);
  plan.block_threads = halo_threads(config.staging);
  plan.smem_bytes = static_cast<int32_t>(halo_fixed_bytes(config, work.element_bytes) +
                                         best.tiling.halo_stages * tiles.halo_stage_bytes +
                                         best.tiling.filter_stages * tiles.step_bytes + tiles.raw_bytes());
  plan.workspace_bytes = best.workspace.bytes();
  HaloTiling tiling = best.tiling;
  tiling.reorder_in = work.reordering.in, tiling.reorder_out = work.reordering.out;
  plan.tiling = tiling;
  const Preparation preparation = preparation_of(work, problem, config, tiles, plan);
  const int64_t out_bytes = work.reordering.out ? kConsumerWarps * kReorderBytes : 0;
  plan.smem_bytes =
      std::max(plan.smem_bytes,
               static_cast<int32_t>(kHaloAlignment + std::max(preparation.buffer + preparation.bytes, out_bytes) +
                                    kHaloBarrierBytes));
  plan.cost_us = best.cost_us;
  return measured(plan, problem, device);
}

HaloLaunch halo_launch(const Plan& plan, const ConvProblem& problem) {
  const HaloConfig& config = plan.kernel->config.as<HaloConfig>();
  const HaloTiling& tiling = plan.tiling.as<HaloTiling>();
  Work work;
  make_work(problem, config, {tiling.reorder_in, tiling.reorder_out}, work);
  const Reaches reaches = halo::reaches(work, tiling.split);
  Tiles tiles;
  make_tiles(work, config, tiling, reaches, tiles);

  HaloLaunch launch{};
  HaloParams& params = launch.params;
  const Side &in = work.in, &out = work.out;
  params.in_n = in.stride.n, params.in_c = in.stride.c, params.in_h = in.stride.h, params.in_w = in.stride.w;
  params.out_n = out.stride.n, params.out_k = out.stride.c;
  params.out_h = out.stride.h * work.out_step.h, params.out_w = out.stride.w * work.out_step.w;
  params.n = static_cast<int32_t>(in.n);
  params.c = static_cast<int32_t>(in.c), params.k = static_cast<int32_t>(out.c);
  params.height = static_cast<int32_t>(in.h), params.width = static_cast<int32_t>(in.w);
  params.in_step_h = static_cast<int32_t>(work.in_step.h), params.in_step_w = static_cast<int32_t>(work.in_step.w);

  const Store store = store_mode(work, config, tiling.linear);
  params.tiles = static_cast<int32_t>(tiles.count * tiling.shares);
  params.shares = FastDivmod(tiling.shares);
  params.run_tiles = 1;
  params.k_tiles = FastDivmod(tiles.filters);
  const int64_t phase_tiles = params.tiles / work.phases();
  const int64_t round = work.phases() > 1 ? std::min(plan.grid, phase_tiles) : phase_tiles;
  const int64_t rest = phase_tiles % round == 0 ? round : phase_tiles % round;
  params.round = FastDivmod(round), params.last_round = FastDivmod(rest);
  params.phase_rounds = FastDivmod(round * work.phases());
  params.last_round_at = static_cast<int32_t>((phase_tiles - rest) * work.phases());
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
  params.c_blocks = static_cast<int32_t>(tiles.c_blocks / tiling.shares);
  params.groups = static_cast<int32_t>(work.groups);
  params.parts = work.splitting.parts / config.parts_a_stage();
  params.part_bytes = static_cast<int32_t>(tiles.part_bytes);
  params.part_blocks = FastDivmod(params.c_blocks / split_products(params.parts));
  params.promote_from = params.c_blocks - static_cast<int32_t>(params.part_blocks.divisor);
  params.promote_steps = promote_steps(config, problem);
  params.shrink = 1 / split_scale(params.parts, operand_of(config.operands)),
  params.shrink_at[0] = params.shrink_at[1] = -1;
  for (int product = 1, i = 0; product < split_products(params.parts); ++product) {
    const int32_t block = product * static_cast<int32_t>(params.part_blocks.divisor);
    if (params.shrink < 1 && SplitProduct(params.parts, product).is_first()) params.shrink_at[i++] = block;
  }
  params.by_halo_pitch = FastDivmod(tiles.halo_pitch);
  params.data_bytes = plan.smem_bytes - kHaloAlignment - kHaloBarrierBytes;
  params.a_stages = tiling.halo_stages, params.a_stage_bytes = static_cast<int32_t>(tiles.halo_stage_bytes);
  params.b_stages = tiling.filter_stages;
  params.a_rounds = FastDivmod(params.a_stages), params.b_rounds = FastDivmod(params.b_stages);
  params.filter_resident = tiling.filter_resident;
  params.filter_direct = reads_filter_directly(work, config, problem);
  params.store = store.mode, params.pixel_vector = store.pixel_vector;
  fill_taps(work, tiling.split, tiles, params);
  const Workspace workspace = workspace_of(work, config, problem, tiling, tiles);
  launch.in_offset = workspace.in_offset(), launch.out_offset = workspace.out_offset();
  launch.sums_offset = workspace.sums_offset();
  if (tiling.reorder_in) {
    params.in_order = make_reorder(work.in_planes, work.groups);
    launch.planes = reorder_boxes(work.in_planes, work.groups);
  }
  if (tiling.reorder_out) {
    params.out_order = make_reorder(work.out_planes, work.groups);
    launch.out_planes = reorder_boxes(work.out_planes, work.groups);
  }
  params.raw = tiles.raw;
  if (config.staging == HaloStaging::kFloats) params.raw.stages = params.a_stages;
  switch (config.staging) {
    case HaloStaging::kTma:
      if (is_large_tile(config.m_blocks, config.block_k)) choose_loads(params);
      params.copy_warps = copy_warps(config, tiling, tiles, reaches).count;
      launch.in_map[launch.in_maps++] = in_map(work, config, params);
      break;
    case HaloStaging::kFloats:
      launch.in_map[launch.in_maps++] =
          floats_map(work.in, work.groups, tiles.raw.box_w, config.channels, config.operands != OperandForm::kTf32);
      break;
    case HaloStaging::kPlanes:
      params.loads = params.tile_q / kBlock;
      launch.in_map[launch.in_maps++] = planes_map(work, config, 1, kBlock);
      break;
    case HaloStaging::kShifted:
      params.loads = params.tile_q / kBlock;
      launch.in_map[launch.in_maps++] = planes_map(work, config, 2, kBlock);
      launch.in_map[launch.in_maps++] = planes_map(work, config, 2, params.raw.box_w);
      break;
    case HaloStaging::kTransposed:
      for (; !params.raw.whole && launch.in_maps < 1 << params.raw.phases_log2; ++launch.in_maps) {
        launch.in_map[launch.in_maps] = raw_planes_map(work, config, params.raw, launch.in_maps);
      }
      break;
    default: break;
  }
  const Operand operand = operand_of(config.operands);
  launch.operand = config.operands == OperandForm::kHalf ? problem.dtype
                   : operand == Operand::kFp16           ? DType::kFloat16
                   : operand == Operand::kBf16           ? DType::kBFloat16
                                                         : DType::kFloat32;
  launch.in_values = makes_parts(config.staging) ? problem.dtype : launch.operand;
  if (work.splitting.in) params.in_split = make_split(work.in_planes, work.groups, operand, work.splitting.parts);
  if (work.splitting.filter) params.filter_split = make_filter_split(problem, operand, work.splitting.parts);
  const Preparation preparation = preparation_of(work, problem, config, tiles, plan);
  params.prepare = preparation.what, params.pack = preparation.pack;
  params.prepare_warps = static_cast<int32_t>(preparation.warps);
  params.prepare_buffer = static_cast<int32_t>(preparation.buffer);
  if (work.splitting.filter) {
    launch.filter_map = split_filter_map(problem, work, config);
  } else if (params.filter_direct) {
    launch.filter_map = filter_map(problem, config);
  }
  launch.fold = work.fold;
  return launch;
}

}  // namespace fastconv
