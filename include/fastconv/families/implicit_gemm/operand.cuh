// One operand of the mma family: from global memory into a stage of shared memory, and from there into fragments.
#pragma once

#include "fastconv/families/implicit_gemm/mma_config.h"
#include "fastconv/families/implicit_gemm/operand_tile.cuh"
#include "fastconv/ptx/async_copy.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/conv_coords.cuh"
#include "fastconv/tile/truncated_tf32.cuh"

namespace fastconv {

// A thread's copies of a stage, of as many elements as Access (an OperandAccess) has in a vector: it keeps its place in
// a line, and steps along the lines.
template <typename T, typename Access, bool kIsB, int kRows, int kDepth>
class MmaLoader {
  static constexpr bool kAlongRows = Access::kAlongRows;
  using Layout = MmaLayout<kAlongRows, kIsB>;
  static constexpr int kVector = Access::kVector, kBytes = kVector * sizeof(T), kChunk = kMmaChunkBytes / sizeof(T);
  static constexpr int kLength = kAlongRows ? kRows : kDepth, kLines = kAlongRows ? kDepth : kRows;
  static constexpr int kLanes = kLength / kVector, kStep = kMmaThreads / kLanes;
  static constexpr int kCopies = kLines / kStep;
  static_assert(kLines % kStep == 0);

 public:
  // `rows`: Coords of the tile's rows, in shared memory.
  __device__ __forceinline__ MmaLoader(const T* source, const Coord* rows, int32_t extent_h, int32_t extent_w)
      : source_(source), rows_(rows), extent_h_(extent_h), extent_w_(extent_w) {
    if constexpr (kAlongRows) fixed_ = rows[lane() * kVector];
  }

  // One of kParts parts of the stage. `depth`: Coords of its depths, in shared memory.
  template <int kParts>
  __device__ __forceinline__ void start(uint32_t stage, const Coord* depth, int part) {
    if constexpr (!kAlongRows) fixed_ = depth[lane() * kVector];
    constexpr int kMost = (kCopies + kParts - 1) / kParts, kBatch = 4;
    const int begin = part * kCopies / kParts, end = (part + 1) * kCopies / kParts;
#pragma unroll
    for (int batch = 0; batch < kMost; batch += kBatch) {
      // Coords are read before a copy starts: what follows one waits for shared memory anew.
      Coord other[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int copy = begin + batch + i;
        if (copy < end) other[i] = kAlongRows ? depth[line(copy)] : rows_[line(copy)];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int copy = begin + batch + i;
        if (copy >= end) continue;
        const int first = lane() * kVector, chunk = Layout::chunk(line(copy), first / kChunk, kLength);
        const uint32_t to = stage + chunk * kMmaChunkBytes + first % kChunk * sizeof(T);
        ptx::async_copy<kBytes>(to, source_ + fixed_.offset + other[i].offset,
                                exists<Access>(fixed_, other[i], extent_h_, extent_w_));
      }
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  static __device__ __forceinline__ int line(int copy) { return copy * kStep + static_cast<int>(threadIdx.x) / kLanes; }

  const T* source_;
  const Coord* rows_;
  int32_t extent_h_, extent_w_;
  Coord fixed_;
};

// What a lane has of 64 rows and a step of 32 bytes of depth, as ptx::mma wants it: of a, products of 16 rows, of b, of
// eight columns. The sums that come of it are where MmaSumPlace says.
// The depths of a step are any eight of a block of 16, as long as both operands have the same: lane t of a row has 4 *
// t + 2 * step, and the next. Lane g of a column of lanes has rows 4 * g to 4 * g + 3, and those 32 further on; of b in
// an order in which neighbours g are 16 rows apart, so that a lane's sums are runs of four columns, too.
template <bool kAlongRows, bool kIsB, int kRows, int kDepth>
class MmaFragments {
  using Layout = MmaLayout<kAlongRows, kIsB>;
  static constexpr int kSteps = kAlongRows ? 1 : 2;  // that one access has values of
  static constexpr int kBlockDepth = kMmaBlockBytes / kMmaElement;

 public:
  // A lane's place in a stage, for the warp's first row. Blocks, steps and runs are fixed distances from there, since
  // none of them changes the order of chunks, but for the blocks of a line.
  static __device__ __forceinline__ uint32_t place(int first_row) {
    const int lane = static_cast<int>(threadIdx.x) % 32, t = lane % 4;
    const int g = kIsB ? lane / 8 + lane / 4 % 2 * 4 : lane / 4, row = first_row + 4 * g;
    return (kAlongRows ? Layout::chunk(4 * t, row / 4, kRows) : Layout::chunk(row, t, kDepth)) * kMmaChunkBytes;
  }

  // The steps of a block in their order.
  __device__ __forceinline__ void load(uint32_t stage, uint32_t place, int block, int step) {
    if (step % kSteps != 0) return;
#pragma unroll
    for (int run = 0; run < 2; ++run) {
#pragma unroll
      for (int i = 0; i < (kAlongRows ? 2 : 4); ++i) {
        const uint32_t at = kAlongRows ? place + (block * kBlockDepth + 2 * step + i) * kRows * 4 + run * 128
                                       : (place ^ block * kMmaBlockBytes) + (32 * run + i) * kDepth * 4;
        const uint4 v = ptx::load_shared16(stage + at);
        put(run, i, 0, v.x), put(run, i, 1, v.y), put(run, i, 2, v.z), put(run, i, 3, v.w);
      }
    }
  }
  // Of a, the tile's 16 rows, of two depths; of b, eight columns'.
  __device__ __forceinline__ void operand(int step, int tile, uint32_t (&words)[kIsB ? 2 : 4]) const {
    const auto& run = value_[step % kSteps];
    if constexpr (kIsB) {
      words[0] = run[tile / 4][tile % 4][0], words[1] = run[tile / 4][tile % 4][1];
    } else {
      const auto& rows = run[tile / 2];
      const int first = tile % 2 * 2;
      words[0] = rows[first][0], words[1] = rows[first + 1][0];
      words[2] = rows[first][1], words[3] = rows[first + 1][1];
    }
  }

 private:
  // Value j of access i: a row of depth i, or depth j of row i.
  __device__ __forceinline__ void put(int run, int i, int j, uint32_t v) {
    const uint32_t rounded = to_truncated_tf32(v);
    if constexpr (kAlongRows) {
      value_[0][run][j][i] = rounded;
    } else {
      value_[j / 2][run][i][j % 2] = rounded;
    }
  }

  uint32_t value_[kSteps][2][4][2];  // run, row of it, depth
};

}  // namespace fastconv
