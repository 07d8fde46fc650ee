#include "fastconv/families/halo/tiles.h"

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "fastconv/core/integers.h"
#include "fastconv/families/halo/cost.h"
#include "fastconv/tile/copies.h"
#include "fastconv/tile/float_lead.h"
#include "fastconv/tile/plan_reorder.h"
#include "fastconv/tile/plan_split.h"

namespace fastconv::halo {
namespace {

using namespace cost::halo;

constexpr int64_t kMaxHaloPixels = 1 << 20;
constexpr int64_t kMaxTiles = 1 << 29;

// Enough stages for the latency of memory, no more than six warps can take part in.
RawPlanes raw_planes(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Reaches& reaches,
                     const Tiles& tiles) {
  constexpr int64_t kLinearBox = 104;  // short enough that the last of an image wastes little
  RawPlanes raw{};
  if (config.staging == HaloStaging::kShifted) {
    raw.phases_log2 = 1, raw.shared = true, raw.stages = tiling.tile_q <= 128 ? 5 : 3;
    raw.box_w = kShiftedBox;
    raw.stage_bytes = static_cast<int32_t>(tiling.tile_q / kBlock * config.channels * raw.box_w);  // of every second
    return raw;
  }
  if (config.staging != HaloStaging::kTransposed) return raw;
  const Side& in = work.in;
  const int64_t bytes = work.element_bytes, unit = raw_unit(work.element_bytes), each_bytes = config.channels * bytes;
  const int64_t phases = plane_phases(in, work.groups, bytes), step = work.in_step.w;
  raw.phases_log2 = std::countr_zero(static_cast<uint64_t>(phases));
  raw.step_log2 = std::countr_zero(static_cast<uint64_t>(step));
  raw.width = FastDivmod(in.w);
  raw.shared = tiling.linear && work.in_step.h == 1;
  const bool aligned =
      phases == 1 && in.w % unit == 0 && (tiling.linear || (reaches.aligned && tiling.tile_q * step % unit == 0));
  const int64_t run = raw.shared      ? std::min(tiles.halo_rows, in.h) * in.w
                      : tiling.linear ? in.w
                                      : std::min((tiles.halo_pitch - 1) * step + 1, in.w);
  // Small images whole. Channels that do not exist would be left as they are, and values are not rounded; of 16-bit
  // values a phase's planes lie an odd number of 16-byte chunks apart, so that the eight channels that a block is read
  // from lie in different banks.
  constexpr int64_t kWholeBytes = 26624;
  const int64_t whole_bytes = in.h * in.w * each_bytes;
  const bool spread = bytes == 2 ? in.stride.c * phases / unit % 2 != 0 : config.operands != OperandForm::kTf32;
  if (raw.shared && in.c % config.channels == 0 && whole_bytes <= kWholeBytes && spread && in.stride.c == in.h * in.w) {
    raw.whole = true;
    raw.box_w = raw.advance = static_cast<int32_t>(round_up(in.h * in.w + unit - 1, unit));
    raw.stage_bytes = static_cast<int32_t>(round_up(whole_bytes, 128));
    raw.stages = static_cast<int32_t>(std::clamp<int64_t>(ceil_div(24576, raw.stage_bytes), 2, 6));
    return raw;
  }
  const int64_t lead = aligned ? 0 : unit - 1;
  auto copies_of = [&](int64_t most) { return std::max<int64_t>(ceil_div(run, ceil_div(run, most)), 2); };
  int64_t box_w, advance;
  if (bytes > 2) {
    // TMA writes each phase to a multiple of 128 bytes.
    const int64_t whole = std::max(unit, 128 * phases / each_bytes), room = kMaxBox / whole * whole - lead;
    box_w = round_up(copies_of(raw.shared ? kLinearBox : room) + lead, whole), advance = box_w - lead;
  } else {
    // An odd number of chunks here too; more than the lead takes.
    const int64_t most = raw.shared ? kLinearBox : kMaxBox - unit;
    box_w = (ceil_div(copies_of(most - lead) + lead, unit) | 1) * unit, advance = aligned ? box_w : box_w - unit;
  }
  raw.box_w = static_cast<int32_t>(box_w), raw.advance = static_cast<int32_t>(advance);
  raw.stage_bytes = static_cast<int32_t>(box_w * each_bytes);
  // A warp has one or two stages of its own. Few filters leave room for them, lines of float32 for a row each.
  const int32_t room = config.columns > 1 ? 90112 : 43008;
  const bool rows = config.lines && bytes > 2;
  raw.stages = rows ? 6 : raw.stage_bytes <= 3072 ? 12 : std::clamp(room / raw.stage_bytes, 3, 6);
  raw.stages -= raw.stages % halo_pipelines(config.lines);
  return raw;
}

// Lanes of a warp load from 4 channels that follow each other, or from every other one of 8, as many pixels of each:
// the distance of channels puts those into different banks.
RawPlanes float_planes(const Work& work, const HaloConfig& config, const Tiles& tiles, bool even) {
  const int64_t off = config.operands != OperandForm::kTf32 ? 4 : 8,
                lead = even && work.in.w % 2 == 0 ? 2 : kMaxFloatLead;
  RawPlanes raw{};
  raw.box_w = static_cast<int32_t>(round_up(std::max(tiles.halo_pitch + lead - off, int64_t{0}), 16) + off);
  return raw;
}

int64_t packed_filter_bytes(const Work& work, const ConvProblem& problem, const HaloConfig& config,
                            const Tiles& tiles) {
  constexpr int64_t kNoWorkspace = int64_t{1} << 50;
  // Of pairs of columns some that the filter does not have, and rows that reach no output.
  const int64_t columns = columns_at_once(config.filter), rows = columns > 1 ? problem.r * work.w.run[0].count : 0;
  const int64_t taps = columns * std::max(work.taps, rows);
  if (config.staging != HaloStaging::kFolded && std::max(taps, problem.r * problem.s) > kMaxPackTaps) {
    return kNoWorkspace;
  }
  const int64_t pieces = pack_rows(work, config, tiles) * tiles.c_blocks;  // at most
  return pieces > kInt32Max ? kNoWorkspace : work.groups * tiles.filters * tiles.steps * tiles.step_bytes;
}

}  // namespace

Store store_mode(const Work& work, const HaloConfig& config, bool linear) {
  const Side& out = work.out;
  if (config.filter == FilterTile::kPairs) return {StoreMode::kPairs, 1};
  const int widest = 16 / work.element_bytes;  // elements of a store
  if (out.stride.c == 1 && out.align >= 16 && out.c % widest == 0 && pixels_divisible(out, widest))
    return {StoreMode::kChannels, 1};
  if (out.stride.w != 1) return {StoreMode::kElements, 1};
  for (const int vector : {widest, 2}) {
    // A strip of columns is an even number of pixels.
    const bool long_runs = !linear && config.columns == 1;
    if ((long_runs || vector == 2) && work.out_step.w == 1 && out.w % vector == 0 &&
        out.align >= work.element_bytes * vector && planes_divisible(out, work.groups, vector)) {
      return {StoreMode::kPixels, vector};
    }
  }
  return {StoreMode::kPixels, 1};
}

bool stores_pieces(const Work& work, Store store) {
  constexpr int kSectorBytes = 32;
  const int64_t stride = work.out.h > 1 ? work.out.stride.h : work.out.stride.c;
  return store.mode == StoreMode::kPixels && stride % (kSectorBytes / work.element_bytes) != 0;
}

bool lines_can_store(const Work& work, const HaloConfig& config) {
  const Side& out = work.out;
  const int word = 4 / work.element_bytes;  // pixels that are stored together at least
  return out.stride.w == 1 && (out.h == 1 || out.stride.h == out.w) && out.w % word == 0 && out.align >= 4 &&
         out.w >= kBlock * config.m_blocks && planes_divisible(out, work.groups, word) && work.phases() == 1 &&
         work.out_step == kUnitStep && work.in_step.w == 1 && work.groups == 1 && out.c <= config.block_k &&
         work.in.c <= config.channels;
}

bool make_tiles(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Reaches& reaches,
                Tiles& out) {
  if (reaches.groups() > kMaxTapGroups) return false;
  const Side& in = work.in;
  out.pixel_bytes = config.pixel_bytes();
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
    out.per_filter = ceil_div(((in.n - 1) * out.linear_h + work.rows - 1) * out.linear_w + work.cols, out.pixels);
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
  const bool floats = config.staging == HaloStaging::kFloats;
  const int64_t parts = config.parts_a_stage();
  out.c_blocks = ceil_div(in.c, config.channels) * split_products(work.splitting.parts / static_cast<int>(parts));
  out.steps = work.taps / config.columns * out.c_blocks;
  if (out.count > kMaxTiles || out.steps > kInt32Max) return false;
  out.step_bytes = parts * config.n() * out.pixel_bytes;
  out.part_bytes = round_up(out.halo_rows * out.halo_pitch, 8) * out.pixel_bytes;  // whole swizzle patterns
  out.halo_bytes = parts == 1 ? out.halo_rows * out.halo_pitch * out.pixel_bytes : parts * out.part_bytes;
  out.row_step = out.halo_pitch * out.pixel_bytes, out.col_step = out.pixel_bytes;
  if (floats) {
    out.raw = float_planes(work, config, out, reaches.even && tiling.tile_q % 2 == 0);
    if (out.raw.box_w > kMaxBox) return false;
    out.halo_bytes = out.halo_rows * config.channels * out.raw.box_w * 4;
    out.row_step = out.col_step = 1;
  }
  out.halo_stage_bytes = round_up(out.halo_bytes, config.lines ? 8 * out.pixel_bytes : kHaloAlignment);
  if (!floats) out.raw = raw_planes(work, config, tiling, reaches, out);
  return true;
}

bool choose_stages(const Work& work, const HaloConfig& config, const Tiles& tiles, int64_t smem_bytes,
                   HaloTiling& tiling) {
  const int64_t room = smem_bytes - halo_fixed_bytes(config, work.element_bytes) - tiles.raw_bytes();
  const int64_t halo = tiles.halo_stage_bytes, step = tiles.step_bytes;
  const bool floats = config.staging == HaloStaging::kFloats;
  // A folded halo is given away when the next one is on its way, and free again when the next one is in use.
  const int64_t least = config.staging == HaloStaging::kFolded ? 3 : 2;
  // Of parts that several products need one is enough.
  const int parts = work.splitting.parts / config.parts_a_stage();
  const int64_t resident = tiles.steps / split_products(parts) * parts;
  // Where each halo has one tap, they are needed as fast as filter steps. More are then under way, for the latency of
  // memory.
  const bool single = (config.staging == HaloStaging::kTma || staged_as_planes(config.staging)) &&
                      config.columns == 1 && work.taps == 1;
  const int64_t most = single ? 6 : 4, pairs = room / (halo + step);  // of a halo and a filter step
  tiling.filter_resident = tiling.shares == 1 && tiles.filters == 1 && work.groups == 1 && resident > 0 &&
                           (parts == 1 || work.phases() == 1) &&
                           resident + (floats ? 8 : most) + tiles.raw.stages <= kMaxHaloStages &&
                           resident * step + least * halo <= room;
  int64_t halo_stages, filter_stages;
  if (tiling.filter_resident) {
    filter_stages = resident;
    halo_stages = std::min(most, (room - resident * step) / halo);
    halo_stages -= halo_stages % halo_pipelines(config.lines);
  } else if (single && pairs >= (config.staging == HaloStaging::kShifted ? 3 : 4)) {
    halo_stages = std::min(most, pairs);
    filter_stages = std::min<int64_t>(24, (room - halo_stages * halo) / step);
  } else {
    // Enough filter stages to cover the latency of L2 come first, a third halo stage after that.
    const int64_t want = std::max<int64_t>(4, ceil_div(49152, step));
    halo_stages = std::clamp<int64_t>((room - want * step) / halo, least, 4);
    filter_stages = std::min<int64_t>(24, (room - halo_stages * halo) / step);
    if (filter_stages < (floats && config.columns > 1 ? 6 : 3)) return false;  // three rows are waited for at once
  }
  tiling.halo_stages = static_cast<int16_t>(halo_stages), tiling.filter_stages = static_cast<int16_t>(filter_stages);
  if (config.lines) return tiling.filter_resident;
  return !loads_filters_twice(config, tiling) || config.block_k <= 128;
}

int64_t rows_of_busiest(const Work& work, int64_t run_rows, int sm_count) {
  return ceil_div(ceil_div(work.in.n * work.rows, run_rows), 2 * sm_count) * run_rows;
}

int8_t choose_run_rows(const Work& work, int sm_count) {
  constexpr int kMost = 64;
  int best = 1;
  auto cost = [&](int rows) {
    return static_cast<double>(rows_of_busiest(work, rows, sm_count)) * (1 + kSharedLines / rows);
  };
  for (int rows = 2; rows <= kMost; ++rows) {
    if (cost(rows) < cost(best)) best = rows;
  }
  return static_cast<int8_t>(best);
}

int64_t pack_rows(const Work& work, const HaloConfig& config, const Tiles& tiles) {
  return work.groups * tiles.filters * config.block_k / columns_at_once(config.filter);
}

bool reads_filter_directly(const Work& work, const HaloConfig& config, const ConvProblem& problem) {
  if (config.operands != OperandForm::kHalf) return true;  // or so once it is split
  if (config.columns > 1) return false;
  const bool in_phases = config.staging == HaloStaging::kTransposed || config.staging == HaloStaging::kShifted;
  if (in_phases && plane_phases(work.in, work.groups, work.element_bytes) > 1) return false;
  if (config.staging == HaloStaging::kFolded) return false;
  return (config.filter == FilterTile::kNMajor || problem.pass == Pass::kFprop) && tma_can_load_filter(problem);
}

Workspace workspace_of(const Work& work, const HaloConfig& config, const ConvProblem& problem, const HaloTiling& tiling,
                       const Tiles& tiles) {
  const int64_t sums = tiling.shares == 1 ? 0 : 4 * tiling.shares * tiles.count * tiles.pixels * config.n();
  if (config.operands != OperandForm::kHalf) {
    const Operand operand = operand_of(config.operands);
    const Splitting& split = work.splitting;
    return {split.filter ? filter_split_bytes(problem, operand, split.parts) : 0,
            split.in ? split_bytes(work.in_planes, work.groups, operand, split.parts) : 0, 0, sums};
  }
  return {reads_filter_directly(work, config, problem) ? 0 : packed_filter_bytes(work, problem, config, tiles),
          work.reordering.in ? reordered_bytes(work.in_planes, work.groups) : 0,
          work.reordering.out ? reordered_bytes(work.out_planes, work.groups) : 0, sums};
}

bool can_share(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles, int sm_count) {
  const int64_t channel_blocks = ceil_div(work.in.c, config.channels);
  return shares_tiles(config.staging, config.m_blocks, config.columns, config.lines) && !tiling.turns &&
         tiles.count > 0 && channel_blocks % tiling.shares == 0 &&
         static_cast<double>(tiles.count * tiling.shares) <= kInClusters * sm_count;
}

CopyWarps copy_warps(const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles, const Reaches& reaches) {
  const auto copies = static_cast<double>(tiling.linear ? tiles.halo_rows : 1);
  const double steps = static_cast<double>(tiles.steps) / static_cast<double>(reaches.groups() * tiles.c_blocks);
  const int64_t fragments = tiles.pixels / kBlock * (tiles.pixel_bytes / 32);
  const double products = steps * static_cast<double>(fragments * config.n() / 2);
  const double moved = static_cast<double>(tiles.halo_bytes) / kLoadBytesPerClock;
  CopyWarps best{};
  double least = std::numeric_limits<double>::infinity();
  // All have a row: one without would not be waited for, and miss a round of the ring.
  for (int32_t count = 1; count < kProducerWarps && count <= copies; ++count) {
    const double clocks = std::max(kCopyClocks * copies / count, moved);
    const double filter = tiling.filter_resident ? 0 : kFilterStepClocks * steps / (kProducerWarps - count);
    const double slowest = std::max({clocks, filter, products});
    if (slowest < least) least = slowest, best = {count, clocks};
  }
  return best;
}

bool loads_filters_twice(const HaloConfig& config, const HaloTiling& tiling) {
  return tiling.turns && !tiling.filter_resident && config.block_k > 64;
}

bool short_of_filters(const HaloTiling& tiling, const Tiles& tiles) {
  return !tiling.filter_resident && tiling.filter_stages * tiles.step_bytes <= 65536;
}

}  // namespace fastconv::halo
