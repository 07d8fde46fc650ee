// What of the kernels for narrow groups is fixed when they are compiled, and what is chosen for each problem.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"

namespace fastconv {

// How a kernel multiplies.
enum class GroupedOperands : int8_t {
  kHalf,  // 16-bit values on tensor cores
  kTf32,  // float32, rounded, on tensor cores
  kFloat  // float32 by ordinary multiply-adds
};

inline constexpr int kGroupedThreads = 256;
inline constexpr int kGroupedRowBytes = 16;  // some channels of a pixel, or of a filter's tap
// Of 16 channels and taps, which a warp multiplies by a pixel's gradients: a 3x3 filter has 4.5 of 8 channels.
inline constexpr int kGroupedUnitBlocks = 5;

struct GroupedConfig {
  GroupedOperands operands;
  int32_t filters;  // of one group that a warp multiplies by at once: a set

  FASTCONV_HOST_DEVICE constexpr int32_t element_bytes() const { return operands == GroupedOperands::kHalf ? 2 : 4; }
  // Channels of a row.
  FASTCONV_HOST_DEVICE constexpr int32_t chunk() const { return kGroupedRowBytes / element_bytes(); }
  // Pixels that a warp multiplies at once: a unit.
  FASTCONV_HOST_DEVICE constexpr int32_t unit_pixels() const { return operands == GroupedOperands::kFloat ? 128 : 64; }
  // Of which a lane has a row of every so many.
  FASTCONV_HOST_DEVICE constexpr int32_t lane_pixels() const { return operands == GroupedOperands::kFloat ? 32 : 16; }
  // As many as leave registers for the sums.
  FASTCONV_HOST_DEVICE constexpr int32_t blocks_per_sm() const {
    return operands == GroupedOperands::kFloat ? 2 : filters == 8 ? 4 : 3;
  }
  // Channels that a warp stores together: a sector or two if they lie side by side.
  FASTCONV_HOST_DEVICE constexpr int32_t run_channels() const {
    return operands == GroupedOperands::kHalf ? 16 : filters;
  }
  // From one pixel's to the next one's on their way: 16 bytes more, so that they begin in different banks.
  FASTCONV_HOST_DEVICE constexpr int32_t run_bytes() const {
    return run_channels() * element_bytes() + kGroupedRowBytes;
  }
  // Likewise from one channel's pixels to the next one's.
  FASTCONV_HOST_DEVICE constexpr int32_t channel_bytes() const {
    return unit_pixels() * element_bytes() + kGroupedRowBytes;
  }

  // Weight gradient. A unit is a set of filters and some rows, each a tap of a chunk; so many threads share its sums,
  // each of which has so many quads of them.
  FASTCONV_HOST_DEVICE constexpr int32_t unit_rows() const {
    return operands == GroupedOperands::kFloat ? 2 : kGroupedUnitBlocks * 16 / chunk();
  }
  FASTCONV_HOST_DEVICE constexpr int32_t unit_threads() const { return operands == GroupedOperands::kFloat ? 1 : 32; }
  FASTCONV_HOST_DEVICE constexpr int32_t unit_quads() const {
    return unit_rows() * chunk() * filters / (4 * unit_threads());
  }
  // Its sums stay in registers while tiles are staged.
  FASTCONV_HOST_DEVICE constexpr int32_t wgrad_blocks_per_sm() const { return 2; }
  // Pixels whose products a unit adds up at once.
  FASTCONV_HOST_DEVICE constexpr int32_t step_pixels() const {
    return operands == GroupedOperands::kFloat ? 1 : 2 * chunk();
  }

  bool operator==(const GroupedConfig&) const = default;
};

struct GroupedTiling {
  int32_t tile_p, tile_q;  // pixels of a block, all of one image
  int32_t tile_g;          // its groups
  int32_t run;             // sets of filters whose results a warp stores together; not of weight gradients
};

}  // namespace fastconv
