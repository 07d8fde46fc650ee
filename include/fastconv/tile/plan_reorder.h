// Tensors that a kernel writes anew in its workspace, as rows of pixels; see tile/reorder.h.
#pragma once

#include <cstdint>

#include "fastconv/planner/device_spec.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/reorder.h"
#include "fastconv/tile/tensor_map_spec.h"

namespace fastconv {

// Planes without gaps, and not of a few pixels each.
bool reorderable(const Side& side, int64_t groups);
// What the workspace then holds, as a tensor.
Side reordered(const Side& side, int64_t groups);
int64_t reordered_bytes(const Side& side, int64_t groups);
Reorder make_reorder(const Side& side, int64_t groups);  // without addresses
// What TMA brings for ReorderCopy::kBoxes; no sizes if nothing.
TensorMapSpec reorder_boxes(const Side& side, int64_t groups);
// Whether so many blocks of so many warps cannot write all of it at once, and can leave the rest to the time of the
// products.
bool can_stream(const Side& side, int64_t groups, int64_t grid, int64_t warps);
void stream(Reorder& order, int64_t grid, int64_t warps);
// Of so many bytes, by all blocks, which run on this share of the device.
double rewrite_us(double read, double written, double share, const DeviceSpec& device);
// Of a tensor, and of the wait for all blocks.
double reorder_us(const Side& side, int64_t groups, double share, const DeviceSpec& device);
// The same if a part is streamed.
double stream_us(const Side& side, int64_t groups, int64_t grid, int64_t warps, double share, const DeviceSpec& device);

}  // namespace fastconv
