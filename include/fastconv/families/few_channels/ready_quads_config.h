// What of the kernels for images that consist of quads is fixed when they are compiled.
#pragma once

#include <cstdint>

#include "fastconv/families/few_channels/quads_config.h"

namespace fastconv {

inline constexpr int32_t kReadyWarps = 4, kReadyThreads = 32 * kReadyWarps;
inline constexpr int32_t kReadyBlocks = 4;                         // of an SM: as many as its registers allow
inline constexpr int32_t kReadyPixels = 32;                        // of a unit, times a set of filters
inline constexpr int32_t kReadyPass = kReadyWarps * kReadyPixels;  // what a block's warps have at once
inline constexpr int32_t kReadyQuadBytes = 2 * kQuadChannels, kReadyCopiedBytes = 16;  // at once
inline constexpr int32_t kReadyCopied = kReadyCopiedBytes / kReadyQuadBytes;           // quads

struct ReadyQuadsConfig {
  int8_t steps;  // of four taps

  bool operator==(const ReadyQuadsConfig&) const = default;
};

// In shared memory: the set's filter, a quad of zeros, then the image's rows.
constexpr int32_t ready_zeros_at(int32_t steps) { return kQuadsSet * steps * kQuadsStepTaps * kReadyQuadBytes; }
constexpr int32_t ready_rows_at(int32_t steps) { return ready_zeros_at(steps) + kReadyCopiedBytes; }

}  // namespace fastconv
