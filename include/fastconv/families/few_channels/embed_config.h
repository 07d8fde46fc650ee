// What of the kernels for patch embeddings is fixed when they are compiled, and what is chosen for each problem.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"

namespace fastconv {

inline constexpr int32_t kEmbedChunk = 4;        // values that a lane reads at once
inline constexpr int32_t kEmbedStepChunks = 4;   // of a product: one of each lane of a row
inline constexpr int32_t kEmbedSteps = 3;        // that a lane reads ahead, a round: what RGB has in 4x4 pixels
inline constexpr int32_t kEmbedMostChunks = 16;  // of a patch
inline constexpr int32_t kEmbedUnitPixels = 16, kEmbedUnitFilters = 32;
inline constexpr int32_t kEmbedWgradThreads = 256, kEmbedWgradWarps = kEmbedWgradThreads / 32;

struct EmbedConfig {
  int32_t parts;        // of a float32 value, 16 bits each; of 16 bits one
  bool channels_inner;  // filters lie side by side in the output, otherwise pixels

  // Forward: registers decide how many an SM has.
  FASTCONV_HOST_DEVICE constexpr int32_t threads() const { return parts > 1 ? 384 : 256; }
  FASTCONV_HOST_DEVICE constexpr int32_t blocks_per_sm() const { return parts > 1 ? 1 : 2; }

  bool operator==(const EmbedConfig&) const = default;
};

struct EmbedTiling {
  int32_t sets;     // of filters, that a block has; one of weight gradients
  int32_t walkers;  // blocks that share the pixels
};

}  // namespace fastconv
