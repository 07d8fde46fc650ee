// The cost model of the halo engine. Private to its planner.
#pragma once

#include "fastconv/planner/halo_tiles.h"

namespace fastconv::halo {

// Clocks of an average tile, times tiles of the busiest multiprocessor. Rates measured on an H200.
double cost_us(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles,
               const Reaches& reaches, int64_t packed_bytes, double bytes, int sm_count);

}  // namespace fastconv::halo
