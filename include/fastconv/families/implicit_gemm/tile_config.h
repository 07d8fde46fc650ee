// Sizes of a block's tile. Host and device share them.
#pragma once

namespace fastconv {

// 16 deep: a step has 1,024 multiply-adds a thread in the large tiles, far more than a load's latency, and 16-bit
// channels_last operands fill their 16-byte accesses.
inline constexpr int kTileDepth = 16;

constexpr int tile_threads(int m, int n, int thread_m, int thread_n) { return m / thread_m * (n / thread_n); }

// Shared memory of a block, bytes: two stages of both operands with a padded row each, their Coords, the outputs'
// places and epilogues, the tile's description. The sums of finished chains follow if there are any.
constexpr int simt_storage_bytes(int m, int n, int sum_bytes) {
  return 2 * kTileDepth * (sum_bytes * (m + n) + 2 * 16) + 2 * 2 * 16 * kTileDepth + (16 + 8) * (m + n) +
         sum_bytes * n + 128;
}
constexpr int simt_smem_bytes(int m, int n, int sum_bytes, bool keeps_sums) {
  return simt_storage_bytes(m, n, sum_bytes) + (keeps_sums ? sum_bytes * m * n : 0);
}

template <int kM_, int kN_, int kThreadM_, int kThreadN_>
struct TileConfig {
  static constexpr int kM = kM_, kN = kN_, kDepth = kTileDepth;
  static constexpr int kThreadM = kThreadM_, kThreadN = kThreadN_;
  static constexpr int kThreads = tile_threads(kM, kN, kThreadM, kThreadN);
  // A thread's outputs lie in runs of 4, one run per fragment, so that a warp reads its fragments in whole 16-byte
  // accesses without bank conflicts.
  static constexpr int kRun = 4;
  static constexpr int kLanesN = kN / kThreadN < 8 ? kN / kThreadN : 8;
  static constexpr int kLanesM = 32 / kLanesN;
  static constexpr int kWarpsN = kN / (kLanesN * kThreadN);
  static_assert(kThreadM % kRun == 0 && kThreadN % kRun == 0, "fragments are runs of 4");
  static_assert(kM % (kLanesM * kThreadM) == 0 && kN % (kLanesN * kThreadN) == 0, "warps tile the block's tile");
  static_assert(kThreads >= 2 * 32, "two warps write the depth tables");
};

}  // namespace fastconv
