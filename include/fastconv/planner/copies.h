// What the copy engine can read, and how it brings rows of NCHW images.
#pragma once

#include <cstdint>

#include "fastconv/planner/sides.h"
#include "fastconv/tile/raw_rows.h"
#include "fastconv/tile/tensor_map_spec.h"

namespace fastconv {

inline constexpr int64_t kMaxBox = 256;  // of the copy engine, each way

// Strides are multiples of 16 bytes, below 2^40 bytes; those that a dimension of one element never uses need not be.
bool copies(int64_t size, int64_t stride);
uint64_t stride_bytes(int64_t size, int64_t stride);

// Rows (or channels) after which addresses are multiples of 16 bytes again.
int64_t address_phases(int64_t size, int64_t stride);
int64_t row_phases(const Side& side);

// Whether raw rows can be copied and transposed, every step-th column of them.
bool transposition_can_stage(const Side& in, int64_t groups, int64_t step);
// Of `pitch` staged pixels; `aligned` says that they begin at columns that are multiples of 8. Without stages.
RawRows raw_rows(const Side& in, int64_t pitch, int64_t step, int64_t channels, bool aligned);
// Of the rows `row`, `row` + number of maps and so on. Its columns begin raw.shift before the image's.
TensorMapSpec raw_map(const Side& in, int64_t groups, int64_t channels, const RawRows& raw, int row);

}  // namespace fastconv
