// The cost model of the sm_90a weight gradient. Private to its planner.
#pragma once

#include <limits>

#include "fastconv/families/wgrad/tiles.h"
#include "fastconv/planner/device_spec.h"

namespace fastconv::wgrad {

inline constexpr double kDramBytes = 2711;  // a clock

// Of one pass.
double tile_clocks(const Work& work, const WgradConfig& config, const Reach& reach, const WgradTiling& tiling,
                   const Tile& tile, Copied copied);

// How a job's pixels are shared out.
struct Sharing {
  double clocks = std::numeric_limits<double>::max();
  int64_t splits = 1, cluster = 1;
};

// `room`: bytes for the sums of several clusters.
Sharing share_pixels(const WgradConfig& config, const DeviceSpec& device, int64_t jobs, int64_t tiles,
                     double tile_clocks, double dram_clocks, int64_t max_cluster, int64_t room);

}  // namespace fastconv::wgrad
