// What TMA can read.
#pragma once

#include <cstdint>

#include "fastconv/planner/sides.h"
#include "fastconv/tile/tensor_map_spec.h"

namespace fastconv {

inline constexpr int64_t kMaxBox = 256;  // of TMA, each way

// Strides are multiples of 16 bytes, below 2^40 bytes; those that a dimension of one element never uses need not be.
// Of elements of so many bytes.
bool copies(int64_t size, int64_t stride, int64_t bytes = 2);
uint64_t stride_bytes(int64_t size, int64_t stride, int64_t bytes = 2);

// Rows (or channels) after which addresses are multiples of 16 bytes again.
int64_t address_phases(int64_t size, int64_t stride, int64_t bytes = 2);
int64_t row_phases(const Side& side);

// Pixels whose channels lie side by side: whether it can move both of a pass's images, and one of them, in boxes of
// channels, columns (every column_step-th), rows and images.
const char* boxes_why_not(const ConvProblem& problem);
TensorMapSpec pixels_map(const Side& side, int64_t channels, const uint32_t (&box)[4], uint32_t column_step,
                         int32_t pixel_bytes);

// What a kernel of such pixels reads, and what it stores (or, of a weight gradient, reads too).
struct PixelMaps {
  TensorMapSpec source, target;
};

// Eight filters at once, wherever they begin: one after the other, their values in any order.
bool filters_copyable(const ConvProblem& problem);

// Rows of planes, of all channels: they follow each other without a gap, and the units of 16 bytes lie in the tensor of
// which they are copied. Planes are multiples of those, or all planes together.
bool planes_copyable(const Side& side, int64_t channels, DType dtype);

// float32 planes as they lie, staging kFloats of either engine: without gaps, 16 bytes apart.
bool floats_copyable(const Side& side, int64_t groups);
// Of them: pixel, c, group, n. A copy has so many pixels of so many channels. `exact`: not rounded to TF32.
TensorMapSpec floats_map(const Side& side, int64_t groups, int64_t pixels, int64_t channels, bool exact);

}  // namespace fastconv
