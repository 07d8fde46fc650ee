#include "fastconv/families/wgrad/cost.h"

#include <algorithm>

#include "fastconv/core/integers.h"
#include "fastconv/tile/copies.h"

namespace fastconv::wgrad {
namespace {

// The model's constants: clocks and bytes, fitted to 10,790 timed plans of 46 problems on an H200 (docs/perf-log.md),
// 3% from the best plan on average. Rates are those that the formulas below need, not the hardware's.
constexpr double kMmaEfficiency = .91;
constexpr double kCopyBytes = 70, kCopyClocks = 125;  // a clock; of one copy, whatever its size
constexpr double kCopyLatency = 1600, kTileClocks = 40;
constexpr double kOverlap = .35;                   // of the shorter of arithmetic and device memory, what shows
constexpr double kSumsToSmem = 21, kSumsOut = 26;  // bytes a clock
constexpr double kSumsAlone = 45;                  // the same of blocks that leave them alone; by builds in turns
constexpr double kSplitIssue = 110;                // to load and split dy's fragment of a step
constexpr double kLaunchClocks = 13300;
constexpr double kReduceClocks = 2900, kReduceBytes = 2300;  // of the second kernel; a clock, by builds in turns
// Producer warps go round: loads, then stores, some 500 instructions of one warp a scheduler and a memory latency.
constexpr double kStagingRoundClocks = 2700;

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
  double mma = static_cast<double>(tile.steps * config.slots()) * wgmma / kMmaEfficiency;
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
    const double shows = by_size ? .7 : config.warpgroups > 2 || config.n() <= 64 ? .4 : .1;
    mma = (std::max(products, splits) + shows * std::min(products, splits)) / kMmaEfficiency;
  }
  double load = bytes / kCopyBytes + kCopyClocks * copies;
  // TMA takes as long for a short row of pixels as for one of 128 bytes, and longer where each lies in
  // another page of memory, or neighbours have maps of their own.
  if (y_has_pixel_rows(config.staging) && !x_has_pixel_rows(config.staging)) {
    constexpr int64_t kPageBytes = 2 << 20;
    const int64_t phases = work.floats ? 1 : row_phases(work.y), element = work.floats ? 4 : 2;
    const double row_clocks = work.y.stride.c * element >= kPageBytes / 2 ? 13 : phases > 2 ? 11 : phases > 1 ? 8 : 5;
    const auto rows = static_cast<double>(tiling.m_blocks * kFilters * (work.floats ? tile.copies : tiling.tile_p));
    load += std::max(0., rows * row_clocks - static_cast<double>(tiling.m_blocks * tile.y_box_bytes) / kCopyBytes);
  }
  if (!copied.x) load += staging_clocks(x_operand(work, tiling, tile), config.channels, reach.most_parts);
  if (!copied.y) load += staging_clocks(y_operand(work, tiling, tile), kFilters, tiling.m_blocks);
  const double stages = static_cast<double>(tile.stages) - .5 * work.floats;  // which are released a step late
  return std::max({mma, load, (mma + load + kCopyLatency) / stages}) + kTileClocks;
}

Sharing share_pixels(const WgradConfig& config, const DeviceSpec& device, int64_t jobs, int64_t tiles,
                     double tile_clocks, double dram_clocks, int64_t max_cluster, int64_t room) {
  Sharing best;
  const double sums = config.job_bytes();
  auto consider = [&](int64_t splits, int64_t cluster, int64_t sms) {
    const int64_t partials = splits / cluster;
    if (partials > 1 && partials * jobs * config.job_bytes() > room) return;
    const double part = sums / static_cast<double>(cluster);
    const bool alone = leaves_sums_alone(config.staging, cluster, partials);
    const double store = alone ? sums / kSumsAlone : sums / kSumsToSmem + part / kSumsOut;
    const double block = static_cast<double>(ceil_div(tiles, splits)) * tile_clocks + store;
    const double reduce = kReduceClocks + static_cast<double>(partials * jobs) * sums / kReduceBytes;
    const double work = static_cast<double>(ceil_div(splits * jobs, sms)) * block;
    const double clocks = std::max(work, dram_clocks) + kOverlap * std::min(work, dram_clocks) + kLaunchClocks +
                          (partials > 1 ? reduce : 0);
    if (clocks < best.clocks) best = {clocks, splits, cluster};
  };
  consider(1, 1, device.sm_count);
  for (int64_t cluster = 1; cluster <= max_cluster; cluster *= 2) {
    // A cluster lives in one of the chip's groups of SMs, some of which have few to spare.
    const int64_t sms = cluster <= 2 ? device.sm_count : device.sm_count * 10 / 11;
    for (int64_t waves = 1; waves <= 2; ++waves) {
      const int64_t most = std::max(room / (jobs * config.job_bytes()) * cluster, cluster);
      const int64_t splits = std::min({waves * sms / jobs, tiles, most}) / cluster * cluster;
      if (splits > 0) consider(splits, cluster, sms);
    }
  }
  return best;
}

}  // namespace fastconv::wgrad
