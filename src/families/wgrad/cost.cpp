#include "fastconv/families/wgrad/cost.h"

#include <algorithm>

#include "fastconv/core/integers.h"
#include "fastconv/tile/copies.h"

namespace fastconv::wgrad {
namespace {

using namespace cost::wgrad;

double staging_clocks(const WgradOperand& from, int channels, int64_t boxes) {
  const WgradSharing sharing(from.vector, channels / 8);
  const int64_t lanes = ceil_div(int64_t{from.box_rows} * from.row_units.divisor, sharing.lane_units);
  const int64_t count = lanes * (sharing.spread ? 1 : channels / 8);
  return kStagingRoundClocks * static_cast<double>(boxes * ceil_div(count, kWgradStagingWarps * sharing.batch));
}

}  // namespace

double tile_clocks(const Work& work, const WgradConfig& config, const Reach& reach, const WgradTiling& tiling,
                   const Tile& tile, Copied copied) {
  // A wgmma m64 x n x k16 takes n / 2 clocks, or what reading its operands at 128 bytes a clock takes.
  const double wgmma = std::max(config.n() / 2., (64 + config.n()) / 4.);
  double mma = static_cast<double>(tile.steps * config.slots()) * wgmma / kProductRate;
  const int64_t x_boxes = work.stage_parts() * reach.most_parts;
  const double bytes = static_cast<double>(x_boxes * tile.x_box_bytes + tiling.m_blocks * tile.y_box_bytes);
  const auto copies = static_cast<double>(x_boxes + tiling.m_blocks * tile.copies);
  if (work.floats) {
    // A from registers: B alone is read from shared memory. A scheduler issues for a warp of each warpgroup.
    // Products of each size split dy anew, and wait for the accumulators in between.
    const bool by_size = split_scale(work.parts, work.operand) > 1;
    const double products = static_cast<double>(work.products() * tile.steps * config.slots()) * (config.n() / 2.);
    const double splits =
        kSplitIssue * static_cast<double>((by_size ? work.parts : 1) * tile.steps * config.warpgroups);
    const double shows = by_size                                     ? kSplitShownBySize
                         : config.warpgroups > 2 || config.n() <= 64 ? kSplitShownNarrow
                                                                     : kSplitShown;
    mma = (std::max(products, splits) + shows * std::min(products, splits)) / kProductRate;
  }
  double load = bytes / kCopyBytes + kCopyClocks * copies;
  // TMA takes as long for a short row of pixels as for one of 128 bytes, and longer where each lies in
  // another page of memory, or neighbours have maps of their own.
  if (y_has_pixel_rows(config.staging) && !x_has_pixel_rows(config.staging)) {
    constexpr int64_t kPageBytes = 2 << 20;
    const int64_t phases = work.floats ? 1 : row_phases(work.y), element = work.floats ? 4 : 2;
    const double row_clocks = work.y.stride.c * element >= kPageBytes / 2
                                  ? kPageRowClocks
                                  : kPixelRowClocks[std::min<int64_t>(phases, 3) - 1];
    const auto rows = static_cast<double>(tiling.m_blocks * kFilters * (work.floats ? tile.copies : tiling.tile_p));
    load += std::max(0., rows * row_clocks - static_cast<double>(tiling.m_blocks * tile.y_box_bytes) / kCopyBytes);
  }
  if (!copied.x) load += staging_clocks(x_operand(work, tiling, tile), config.channels, reach.most_parts);
  if (!copied.y) load += staging_clocks(y_operand(work, tiling, tile), kFilters, tiling.m_blocks);
  const double stages = static_cast<double>(tile.stages) - kLateStage * work.floats;
  return std::max({mma, load, (mma + load + kCopyLatency) / stages}) + kTileClocks;
}

Sharing share_pixels(const WgradConfig& config, const DeviceSpec& device, int64_t jobs, int64_t tiles,
                     double tile_clocks, double bytes, int64_t max_cluster, int64_t room) {
  Sharing best;
  const double sums = config.job_bytes();
  auto consider = [&](int64_t splits, int64_t cluster, int64_t sms) {
    const int64_t partials = splits / cluster;
    if (partials > 1 && partials * jobs * config.job_bytes() > room) return;
    const double part = sums / static_cast<double>(cluster);
    const bool alone = leaves_sums_alone(config.staging, cluster, partials);
    const double store = alone ? sums / kSumsAlone : sums / kSumsToSmem + part / kSumsOut;
    const double block = static_cast<double>(ceil_div(tiles, splits)) * tile_clocks + store;
    const double reduce_us = kReduceUs + memory_us(static_cast<double>(partials * jobs) * sums / kReduceRate, device);
    const double us = time_us({.clocks = static_cast<double>(ceil_div(splits * jobs, sms)) * block,
                               .bytes = bytes / kMemoryRate,
                               .shown = kShown,
                               .us = kStartUs + (partials > 1 ? reduce_us : 0)},
                              device);
    if (us < best.us) best = {us, splits, cluster};
  };
  consider(1, 1, device.sm_count);
  for (int64_t cluster = 1; cluster <= max_cluster; cluster *= 2) {
    // A cluster lives in one of the chip's groups of SMs, some of which have few to spare.
    const int64_t sms = cluster <= 2 ? device.sm_count : static_cast<int64_t>(device.sm_count * kClusterSms);
    for (int64_t waves = 1; waves <= 2; ++waves) {
      const int64_t most = std::max(room / (jobs * config.job_bytes()) * cluster, cluster);
      const int64_t splits = std::min({waves * sms / jobs, tiles, most}) / cluster * cluster;
      if (splits > 0) consider(splits, cluster, sms);
    }
  }
  return best;
}

}  // namespace fastconv::wgrad
