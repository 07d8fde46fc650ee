// What a kernel of the mma family is compiled for, and where its operands lie in shared memory. Plain C++ as well as
// CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastconv/core/fast_divmod.h"

namespace fastconv {

inline constexpr int kMmaWarpTile = 64;  // a warp has so many rows by as many columns of the output
inline constexpr int kMmaWarps = 8;
inline constexpr int kMmaElement = 4;  // bytes
inline constexpr int kMmaThreads = 32 * kMmaWarps;
inline constexpr int kMmaChunkBytes = 16;  // that are copied and read at once
inline constexpr int kMmaBlockBytes = 64;  // of depth that a warp goes through in two steps
inline constexpr int kMaxMmaStages = 6;
inline constexpr int kMmaTableHalf = kMmaThreads / 2;                                 // depths, see DepthTable
inline constexpr int kMmaSumBytes = kMmaWarps * kMmaWarpTile * kMmaWarpTile / 2 * 4;  // see store_mma_tile.cuh

struct MmaConfig {
  int m = kMmaWarpTile, n = kMmaWarpTile;

  // Warps that have the same outputs, each of other blocks of the depth.
  constexpr int warps_k() const { return kMmaWarps / (m / kMmaWarpTile * (n / kMmaWarpTile)); }
  constexpr int depth() const { return std::max(2, warps_k()) * kMmaBlockBytes / kMmaElement; }  // of a stage
  constexpr int stage_bytes() const { return depth() * (m + n) * kMmaElement; }
  // Coords of both operands' rows and depths, outputs' places and epilogues, the tile's description.
  constexpr int table_bytes() const { return 24 * (m + n) + 4 * n + 2 * 2 * 16 * kMmaTableHalf + 128; }
  // Sums take the stages' place in the end.
  constexpr int least_stages() const { return std::max(2, (kMmaSumBytes - 1) / stage_bytes() + 1); }
  constexpr int stages(int64_t smem_bytes) const {
    return static_cast<int>(std::min<int64_t>(kMaxMmaStages, (smem_bytes - table_bytes()) / stage_bytes()));
  }
  constexpr int smem_bytes(int stages) const { return table_bytes() + stages * stage_bytes(); }

  // Depths that the warps that share outputs may sum up together: tensor cores truncate what they add to, so that each
  // of these sums is of 1,024 products of 32 bytes at most (docs/precision.md).
  constexpr int chain() const { return 1024 * 32 / kMmaElement * warps_k(); }
};

// A warp's outputs, and its part of the depth.
struct MmaWarp {
  int row, column, part;
};

// Which of an operand's indices lies side by side in memory: its rows (the output's) or the depth. In shared memory it
// is the same, in chunks whose order differs from line to line: lanes that read at once then meet different banks.
// These are four lines and two neighbouring fours of lanes. See MmaFragments for what they read.
template <bool kAlongRows, bool kIsB>
struct MmaLayout {
  // In chunks; a line is `length` elements.
  FASTCONV_HOST_DEVICE static int chunk(int line, int chunk, int length) {
    const int turn = kAlongRows ? line / 4 % 4 * (kIsB ? 1 : 2) : line / (kIsB ? 16 : 4) % 2 * 4;
    return line * (length * kMmaElement / kMmaChunkBytes) + (chunk ^ turn);
  }
};

}  // namespace fastconv
