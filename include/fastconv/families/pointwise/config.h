// What a pointwise kernel is compiled for, and what is chosen for each problem. Plain C++ as well as CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastconv/core/problem.h"
#include "fastconv/tile/epilogue.h"
#include "fastconv/tile/operands.h"

namespace fastconv {

inline constexpr int kPointwiseThreads = 128;
inline constexpr int kPointwiseDepthBytes = 128;  // of depth, in a stage
inline constexpr int kPointwiseChunkBytes = 16;   // that are read from shared memory at once
inline constexpr int kPointwiseStepBytes = 32;    // of depth, that a product of tensor cores takes
inline constexpr int kWgmmaRows = 64;
inline constexpr int kPointwiseAlign = 1024;  // of stages: swizzles go by absolute addresses

// Of a tile of the product: m rows of a by n rows of b, with n side by side in the output.
struct PointwiseTile {
  int m, n;

  constexpr int stage_bytes() const { return (m + n) * kPointwiseDepthBytes; }
  // Most where several blocks share an SM, and where one has it to itself, if shared memory has room for them.
  constexpr int stages() const { return m * n > 128 * 64 ? 3 : 4; }
  static constexpr int least_stages() { return 2; }
  static constexpr int deep_stages() { return 8; }
  constexpr int blocks_per_sm() const { return m * n > 64 * 64 ? 2 : 3; }
  // Rows of the output on their way, which begin in different banks.
  static constexpr int padding_bytes(int element) { return element == 2 ? 16 : 32; }
  constexpr int row_bytes(int element) const { return n * element + padding_bytes(element); }
  // Stages that there are, or the output in their place.
  constexpr int ring_bytes(int of_stages, int64_t steps, int out_element) const {
    const int64_t stages = of_stages < steps ? of_stages : steps, ring = stages * stage_bytes();
    const int out = m * row_bytes(out_element);
    return ring > out ? static_cast<int>(ring) : out;
  }
  // They begin at a multiple of kPointwiseAlign. The epilogue's table lies in what that leaves before or behind them.
  constexpr int smem_bytes(int of_stages, int64_t steps, int out_element) const {
    return ring_bytes(of_stages, steps, out_element) + kPointwiseAlign - 16;
  }
  constexpr int epilogue_bytes() const { return (m > n ? m : n) * kStagedEpilogueBytes; }
};

struct PointwiseConfig {
  int m, n;  // pixels by channels of the output; of weight gradients filters by channels
  bool taps = false;
  OperandForm operands = OperandForm::kHalf;  // of several taps
  bool wgmma = false;                         // else products are warps' own

  bool operator==(const PointwiseConfig&) const = default;
};

// Parts of a value, and stages whose products are added up before they are promoted; see docs/precision.md.
FASTCONV_HOST_DEVICE constexpr int value_parts(OperandForm operands) {
  return operands == OperandForm::kPromotedParts ? 3 : has_parts(operands) ? 2 : 1;
}
FASTCONV_HOST_DEVICE constexpr int stages_of_promotion(OperandForm operands) {
  return operands == OperandForm::kPromotedScaled ? 1 : operands == OperandForm::kPromotedParts ? 2 : 16;
}

// In which of its indices the elements of a and of b lie side by side.
enum class PointwiseForm : int8_t { kDepthDepth, kDepthRows, kRowsRows };

// Tables of a weight gradient's pixels: of both operands, of two stages.
inline constexpr int kTapEntryBytes = 16;
constexpr int tap_table_bytes(int element) { return 2 * 2 * kPointwiseDepthBytes / element * kTapEntryBytes; }

// Of filters of several taps.
struct TapTiling {
  PointwiseTile tile;
  int stages;
  bool turned;  // rows of the product are the output's channels, columns an image's pixels
  // What is packed at the beginning of the workspace: the tensor that is seen through windows, then the filter or, of a
  // weight gradient, dy. 0: it is read as it lies.
  int64_t source_bytes, other_bytes;

  int64_t packed_bytes() const { return source_bytes + other_bytes; }
};

struct PointwiseTiling {
  PointwiseForm form;
  PointwiseTile tile;
  int stages;
};

}  // namespace fastconv
