// What of the kernels for images of few channels is fixed when they are compiled, and what is chosen for each problem.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"
#include "fastconv/tile/split.h"

namespace fastconv {

inline constexpr int kStemThreads = 384;
inline constexpr int kStemWarps = kStemThreads / 32;
inline constexpr int kStemStep = 16;  // of the depth, which a product has

// Of what a block of so many warps finds of some numbers, see stem_range.cuh.
constexpr int range_bytes(int warps) { return 12 * warps; }
inline constexpr int kStemRangeBytes = range_bytes(kStemWarps);

struct StemConfig {
  int32_t parts;    // of a float32 value, 16 bits each: see split.h
  int32_t filters;  // that a warp multiplies by at once: a set
  Operand operand;  // kBf16, or kFp16 for scaled values; those of a tile that one scale does not fit, see
                    // stem_range.cuh, have one part more, in bf16

  FASTCONV_HOST_DEVICE constexpr bool is_scaled() const { return operand == Operand::kFp16; }
  FASTCONV_HOST_DEVICE constexpr int32_t most_parts() const { return parts + is_scaled(); }

  // Forward: pixels that a warp multiplies at once, a unit, in blocks of 16.
  FASTCONV_HOST_DEVICE static constexpr int32_t pixel_blocks() { return 2; }
  FASTCONV_HOST_DEVICE static constexpr int32_t unit_pixels() { return 16 * pixel_blocks(); }
  FASTCONV_HOST_DEVICE constexpr int32_t set_tiles() const { return filters / 8; }
  // Bytes of a step of a set's filter in shared memory, of so many tiles of eight filters and parts.
  FASTCONV_HOST_DEVICE static constexpr int32_t step_bytes(int32_t tiles, int32_t parts) { return tiles * parts * 256; }

  // Weight gradient: a unit is a set of filters, in blocks of 16, and some taps; a lane has so many quads of its sums.
  FASTCONV_HOST_DEVICE constexpr int32_t filter_blocks() const { return filters / 16; }
  FASTCONV_HOST_DEVICE static constexpr int32_t tap_tiles() { return 4; }
  FASTCONV_HOST_DEVICE static constexpr int32_t unit_taps() { return 8 * tap_tiles(); }
  FASTCONV_HOST_DEVICE constexpr int32_t quads() const { return filter_blocks() * tap_tiles(); }

  bool operator==(const StemConfig&) const = default;
};

struct StemTiling {
  int32_t tile_p, tile_q;  // pixels of a block at a time, all of one image
  int32_t sets;            // of filters that a block has; one of weight gradients
  int32_t stages;          // 2: a tile is copied while the one before it is multiplied
  int32_t walkers;         // blocks that share the tiles
};

}  // namespace fastconv
