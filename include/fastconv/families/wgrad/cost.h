// The cost model of the sm_90a weight gradient. Private to its planner.
#pragma once

#include <limits>

#include "fastconv/families/wgrad/tiles.h"
#include "fastconv/planner/cost.h"

namespace fastconv::cost {
#include "fastconv/families/wgrad/costs.def"
}

namespace fastconv::wgrad {

// Of one pass.
double tile_clocks(const Work& work, const WgradConfig& config, const Reach& reach, const WgradTiling& tiling,
                   const Tile& tile, Copied copied);

// How a job's pixels are shared out.
struct Sharing {
  double us = std::numeric_limits<double>::max();
  int64_t splits = 1, cluster = 1;
};

// `bytes`: through device memory. `room`: bytes for the sums of several clusters.
Sharing share_pixels(const WgradConfig& config, const DeviceSpec& device, int64_t jobs, int64_t tiles,
                     double tile_clocks, double bytes, int64_t max_cluster, int64_t room);

}  // namespace fastconv::wgrad
