// Tensors that a kernel writes anew in its workspace, as rows of pixels; see tile/reorder.h.
#pragma once

#include <cstdint>

#include "fastconv/planner/sides.h"
#include "fastconv/tile/reorder.h"

namespace fastconv {

// Planes without gaps, and not of a few pixels each.
bool reorderable(const Side& side, int64_t groups);
// What the workspace then holds, as a tensor.
Side reordered(const Side& side, int64_t groups);
int64_t reordered_bytes(const Side& side, int64_t groups);
Reorder make_reorder(const Side& side, int64_t groups);  // without addresses
// Of a tensor, and of the wait for all blocks, which run on this share of the chip.
double reorder_us(const Side& side, int64_t groups, double share);

}  // namespace fastconv
