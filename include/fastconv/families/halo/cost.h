// The cost model of the halo engine. Private to its planner.
#pragma once

#include "fastconv/families/halo/tiles.h"
#include "fastconv/planner/cost.h"

namespace fastconv::cost {
#include "fastconv/families/halo/costs.def"
}

namespace fastconv::halo {

// A filter that is packed: its bytes, 0 if none is; and whether a step's channels lie apart in it, those of a row of
// outputs beside each other.
struct Packing {
  int64_t bytes;
  bool turned;
};

// Clocks of an average tile, times tiles of the busiest SM.
double cost_us(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles,
               const Reaches& reaches, Packing packing, double bytes, const DeviceSpec& device);

}  // namespace fastconv::halo
