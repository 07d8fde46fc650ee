// What of the weight gradient of images of few channels, 16 bits, is fixed when its kernels are compiled.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"

namespace fastconv {

inline constexpr int32_t kQuadsWgradThreads = 384, kQuadsWgradWarps = kQuadsWgradThreads / 32;
inline constexpr int32_t kQuadsWgradFilters = 64;  // of a job
inline constexpr int32_t kQuadsWgradStep = 16;     // pixels of a product
inline constexpr int32_t kQuadsWgradStages = 3;    // of dy, of which two are on their way

struct QuadsWgradConfig {
  bool channels_inner;  // filters lie side by side in dy, otherwise pixels
  int8_t channels;      // of a quad that are multiplied, 3 or 4

  // Of eight taps, and products of 16 filters, of a unit: as many sums as a warp has registers for.
  FASTCONV_HOST_DEVICE constexpr int32_t groups() const { return channels == 3 ? 2 : 1; }
  FASTCONV_HOST_DEVICE constexpr int32_t tiles() const { return groups() * channels; }
  FASTCONV_HOST_DEVICE constexpr int32_t quads() const { return kQuadsWgradFilters / 16 * tiles(); }

  bool operator==(const QuadsWgradConfig&) const = default;
};

}  // namespace fastconv
