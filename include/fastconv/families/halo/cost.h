// The cost model of the halo engine. Private to its planner.
#pragma once

#include "fastconv/families/halo/tiles.h"

namespace fastconv::halo {

// A filter that is packed: its bytes, 0 if none is; and whether a step's channels lie apart in it, those of a row of
// outputs beside each other.
struct Packing {
  int64_t bytes;
  bool turned;
};

// Clocks of an average tile, times tiles of the busiest SM. Rates measured on an H200.
double cost_us(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles,
               const Reaches& reaches, Packing packing, double bytes, int sm_count);

}  // namespace fastconv::halo
