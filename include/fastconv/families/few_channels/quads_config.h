// What of the kernels that stage images of few channels as quads is fixed when they are compiled, and what is chosen
// for each problem.
#pragma once

#include <cstdint>

namespace fastconv {

inline constexpr int32_t kQuadChannels = 4;
inline constexpr int32_t kQuadsStepTaps = 4;   // of a product
inline constexpr int32_t kQuadsSet = 32;       // filters
inline constexpr int32_t kQuadsFilters = 4;    // that a lane has of a unit
inline constexpr int32_t kQuadsWordBytes = 8;  // of the image, that are read at once where rows consist of such words

// What a thread brings of a tile, at most: pixels one by one, or as words, of as many pixels as a word has elements.
constexpr int32_t quads_staged(bool words) { return words ? 2 : 4; }

// What a quad holds and products multiply: values of 16 bits, two parts of bf16, or two of fp16, scaled (split.h). Or
// float32 values, of which lanes make three parts of bf16; so are tiles computed that one scale does not fit.
enum class QuadsOperands : int8_t { kHalf, kParts, kScaledParts, kFloats };

// Scaled parts by warpgroups (wgmma), which find both operands in shared memory: pixels of a square times filters. They
// read 16 bytes of the reduction at once, a cell, and those of pixels side by side 16 bytes apart: of a stride of two.
inline constexpr int32_t kQuadsSquare = 8, kQuadsSquareFilters = 64;
inline constexpr int32_t kQuadsSquareSets = kQuadsSquareFilters / kQuadsSet;
inline constexpr int32_t kQuadsCellBytes = 16, kQuadsCellTaps = 2;                 // of a row of taps, a part of each
inline constexpr int32_t kQuadsCellBlock = kQuadsSquareFilters * kQuadsCellBytes;  // of all filters
inline constexpr int32_t kQuadsMostSteps = 64;                                     // of two cells

// Pixels of a unit, times a set: half as many of scaled parts, which have two sums of each and of which the large
// products of a step are summed up apart, so that registers suffice for 16 warps and for the next step's operands.
constexpr int32_t quads_pixels(QuadsOperands operands) { return operands == QuadsOperands::kScaledParts ? 16 : 32; }

constexpr int32_t quad_bytes(QuadsOperands operands) {
  return kQuadChannels * (operands == QuadsOperands::kHalf ? 2 : 4);
}

struct QuadsConfig {
  bool channels_inner;  // filters lie side by side in the output, otherwise pixels
  int8_t steps;         // of four taps, of filters that a warp keeps in registers; 0: any number, from shared memory
  QuadsOperands operands;
  bool squares;  // see kQuadsSquare

  bool operator==(const QuadsConfig&) const = default;
};

// For which an SM has registers: a filter of parts takes twice as many. They are one block, or two.
constexpr int32_t quads_threads(const QuadsConfig& config) {
  if (config.operands == QuadsOperands::kHalf) return 512;
  return config.steps > 0 || config.squares ? 384 : 512;
}

struct QuadsTiling {
  int32_t tile_p, tile_q;  // pixels of a block at a time, all of one image
  int32_t sets;            // of filters, that a block has
  int32_t walkers;         // blocks that share the tiles
  bool brings = true;      // filters to shared memory as they are, before they are packed; others find no room there
};

}  // namespace fastconv
