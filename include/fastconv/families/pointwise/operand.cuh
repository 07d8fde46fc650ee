// One operand of the pointwise kernels: from global memory into a stage of shared memory, and from there into
// registers.
#pragma once

#include "fastconv/families/pointwise/config.h"
#include "fastconv/families/pointwise/params.h"
#include "fastconv/ptx/async_copy.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/truncated_tf32.cuh"

namespace fastconv {

// f(i, where line `first` + i * `step` lies) for so many; without a division where lines are even.
template <int kCount, typename F>
__device__ __forceinline__ void each_line(const PointwiseLines& lines, int32_t first, int32_t step, F&& f) {
  if (lines.pixels) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) f(i, lines.of_pixel(first + i * step));
  } else {
    int64_t place = first * lines.column;
#pragma unroll
    for (int i = 0; i < kCount; ++i) f(i, place), place += step * lines.column;
  }
}

// A stage holds lines, of rows, or of depths where the rows lie side by side; long ones in blocks of so many bytes. The
// order of a line's chunks of 16 bytes differs from line to line, so that lanes that read or write at once meet
// different banks; of 16 bits, and of depths, it is what wgmma knows as a swizzle.
template <typename T, bool kAlongRows, int kRows>
struct PointwiseStage {
  static constexpr int kDepth = kPointwiseDepthBytes / sizeof(T), kChunk = kPointwiseChunkBytes / sizeof(T);
  static constexpr int kLines = kAlongRows ? kDepth : kRows, kLength = kAlongRows ? kRows : kDepth;
  static constexpr int kLineBytes = kLength * sizeof(T) < 128 ? kLength * sizeof(T) : 128;
  static constexpr int kBlockBytes = kLines * kLineBytes, kBlockChunks = kLineBytes / kPointwiseChunkBytes;
  static constexpr int kBytes = kRows * kPointwiseDepthBytes;

  static __host__ __device__ constexpr uint32_t offset(int line, int chunk) {
    // Of float32 along rows, lanes read four lines and two chunks of each; else the same chunk of eight lines.
    const int turn = kAlongRows && sizeof(T) == 4 ? line % 4 * 2 : kBlockChunks == 4 ? line / 2 % 4 : line % 8;
    return chunk / kBlockChunks * kBlockBytes + line * kLineBytes +
           ((chunk % kBlockChunks) ^ turn) * kPointwiseChunkBytes;
  }
};

// A chunk of 16 bytes, of which so many elements exist: zeros in place of the others.
template <int kBytes, typename T>
__device__ __forceinline__ void copy_chunk(uint32_t to, const T* from, int32_t elements) {
  constexpr int kChunk = kPointwiseChunkBytes / sizeof(T);
  if constexpr (kBytes >= 4) {
#pragma unroll
    for (int i = 0; i < kChunk; i += kBytes / sizeof(T)) {
      ptx::async_copy<kBytes>(to + i * sizeof(T), from + i, i < elements);
    }
  } else {
    uint16_t values[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) values[i] = i < elements ? reinterpret_cast<const uint16_t*>(from)[i] : 0;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = values[2 * i] | static_cast<uint32_t>(values[2 * i + 1]) << 16;
    ptx::store_shared16(to, make_uint4(words[0], words[1], words[2], words[3]));
  }
}

// A thread's copies of a stage: it keeps its chunk of a line, and steps along the lines.
template <typename T, bool kAlongRows, int kRows>
class PointwiseLoader {
  using Stage = PointwiseStage<T, kAlongRows, kRows>;
  static constexpr int kChunk = Stage::kChunk, kLanes = Stage::kLength / kChunk, kStep = kPointwiseThreads / kLanes;
  static constexpr int kCopies = Stage::kLines / kStep;
  static_assert(Stage::kLines % kStep == 0);

 public:
  static constexpr int kTableBytes = 0;

  // Of the rows from `first` on.
  __device__ __forceinline__ PointwiseLoader(const PointwiseMatrix& matrix, int32_t first, uint32_t)
      : matrix_(matrix),
        chunk_(static_cast<int>(threadIdx.x) % kLanes),
        line_(static_cast<int>(threadIdx.x) / kLanes),
        within_((kAlongRows ? first : 0) + chunk_ * kChunk) {
    if constexpr (!kAlongRows) {
      line_ += first;
      each_line<kCopies>(matrix.lines, line_, kStep, [&](int i, int64_t at) { places_[i] = at + within_; });
    }
  }

  __device__ __forceinline__ void prepare(int32_t) {}
  // From depth `depth` on of the product that `source` is of.
  __device__ __forceinline__ void start(uint32_t stage, const T* source, int32_t depth) const {
    if (matrix_.vector_bytes == kPointwiseChunkBytes) {
      copy<kPointwiseChunkBytes>(stage, source, depth);
    } else if (matrix_.vector_bytes == 8) {
      copy<8>(stage, source, depth);
    } else if (sizeof(T) == 4 || matrix_.vector_bytes == 4) {
      copy<4>(stage, source, depth);
    } else {
      copy<sizeof(T)>(stage, source, depth);
    }
  }

 private:
  template <int kBytes>
  __device__ __forceinline__ void copy(uint32_t stage, const T* source, int32_t depth) const {
    const uint32_t to = stage + Stage::offset(static_cast<int>(threadIdx.x) / kLanes, chunk_);
    constexpr uint32_t kToStep = Stage::offset(kStep, 0) - Stage::offset(0, 0);
    if constexpr (kAlongRows) {
      const int32_t line = depth + line_, lines = matrix_.lines.extent - line, elements = matrix_.length - within_;
      source += within_;
      each_line<kCopies>(matrix_.lines, line, kStep, [&](int i, int64_t at) {
        copy_chunk<kBytes>(to + i * kToStep, source + at, i * kStep < lines ? elements : 0);
      });
    } else {
      const int32_t lines = matrix_.lines.extent - line_, elements = matrix_.length - depth - within_;
      source += depth;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        copy_chunk<kBytes>(to + i * kToStep, source + places_[i], i * kStep < lines ? elements : 0);
      }
    }
  }

  const PointwiseMatrix& matrix_;
  int32_t chunk_, line_;
  int32_t within_;                            // a line
  int64_t places_[kAlongRows ? 1 : kCopies];  // of its chunks of the first stage
};

// Float32 whose rows lie side by side: lanes read them in fours, which belong to different products.
template <typename T, bool kAlongRows>
inline constexpr bool kPointwiseFours = kAlongRows && sizeof(T) == 4;

// A lane's part of 32 rows and a step of depth, as ptx::mma wants it: of a, the words of two products of 16 rows; of b,
// two words each of four products of eight, in pairs. Rows begin at a multiple of 32 and a warp has 64 at most, so that
// what differs between its parts are bits of an address that nothing else sets, or a constant.
template <typename T, bool kAlongRows, bool kIsB, int kRows>
class PointwiseFragments {
  using Stage = PointwiseStage<T, kAlongRows, kRows>;
  static constexpr bool kFours = kPointwiseFours<T, kAlongRows>;

 public:
  // Of the rows from `row` on.
  __device__ __forceinline__ explicit PointwiseFragments(int row) {
    const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8;
    const int eight = kIsB ? matrix / 2 : matrix % 2, half = kIsB ? matrix % 2 : matrix / 2;
    first_ = kFours       ? Stage::offset(lane % 4, row / 4 + lane / 4)
             : kAlongRows ? Stage::offset(half * 8 + lane % 8, row / 8 + eight)
                          : Stage::offset(lane % 8, half) + (row + eight * 8) * Stage::kLineBytes;
  }

  // Of the 32 rows from the warp's 32 * `part` on.
  __device__ __forceinline__ void load(uint32_t stage, int part, int step, uint32_t (&words)[2][4]) const {
    const uint32_t at = stage + first_;
    if constexpr (kFours) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 four =
            ptx::load_shared16(at + part * Stage::kBlockBytes + (step * 8 + half * 4) * Stage::kLineBytes);
        words[0][kIsB ? half : 2 * half] = four.x, words[0][kIsB ? 2 + half : 2 * half + 1] = four.y;
        words[1][kIsB ? half : 2 * half] = four.z, words[1][kIsB ? 2 + half : 2 * half + 1] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int sixteen = 2 * part + i;
        ptx::ldmatrix4<kAlongRows>(kAlongRows
                                       ? (at ^ sixteen * 2 * kPointwiseChunkBytes) + step * 16 * Stage::kLineBytes
                                       : (at ^ step * kPointwiseStepBytes) + sixteen * 16 * Stage::kLineBytes,
                                   words[i]);
      }
    }
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        uint32_t& word = words[i / 4][i % 4];
        if constexpr (kFours) {
          word = to_truncated_tf32(word);
        } else {
          make_truncated_tf32(word);
        }
      }
    }
  }

 private:
  uint32_t first_;
};

}  // namespace fastconv
