// A tensor and the box of it that one bulk copy moves, as plain data: filled without CUDA, encoded by
// launch/tensor_map.h.
#pragma once

#include <cstdint>

namespace fastconv {

// TMA wants addresses and strides that are multiples of 16 bytes. Rows (or planes) of another size are as
// far from such an address again every few rows: an operand has a map for each of those phases, at most.
inline constexpr int kMaxTensorMaps = 8;

// Dimensions from the innermost one, which is contiguous. Strides in bytes, of dimensions 1 to 4, multiples of 16; of a
// dimension of size 1 any such. A box takes every step-th element.
struct TensorMapSpec {
  uint64_t size[5], stride[4];
  uint32_t box[5], step[5];
  int32_t swizzle_bytes;  // 128, 64, 32, the most that a row of the box may have; or 0: rows as they are
  int64_t offset = 0;     // of the first element from the tensor's address, elements
  bool exact = false;     // float32 as it is; otherwise it is rounded to TF32
};

}  // namespace fastconv
