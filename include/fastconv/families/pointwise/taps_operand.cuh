// One operand that taps move: from global memory into a stage of shared memory.
#pragma once

#include "fastconv/families/pointwise/operand.cuh"
#include "fastconv/families/pointwise/taps.h"

namespace fastconv {

// Where something lies, in elements and in pixels of the image. Two of them add up to an element's.
struct TapPlace {
  int64_t offset;
  int32_t h, w;
};
// Pixels, padding included, are counted with 15 bits and a sign. In front of every image, whatever tap is added:
inline constexpr int32_t kBeforeImages = -(1 << 15);

struct Tap : TapPlace {
  int32_t elements;  // of the chunk that exist
};
__device__ __forceinline__ Tap tap_at(const TapAxis& axis, int32_t index) {
  int32_t tap, channel, i, j;
  axis.by_channels.divmod(index, tap, channel);
  axis.by_columns.divmod(tap, i, j);
  Tap found;
  found.offset = axis.first + i * axis.row + j * axis.column + channel * axis.channel;
  found.h = i * axis.row_h, found.w = j * axis.column_w;
  found.elements = tap < axis.taps ? axis.channels - channel : 0;
  return found;
}
__device__ __forceinline__ TapPlace pixel_at(const PixelAxis& axis, int32_t pixel) {
  int32_t n, rest, h, w;
  axis.by_image.divmod(pixel, n, rest);
  axis.by_row.divmod(rest, h, w);
  TapPlace place;
  place.offset = axis.first + n * axis.image + h * axis.row + w * axis.column;
  place.h = pixel < axis.extent ? axis.first_h + h * axis.step_h : kBeforeImages;
  place.w = axis.first_w + w * axis.step_w;
  return place;
}

// What a matrix' lines are: pixels, through a window; filters; or taps' filters, which are the depth.
enum class TapLines { kPixels, kFilters, kTaps };

// As PointwiseLoader.
template <typename T, TapLines kLinesAre, bool kAlongRows, int kRows>
class TapLoader {
  using Stage = PointwiseStage<T, kAlongRows, kRows>;
  static constexpr int kChunk = Stage::kChunk, kLanes = Stage::kLength / kChunk, kStep = kPointwiseThreads / kLanes;
  static constexpr int kCopies = Stage::kLines / kStep;
  static constexpr bool kKept = kLinesAre == TapLines::kPixels && !kAlongRows;  // the same pixels in all stages
  static_assert(Stage::kLines % kStep == 0);
  static_assert(kLinesAre == TapLines::kPixels || kAlongRows == (kLinesAre == TapLines::kTaps));

 public:
  // Of the rows from `first` on.
  __device__ __forceinline__ TapLoader(const TapMatrix& matrix, int32_t first)
      : matrix_(matrix), across_(static_cast<int>(threadIdx.x) % kLanes * kChunk) {
    if constexpr (kAlongRows) {
      tap_ = tap_at(matrix.across, first + across_);
    } else if constexpr (kKept) {
      base_ = pixel_at(matrix.pixels, first).offset;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const TapPlace place = pixel_at(matrix.pixels, first + line() + i * kStep);
        offsets_[i] = static_cast<int32_t>(place.offset - base_);
        places_[i] = place.h << 16 | (place.w & 0xffff);
      }
    } else {
      first_ = first + line();
    }
  }

  // From depth `depth` on.
  __device__ __forceinline__ void start(uint32_t stage, const T* source, int32_t depth) const {
    const uint32_t to = stage + Stage::offset(line(), static_cast<int>(threadIdx.x) % kLanes);
    constexpr uint32_t kToStep = Stage::offset(kStep, 0) - Stage::offset(0, 0);
    const Tap tap = kAlongRows ? tap_ : tap_at(matrix_.across, depth + across_);
    source += tap.offset + base_;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      int64_t offset;
      bool exists;
      if constexpr (kLinesAre == TapLines::kFilters) {
        const int32_t filter = first_ + i * kStep;
        offset = filter * matrix_.pixels.image, exists = filter < matrix_.pixels.extent;
      } else if constexpr (kLinesAre == TapLines::kTaps) {
        const Tap line_tap = tap_at(matrix_.line_taps, depth + line() + i * kStep);
        offset = line_tap.offset, exists = line_tap.elements > 0;
      } else if constexpr (kKept) {
        offset = offsets_[i],
        exists = matrix_.pixels.sees((places_[i] >> 16) + tap.h, static_cast<int16_t>(places_[i]) + tap.w);
      } else {
        const TapPlace place = pixel_at(matrix_.pixels, depth + line() + i * kStep);
        offset = place.offset, exists = matrix_.pixels.sees(place.h + tap.h, place.w + tap.w);
      }
      copy_chunk<kPointwiseChunkBytes>(to + i * kToStep, source + offset, exists ? tap.elements : 0);
    }
  }

 private:
  static __device__ __forceinline__ int32_t line() { return static_cast<int32_t>(threadIdx.x) / kLanes; }

  const TapMatrix& matrix_;
  int32_t across_, first_ = 0;
  Tap tap_;
  int64_t base_ = 0;
  int32_t offsets_[kKept ? kCopies : 1], places_[kKept ? kCopies : 1];
};

// Pixels of any layout, whose channels may lie apart: neighbouring lanes take neighbouring pixels, and a thread has
// some chunks of its line, element by element.
template <typename T, bool kAlongRows, int kRows>
class TapGatherer {
  using Stage = PointwiseStage<T, kAlongRows, kRows>;
  static constexpr int kChunk = Stage::kChunk, kLines = Stage::kLines, kParts = kPointwiseThreads / kLines;
  static constexpr int kChunks = Stage::kLength / kChunk / kParts, kBatch = kChunks < 4 ? kChunks : 4;
  static_assert(kLines * kParts == kPointwiseThreads && kChunks % kBatch == 0);

 public:
  // Of the rows from `first` on.
  __device__ __forceinline__ TapGatherer(const TapMatrix& matrix, int32_t first) : matrix_(matrix), first_(first) {
    if constexpr (!kAlongRows) place_ = pixel_at(matrix.pixels, first + line());
  }

  // From depth `depth` on.
  __device__ __forceinline__ void start(uint32_t stage, const T* source, int32_t depth) const {
    const TapPlace place = kAlongRows ? pixel_at(matrix_.pixels, depth + line()) : place_;
    const int32_t part = static_cast<int32_t>(threadIdx.x) / kLines, across = kAlongRows ? first_ : depth;
#pragma unroll
    for (int first = 0; first < kChunks; first += kBatch) {
      uint32_t words[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int32_t chunk = part + (first + i) * kParts;
        const Tap tap = tap_at(matrix_.across, across + chunk * kChunk);
        const bool inside = matrix_.pixels.sees(place.h + tap.h, place.w + tap.w);
        const T* from = source + (place.offset + tap.offset);
        const int32_t elements = inside ? tap.elements : 0;
        if constexpr (sizeof(T) == 4) {
          const uint32_t to = stage + Stage::offset(line(), chunk);
#pragma unroll
          for (int j = 0; j < kChunk; ++j, from += matrix_.across.channel) {
            ptx::async_copy<4>(to + j * sizeof(T), from, j < elements);
          }
        } else {
          uint16_t values[kChunk];
#pragma unroll
          for (int j = 0; j < kChunk; ++j, from += matrix_.across.channel) {
            values[j] = j < elements ? *reinterpret_cast<const uint16_t*>(from) : 0;
          }
#pragma unroll
          for (int j = 0; j < 4; ++j) words[i][j] = values[2 * j] | static_cast<uint32_t>(values[2 * j + 1]) << 16;
        }
      }
      if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const uint32_t to = stage + Stage::offset(line(), part + (first + i) * kParts);
          ptx::store_shared16(to, make_uint4(words[i][0], words[i][1], words[i][2], words[i][3]));
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ int32_t line() { return static_cast<int32_t>(threadIdx.x) % kLines; }

  const TapMatrix& matrix_;
  int32_t first_;
  TapPlace place_;
};

}  // namespace fastconv
