// Rows of pixels whose channels lie side by side, from device to shared memory, asynchronously.
#pragma once

#include "fastconv/families/depthwise/diagonal.h"
#include "fastconv/families/depthwise/diagonal_wgrad.h"
#include "fastconv/ptx/async_copy.cuh"

namespace fastconv {

// What a thread copies of each row: a chunk of every `width`-th column, kCopies of them. The threads of a block are a
// multiple of the staged chunks, and columns of one copy a multiple of kAdvance. Neighbouring threads have neighbouring
// chunks.
template <int kAdvance, int kCopies>
class StagePixelRows {
 public:
  // `chunk`, `column`: of the tensor, where the block's begin; `row`: the first. `chunks`: of the tensor.
  __device__ StagePixelRows(const void* tensor, const Strides& strides, int32_t extent_w, int32_t chunks,
                            const StagedRow& staged, const FastDivmod& by_chunks, int32_t image, int32_t row,
                            int32_t column, int32_t chunk)
      : width_(by_chunks.div(static_cast<int32_t>(blockDim.x))), row_bytes_(2 * strides.h) {
    int32_t first, mine;
    by_chunks.divmod(static_cast<int32_t>(threadIdx.x), first, mine);
    const int64_t at = image * strides.n + row * strides.h + (column + first) * strides.w + (chunk + mine) * kChunk;
    // NOTES: it may lie before the tensor, and is then not read.
    from_ = static_cast<const char*>(tensor) + 2 * at;
    copy_bytes_ = 2 * width_ * strides.w;
    to_ = mine * staged.chunk_bytes() + (first % kAdvance * staged.plane() + first / kAdvance) * kChunkBytes;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int32_t at_column = first + i * width_;
      staged_[i] = at_column < staged.columns && chunk + mine < chunks;
      exists_[i] = column + at_column >= 0 && column + at_column < extent_w;
    }
  }

  // The next row, to shared memory at `row`. Pixels beside the image are zeros, all of them if `exists` is false.
  __device__ void next(uint32_t row, bool exists) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (!staged_[i]) continue;
      ptx::async_copy<kChunkBytes>(row + to_ + i * (width_ / kAdvance) * kChunkBytes, from_ + i * copy_bytes_,
                                   exists && exists_[i]);
    }
    from_ += row_bytes_;
  }

 private:
  const char* from_;
  int32_t width_;  // columns that the block's threads copy at once
  int64_t row_bytes_, copy_bytes_;
  uint32_t to_;
  bool staged_[kCopies], exists_[kCopies];
};

// The same for columns of images side by side, a tile after the other: what a thread copies of the rows of a tensor, as
// a tile of the weight gradient sees them, is a chunk of every 32nd position.
template <int kCopies>
class StagedPixels {
 public:
  static __device__ int32_t chunk() { return static_cast<int32_t>(threadIdx.x) % kDiagonalWgradWarps; }

  // `pixel`: what lies at a position. Where the channels do not exist there are zeros.
  template <typename Pixel>
  __device__ void place(const void* tensor, const Strides& strides, int32_t image, int32_t channel, bool channels_exist,
                        const Pixel& pixel) {
    tensor_ = static_cast<const uint16_t*>(tensor) + image * strides.n + channel;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const DiagonalPixel at = pixel(position() + i * kStep);
      const bool exists = channels_exist && at.exists;
      const auto distance = static_cast<uint32_t>((at.image * strides.n + at.column * strides.w) * 2);
      distances_[i] = exists ? distance + kExists : 0;
    }
  }

  // A row, which begins so many elements after its image; in shared memory a chunk has `positions`.
  __device__ void copy(uint32_t to, int32_t positions, int64_t row) const {
    const char* from = reinterpret_cast<const char*>(tensor_ + row) - kExists;
    to += (chunk() * positions + position()) * kChunkBytes;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (position() + i * kStep >= positions) break;
      ptx::async_copy<kChunkBytes>(to + i * kStep * kChunkBytes, from + distances_[i], distances_[i] != 0);
    }
  }

 private:
  static constexpr int kStep = kDiagonalWgradThreads / kDiagonalWgradWarps;
  static constexpr uint32_t kExists = kChunkBytes;  // keeps the alignment
  static __device__ int32_t position() { return static_cast<int32_t>(threadIdx.x) / kDiagonalWgradWarps; }

  const uint16_t* tensor_;
  uint32_t distances_[kCopies];  // bytes, and kExists
};

}  // namespace fastconv
