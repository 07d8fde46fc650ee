// What of the kernels that stage images of few channels as quads is fixed when they are compiled, and what is chosen
// for each problem.
#pragma once

#include <cstdint>

namespace fastconv {

inline constexpr int32_t kQuadsThreads = 256;
inline constexpr int32_t kQuadsWarps = kQuadsThreads / 32;
inline constexpr int32_t kQuadChannels = 4;
inline constexpr int32_t kQuadsStepTaps = 4;  // of a product
inline constexpr int32_t kQuadsUnit = 32;     // pixels, and filters
inline constexpr int32_t kQuadsStaged = 4;    // pixels of a tile that a thread brings, or pairs of them, at most
inline constexpr int32_t kQuadsBlocksPerSm = 2;

struct QuadsConfig {
  bool channels_inner;  // filters lie side by side in the output, otherwise pixels

  bool operator==(const QuadsConfig&) const = default;
};

struct QuadsTiling {
  int32_t tile_p, tile_q;  // pixels of a block at a time, all of one image
  int32_t sets;            // of filters, that a block has
  int32_t walkers;         // blocks that share the tiles
};

}  // namespace fastconv
