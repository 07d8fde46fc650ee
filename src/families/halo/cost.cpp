#include "fastconv/families/halo/cost.h"

#include <algorithm>
#include <cmath>

#include "fastconv/core/integers.h"
#include "fastconv/tile/plan_reorder.h"
#include "fastconv/tile/plan_split.h"

namespace fastconv::halo {
namespace {

using namespace cost::halo;

bool stores_strided_pixels(const Work& work, const Store& store) {
  return work.out_step.w > 1 && store.mode == StoreMode::kPixels;
}

// Bytes a clock of an SM. Rows of pixels: what matters is how many bytes a warpgroup writes to a row at
// once, and that pieces of a sector are written together, or at least while L2 still has the rest.
double store_rate(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const DeviceSpec& device) {
  const Store store = store_mode(work, config, tiling.linear);
  if (config.lines) return kLines;
  if (store.mode == StoreMode::kElements) return kElements;
  if (store.mode == StoreMode::kPairs) return kPairs;
  if (stores_strided_pixels(work, store)) return kStridedPixels;
  if (store.mode == StoreMode::kChannels) return kChannels;
  const bool narrow = tiling.block_w_log2 == 3;
  const int together = config.m_blocks % 2 != 0 ? 1 : config.m_blocks;  // as the epilogue has it
  const int across = tiling.linear ? config.m_blocks : std::min(together, 1 << tiling.across_log2);
  const double run = 1. * work.element_bytes * across * (narrow ? 8 : 64);
  double rate = std::min<double>(kChannels, run / kPixelRun);
  if (stores_pieces(work, store)) {
    const bool kept = static_cast<double>(work.out.n * work.out.h * work.out.w) *
                          static_cast<double>(work.out.c * work.groups * work.element_bytes) <
                      kKept * static_cast<double>(device.l2_bytes);
    rate = narrow ? run / (kept ? kNarrowPiecesKept : kNarrowPieces)
                  : std::min<double>(kMostPieces, run / (kept ? kPiecesKept : kPieces));
  }
  if (tiling.linear) rate = std::min<double>(kLinearPixels, rate);
  if (store.pixel_vector == 1) rate = std::min<double>(kSinglePixels, rate);
  return tiling.turns && stores_pieces(work, store) ? rate / kPiecesInTurns : rate;
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
  if (config.staging == HaloStaging::kTma) return copy_warps(config, tiling, tiles, reaches).clocks;
  if (config.staging != HaloStaging::kTransposed) {
    return static_cast<double>(tiles.halo_bytes) / kStagedBytesPerClock[static_cast<int>(config.staging)];
  }
  const double copies = raw_copies(work, tiling, tiles);
  if (config.operands != OperandForm::kHalf) {
    // Pixels that a stride leaves out cost as much as others.
    const bool stray = tiling.linear || tiles.raw.step_log2 > 0;
    const double unit =
        (config.operands == OperandForm::kTf32 ? kTf32Unit : kPartUnit * config.parts_a_stage() - kPartUnitsShare) +
        (stray ? kStrayUnit : 0);
    const double chunks = config.pixel_bytes() / 16.;
    const auto row = static_cast<double>(((tiles.halo_pitch - 1) << tiles.raw.step_log2) + 1);
    const double pixels = tiles.raw.shared ? tiles.raw.advance : std::min<double>(tiles.raw.advance, row);
    const double copy = std::max<double>(kLeastCopy, std::ceil(pixels / 32) * chunks * unit / 6);
    return (work.taps == 1 ? kUnitsOneTap : 1) * copy * copies;
  }
  const double bytes = tiles.raw.stage_bytes;
  const double copy = tiles.raw.shared ? kSharedRowWait + bytes / kSharedRowBytes
                                       : std::max<double>(kLeastCopy, kRowWait + bytes / kRowBytes);
  return (work.taps == 1 ? kRowsOneTap : 1) * copy * copies;
}

// Clocks of an SM for what a consumer of float32 planes does with a fragment apart from its products: its
// few warps wait for their own instructions. A warpgroup in its turn has all of the SM, and little use for it.
double fragment_clocks(const HaloConfig& config, bool turns) {
  const bool shared = config.columns > 1;
  switch (config.operands) {
    case OperandForm::kTf32: return (shared ? kTf32FragmentShared : kTf32Fragment) * (turns ? kTf32FragmentTurns : 1);
    case OperandForm::kParts:
      return (shared ? kPartsFragmentShared : kPartsFragment) * (turns ? kPartsFragmentTurns : 1);
    case OperandForm::kPromotedScaled: return kPromotedScaledFragment;
    default:
      return shared ? kPromotedFragmentShared
                    : (kPromotedFragment + kPromotedFragmentFilter * config.n()) *
                          (config.channels < 32 ? kPromotedFragmentNarrow : 1);
  }
}

// The share that a tile loses where warps make operands of float32 on the way.
double lost_by_made_operands(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles) {
  const bool parts = has_parts(config.operands), linear = tiling.linear, turns = tiling.turns;
  return kMadeParts * (parts && !linear && !turns) + kMadeFewFilters * (config.block_k < 128) +
         kMadeLinearTurns * (linear && turns) + kMadePartsLinear * (parts && linear && config.m_blocks == 1) +
         kMadeScaled * is_scaled(config.operands) + kMadePhases * (tiles.raw.phases_log2 > 0) +
         kMadeOneTap * (work.taps == 1) + kMadeStrided * (tiles.raw.step_log2 > 0);
}

// The same of one tap, whose tiles end soon.
double lost_by_one_tap(const HaloConfig& config) {
  const bool scaled = is_scaled(config.operands);
  const bool promoted_floats = promotes(config.operands) && !scaled && config.staging == HaloStaging::kFloats;
  return kOneTapLarge * is_large_tile(config.m_blocks, config.block_k) + kOneTapScaled * scaled +
         kOneTapPromotedFloats * promoted_floats;
}

// The share that a tile loses to what is not counted.
double lost(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles, double waves) {
  const double idle = 1 - static_cast<double>(work.out.c) / static_cast<double>(tiles.filters * config.block_k);
  if (config.staging == HaloStaging::kPixels) {
    return kFewerStages * (4 - tiling.halo_stages) + kIdleThreads * idle;
  }
  const bool half = config.operands == OperandForm::kHalf, promoted = promotes(config.operands);
  const bool transposed = config.staging == HaloStaging::kTransposed, by_warps = staged_by_warps(config.staging);
  const bool linear = tiling.linear, turns = tiling.turns;
  const bool small = config.m_blocks == 1 && config.n() < 128;  // for few pixels
  const double two_stages = !transposed ? kTwoStages : linear ? kTwoStagesLinear : kTwoStagesTransposed;
  return two_stages * (tiling.halo_stages == 2) + kShortRing * short_of_filters(tiling, tiles) + kLinear * linear +
         kPromotedTurns * (promoted && turns) +
         kPromotedNarrow * (promoted && config.staging == HaloStaging::kTma && config.channels < 32) +
         kPromotedThree * (promoted && config.m_blocks == 3 && !linear) +
         kPromotedHalfWidth *
             (config.operands == OperandForm::kPromotedScaled && config.channels < 64 && config.block_k < 128) +
         kSmallTile * (small && waves > 1) + (work.taps == 1 ? lost_by_one_tap(config) : 0) +
         kTurnsWide * ((linear || config.columns > 1) && turns) + kTurnsTransposed * (transposed && turns) +
         kTurnsStrided * (half && tiles.raw.step_log2 > 0 && turns && tiling.halo_stages == 2) +
         (by_warps && !half ? lost_by_made_operands(work, config, tiling, tiles) : 0) +
         kLongRows * (!linear && tiling.block_w_log2 == 6) + (half && work.groups > 1 ? kIdleGroups : kIdle) * idle +
         kFewChannelsTf32 * (config.operands == OperandForm::kTf32 && work.in.c <= 4) +
         kShortStages * (config.channels == 8 && work.in.c > 8) + kShifted * (config.staging == HaloStaging::kShifted) +
         kHalfLinearNarrow * (by_warps && half && linear && config.channels < 64 && work.in.c > 32);
}

// Before the first tile and after the last one: filters are packed, tensors written anew.
double other_us(const Work& work, const HaloConfig& config, Packing packing, double share, const DeviceSpec& device) {
  const bool half = config.operands == OperandForm::kHalf;
  double us = config.staging == HaloStaging::kPixels   ? kFoundPixelsUs
              : config.staging == HaloStaging::kFolded ? kFoundFoldedUs
                                                       : 0;
  if (packing.bytes > 0) {
    const bool waits_anyway = work.reordering.in || work.reordering.out || work.splitting.in;
    // A few SMs are slow to split a filter.
    const double rate = (work.element_bytes == 2 && work.groups > 1 ? kPackRateGroups : kPackRate) *
                        (half ? 1 : std::min(1., kPackShares * share));
    us += kPackUs + (waits_anyway ? 0 : kPackWaitUs) + kPackTurnUs * (packing.turned && config.channels == 64) +
          memory_us(static_cast<double>(packing.bytes), device) / rate;
  }
  if (work.splitting.in) {
    us += split_us(work.in_planes, work.groups, operand_of(config.operands), work.splitting.parts, share, device);
  }
  if (work.reordering.in) us += reorder_us(work.in_planes, work.groups, share, device);
  if (work.reordering.out) us += reorder_us(work.out_planes, work.groups, share, device) + kLastUs;
  return us;
}

}  // namespace

double cost_us(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles,
               const Reaches& reaches, Packing packing, double bytes, const DeviceSpec& device) {
  const double phases = work.phases();
  const double steps = static_cast<double>(tiles.steps) / phases / tiling.shares;
  const double halos =
      static_cast<double>(reaches.groups()) / phases * static_cast<double>(tiles.c_blocks) / tiling.shares;
  const double fragments = steps * (config.pixel_bytes() / 32) * config.m_blocks * (tiling.turns ? 1 : 2);
  const double wgmmas = fragments * split_products(config.parts_a_stage());
  const double halo_load = halos * static_cast<double>(tiles.halo_bytes);
  const double filter_load = tiling.filter_resident ? 0. : steps * static_cast<double>(tiles.step_bytes);
  const auto out_bytes = static_cast<double>(work.element_bytes * tiles.pixels * config.block_k);
  const double mma = wgmmas * config.n() / 2. / kProductRate;
  const double raw_load =
      config.staging == HaloStaging::kTransposed ? halos * raw_copies(work, tiling, tiles) * tiles.raw.stage_bytes : 0;
  const bool floats = config.staging == HaloStaging::kFloats;
  const double operand_load =
      (floats ? fragments * 64 * (config.operands == OperandForm::kTf32 ? 32 : 64) : wgmmas * 64 * 32) +
      wgmmas * config.n() * 32;
  const double smem = (operand_load + halo_load + filter_load + 2 * raw_load + 2 * out_bytes) / 128;
  const double issue = floats                   ? fragments * fragment_clocks(config, tiling.turns)
                       : tiling.filter_resident ? 0
                                                : kStepClocks * steps;
  const double staging = halos * staging_clocks(work, config, tiling, tiles, reaches);
  const double load = std::max((halo_load + filter_load + raw_load) / kLoadBytesPerClock, staging);
  // Measured: tiles of twice the size take less than twice as long.
  const bool strided = stores_strided_pixels(work, store_mode(work, config, tiling.linear));
  const double epilogue = out_bytes / store_rate(work, config, tiling, device) +
                          (strided ? kStridedStoreClocks * work.element_bytes : kStoreClocks);
  // Of two stages each is waited for while the other is multiplied.
  const double stages = tiling.halo_stages > 2 ? 0 : (mma + load + kCopyLatency * halos) / 2;
  const bool half = config.operands == OperandForm::kHalf;
  const double step_shown = floats || tiling.shares > 1 ? (work.taps == 1 ? kStepShownOneTap : kStepShown) : 0;
  const double staging_shown = staged_by_warps(config.staging) ? (half ? kHalfStagingShown : kStagingShown) : 0;
  const double body = std::max({mma, smem, load, issue, stages}) + staging_shown * std::min(mma, staging) +
                      step_shown * std::min(mma, issue) + (half && tiles.raw.whole ? kWholePlaneClocks * halos : 0);
  const double tile =
      tiling.turns ? std::max({body + kTurnWait, epilogue, (body + epilogue + kTurnClocks) / 2}) : body + epilogue;
  const double shares =
      tiling.shares == 1 ? 0 : kShareClocks + 8. * static_cast<double>(tiles.pixels * config.n()) / kLoadBytesPerClock;
  const auto waves = static_cast<double>(config.lines ? 2 * rows_of_busiest(work, tiling.run_rows, device.sm_count) *
                                                            ceil_div(work.cols, tiling.tile_q)
                                                      : ceil_div(tiles.count, device.sm_count));
  const bool is_long = waves * tile > kLongClocks;
  const double hungry = (is_long && loads_filters_twice(config, tiling) ? kHungry / config.channels : 0) +
                        (is_long && config.operands == OperandForm::kTf32 ? kHungryTf32 : 0);
  const bool half_lines = work.taps == 1 && config.channels < work.in.c && config.pixel_bytes() < 128;
  const double lines = (half_lines ? kHalfLines : 1) *
                       (staged_as_planes(config.staging) && config.block_k < 128 ? kPlanesFewFilters : 1);
  const bool apart =
      config.staging == HaloStaging::kTma && half && work.in_step.w > 1 && work.taps > 1 && !tiling.turns && waves > 1;
  const double share =
      static_cast<double>(std::clamp<int64_t>(tiles.count * tiling.shares, 1, device.sm_count)) / device.sm_count;
  return time_us({.clocks = waves * tile * (1 + lost(work, config, tiling, tiles, waves) + hungry) + kFixedClocks +
                            (tiling.turns ? epilogue : 0) + shares,
                  .bytes = bytes * lines,
                  .shown = apart ? kShownApart : kShown,
                  .us = other_us(work, config, packing, share, device)},
                 device);
}

}  // namespace fastconv::halo
