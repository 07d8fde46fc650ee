#include "fastconv/families/halo/cost.h"

#include <algorithm>
#include <cmath>

#include "fastconv/core/integers.h"
#include "fastconv/planner/cost_model.h"
#include "fastconv/tile/plan_reorder.h"
#include "fastconv/tile/plan_split.h"

namespace fastconv::halo {
namespace {

bool stores_strided_pixels(const Work& work, const Store& store) {
  return work.out_step.w > 1 && store.mode == StoreMode::kPixels;
}

// Bytes a clock of an SM. Rows of pixels: what matters is how many bytes a warpgroup writes to a row at
// once, and that pieces of a sector are written together, or at least while L2 still has the rest.
double store_rate(const Work& work, const HaloConfig& config, const HaloTiling& tiling) {
  const Store store = store_mode(work, config, tiling.linear);
  if (config.lines) return 12;
  if (store.mode == StoreMode::kElements) return 5;
  if (store.mode == StoreMode::kPairs) return 16;
  if (stores_strided_pixels(work, store)) return 3;
  if (store.mode == StoreMode::kChannels) return 40;
  const bool narrow = tiling.block_w_log2 == 3;
  const int together = config.m_blocks % 2 != 0 ? 1 : config.m_blocks;  // as the epilogue has it
  const int across = tiling.linear ? config.m_blocks : std::min(together, 1 << tiling.across_log2);
  const double run = 1. * work.element_bytes * across * (narrow ? 8 : 64);
  double rate = std::min(40., run / 2);
  if (stores_pieces(work, store)) {
    constexpr double kSmallOutput = 4e7;  // bytes
    const bool small = static_cast<double>(work.out.n * work.out.h * work.out.w) *
                           static_cast<double>(work.out.c * work.groups * work.element_bytes) <
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

// Clocks that staging takes of the warps and TMA, a halo.
double staging_clocks(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles,
                      const Reaches& reaches) {
  constexpr double kBytesPerClock[] = {0, 0, 40, 27, 40, 4.6, 4, 3};  // by HaloStaging
  if (config.staging == HaloStaging::kTma) return copy_warps(config, tiling, tiles, reaches).clocks;
  if (config.staging != HaloStaging::kTransposed) {
    return static_cast<double>(tiles.halo_bytes) / kBytesPerClock[static_cast<int>(config.staging)];
  }
  if (config.operands != OperandForm::kHalf) {
    // 32 pixels of a 16-byte chunk of channels, in each part: one warp of six. Pixels that a stride leaves out cost as
    // much as others, and those that are not simply next to each other are looked up.
    const double unit = (config.operands == OperandForm::kTf32 ? 40 : 60 * config.parts_a_stage() - 20) +
                        (tiling.linear || tiles.raw.step_log2 > 0 ? 30 : 0);
    const double chunks = config.pixel_bytes() / 16.;
    const auto row = static_cast<double>(((tiles.halo_pitch - 1) << tiles.raw.step_log2) + 1);
    const double pixels = tiles.raw.shared ? tiles.raw.advance : std::min<double>(tiles.raw.advance, row);
    const double copy = std::max(330., std::ceil(pixels / 32) * chunks * unit / 6);
    return (work.taps == 1 ? 2 : 1) * copy * raw_copies(work, tiling, tiles);
  }
  // A row that one warp turns waits for its copy. What all warps share makes them wait for each other and look up where
  // pixels go.
  const double bytes = tiles.raw.stage_bytes;
  const double copy = tiles.raw.shared ? 900 + bytes / 60 : std::max(330., 230 + bytes / 21);
  return (work.taps == 1 ? 1.4 : 1) * copy * raw_copies(work, tiling, tiles);
}

// Clocks of an SM for what a consumer of float32 planes does with a fragment apart from its products: its
// few warps wait for their own instructions. Three filter rows share fragments where columns lie on N.
// A warpgroup in its turn has all of the SM, and little use for it.
double fragment_clocks(const HaloConfig& config, bool turns) {
  switch (config.operands) {
    case OperandForm::kTf32: return (config.columns > 1 ? 40 : 55) * (turns ? 1.6 : 1);
    case OperandForm::kParts: return (config.columns > 1 ? 140 : 200) * (turns ? 1.2 : 1);
    case OperandForm::kScaled: return 80;  // columns side by side, which the next ones have as well
    case OperandForm::kPromotedScaled: return 150;
    default: return config.columns > 1 ? 280 : (150 + 3 * config.n()) * (config.channels < 32 ? 1.3 : 1);
  }
}

// What the model does not see where warps make operands of float32 on the way, measured: the share that a tile loses.
// Short rows of parts leave lanes idle, products of 64 filters have no shared memory to spare; strides, planes that
// begin elsewhere and single taps are more work than the copies say.
double rough_operands(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles) {
  const bool parts = has_parts(config.operands), linear = tiling.linear, turns = tiling.turns;
  return .1 * (parts && !linear && !turns) + .05 * (config.block_k < 128) + .1 * (linear && turns) +
         .12 * (parts && linear && config.m_blocks == 1) + .15 * is_scaled(config.operands) +
         .3 * (tiles.raw.phases_log2 > 0) + .6 * (work.taps == 1) + .5 * (tiles.raw.step_log2 > 0);
}

}  // namespace

double cost_us(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles,
               const Reaches& reaches, Packing packing, double bytes, int sm_count) {
  constexpr double kFixedClocks = 6000;  // launch, first loads, last store
  constexpr double kPackUs = .8, kWaitUs = 1.8, kHiddenUs = 1.5, kTurnUs = 1;
  const double pack_bytes_per_us =
      work.element_bytes == 2 && work.groups > 1 ? 6e4 : 1.4e6;  // groups' are turned in small pieces
  const double phases = work.phases();
  const double steps = static_cast<double>(tiles.steps) / phases / tiling.shares;
  const double halos =
      static_cast<double>(reaches.groups()) / phases * static_cast<double>(tiles.c_blocks) / tiling.shares;
  const double fragments = steps * (config.pixel_bytes() / 32) * config.m_blocks * (tiling.turns ? 1 : 2);
  const double wgmmas = fragments * split_products(config.parts_a_stage());
  const double halo_load = halos * static_cast<double>(tiles.halo_bytes);
  const double filter_load = tiling.filter_resident ? 0. : steps * static_cast<double>(tiles.step_bytes);
  const auto out_bytes = static_cast<double>(work.element_bytes * tiles.pixels * config.block_k);
  const double mma = wgmmas * config.n() / 2. / .95;
  const double raw_load =
      config.staging == HaloStaging::kTransposed ? halos * raw_copies(work, tiling, tiles) * tiles.raw.stage_bytes : 0;
  const bool floats = config.staging == HaloStaging::kFloats;
  const double operand_load =
      (floats ? fragments * 64 * (config.operands == OperandForm::kTf32 ? 32 : 64) : wgmmas * 64 * 32) +
      wgmmas * config.n() * 32;
  const double smem = (operand_load + halo_load + filter_load + 2 * raw_load + 2 * out_bytes) / 128;
  // A filter step is waited for, and its few products for each other.
  constexpr double kStepClocks = 200;
  const double issue = floats                   ? fragments * fragment_clocks(config, tiling.turns)
                       : tiling.filter_resident ? 0
                                                : kStepClocks * steps;
  const double staging = halos * staging_clocks(work, config, tiling, tiles, reaches);
  const double load = std::max((halo_load + filter_load + raw_load) / kLoadBytesPerClock, staging);
  // Measured: tiles of twice the size take less than twice as long.
  const bool strided = stores_strided_pixels(work, store_mode(work, config, tiling.linear));
  const double epilogue = out_bytes / store_rate(work, config, tiling) + (strided ? 1000. * work.element_bytes : 300);
  // Of two stages each is waited for while the other is multiplied.
  constexpr double kCopyLatency = 1600;
  const double stages = tiling.halo_stages > 2 ? 0 : (mma + load + kCopyLatency * halos) / 2;
  // Warps that stage and products compete for shared memory.
  const bool by_warps = staged_by_warps(config.staging);
  const bool half = config.operands == OperandForm::kHalf;
  // What a step waits for shows where a block has few of them.
  const bool waits_for_steps = floats || tiling.shares > 1;
  const double body = std::max({mma, smem, load, issue, stages}) +
                      (by_warps ? (half ? .15 : .05) * std::min(mma, staging) : 0) +
                      (waits_for_steps ? (work.taps == 1 ? .1 : .14) * std::min(mma, issue) : 0) +
                      (half && tiles.raw.whole ? 900 * halos : 0);
  const double tile = tiling.turns ? std::max({body + 100, epilogue, (body + epilogue + 500) / 2}) : body + epilogue;
  // Sums pass through L2, there and back.
  constexpr double kShareClocks = 5000;
  const double shares =
      tiling.shares == 1 ? 0 : kShareClocks + 8. * static_cast<double>(tiles.pixels * config.n()) / kLoadBytesPerClock;
  const auto waves = static_cast<double>(config.lines ? 2 * rows_of_busiest(work, tiling.run_rows, sm_count) *
                                                            ceil_div(work.cols, tiling.tile_q)
                                                      : ceil_div(tiles.count, sm_count));
  // What the model does not see, measured: short rings, linear tiles and long runs of pixels each lose a little,
  // filters that do not exist as well, and half of a narrow group's stores; few channels of TF32, and stages of 8 where
  // there are more, which take twice as long; staging warps lose more where they cannot run ahead, and most where they
  // leave out every other pixel.
  const double idle = 1 - static_cast<double>(work.out.c) / static_cast<double>(tiles.filters * config.block_k);
  // Sums are promoted while the other warpgroup multiplies, unless it waits for its turn.
  const bool promoted = promotes(config.operands), waits = promoted && tiling.turns;
  const bool narrow =
      promoted && config.staging == HaloStaging::kTma && config.channels < 32;  // six times the copies of short rows
  const bool small = config.m_blocks == 1 && config.n() < 128;  // for few pixels; others have better ones
  const bool made = by_warps && !half;
  const bool by_threads = config.staging == HaloStaging::kPairs || config.staging == HaloStaging::kPixels;
  const double rough =
      !by_threads
          ? 1 +
                (config.staging != HaloStaging::kTransposed ? .02
                 : tiling.linear                            ? .06
                                                            : .08) *
                    (tiling.halo_stages == 2) +
                .02 * short_of_filters(tiling, tiles) + .01 * tiling.linear + .5 * waits + .9 * narrow +
                (small && waves > 1) + .05 * (work.taps == 1 && is_large_tile(config.m_blocks, config.block_k)) +
                .05 * ((tiling.linear || config.columns > 1) && tiling.turns) -
                .08 * (promoted && config.m_blocks == 3 && !tiling.linear) +
                .03 * (config.staging == HaloStaging::kTransposed && tiling.turns) +
                .8 * (half && tiles.raw.step_log2 > 0 && tiling.turns && tiling.halo_stages == 2) +
                (made ? rough_operands(work, config, tiling, tiles) : 0) +
                .1 * (config.operands == OperandForm::kPromotedScaled && config.channels < 64 && config.block_k < 128) +
                .01 * (!tiling.linear && tiling.block_w_log2 == 6) + (half && work.groups > 1 ? 1 : .02) * idle +
                .5 * (config.operands == OperandForm::kTf32 && work.in.c <= 4) +
                (config.channels == 8 && work.in.c > 8) + .15 * (config.staging == HaloStaging::kShifted) +
                .1 * (by_warps && half && tiling.linear && config.channels < 64 && work.in.c > 32)
          : 1 + .06 * (4 - tiling.halo_stages) + .1 * idle;
  const bool reorders = work.reordering.in || work.reordering.out || work.splitting.in;  // they wait anyway
  const double share = static_cast<double>(std::clamp<int64_t>(tiles.count * tiling.shares, 1, sm_count)) / sm_count;
  // A few SMs are slow to split a filter.
  const double pack_rate = pack_bytes_per_us * (config.operands == OperandForm::kHalf ? 1 : std::min(1., 2 * share));
  const double pack = packing.bytes == 0 ? 0
                                         : kPackUs + (reorders ? 0 : kWaitUs - kHiddenUs) +
                                               kTurnUs * (packing.turned && config.channels == 64) +
                                               static_cast<double>(packing.bytes) / pack_rate;
  constexpr double kLastUs = 4;  // until all have stored, and with nothing else to do
  const Operand operand = operand_of(config.operands);
  const Splitting& split = work.splitting;
  const double splits = split.in ? split_us(work.in_planes, work.groups, operand, split.parts, share) : 0;
  const double reorder = (work.reordering.in ? reorder_us(work.in_planes, work.groups, share) : 0) +
                         (work.reordering.out ? reorder_us(work.out_planes, work.groups, share) + kLastUs : 0);
  // What is moved twice takes power, and that is short where a kernel runs long; more so in short steps.
  constexpr double kLongCycles = 200000;
  const double hungry = loads_filters_twice(config, tiling) && waves * tile > kLongCycles ? 2. / config.channels : 0;
  // Read once, and lines of memory in two parts. Planes for few filters at once, measured.
  const double lines = (work.taps == 1 && config.channels < std::min<int64_t>(work.in.c, 64) ? 1.15 : 1) *
                       (staged_as_planes(config.staging) && config.block_k < 128 ? 1.05 : 1);
  const double clocks = waves * tile * (rough + hungry) + kFixedClocks + (tiling.turns ? epilogue : 0) + shares;
  const double compute_us = clocks / kTensorCyclesPerUs, memory_us = bytes / (kBytesPerUsPerSm * sm_count) * lines;
  // They overlap, not entirely; least where halos of every other pixel are waited for between tiles, measured.
  const bool apart =
      config.staging == HaloStaging::kTma && half && work.in_step.w > 1 && work.taps > 1 && !tiling.turns && waves > 1;
  // What begins before the first product, where lanes find few channels: measured on an H100.
  const double found = config.staging == HaloStaging::kPixels ? 3 : config.staging == HaloStaging::kFolded ? 1.3 : 0;
  return pack + reorder + splits + found + std::max(compute_us, memory_us) +
         (apart ? .3 : .1) * std::min(compute_us, memory_us);
}

}  // namespace fastconv::halo
