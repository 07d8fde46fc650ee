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
  bool exists;
};
__device__ __forceinline__ Tap tap_at(const TapAxis& axis, int32_t index) {
  int32_t tap, channel, i, j;
  axis.by_channels.divmod(index, tap, channel);
  axis.by_columns.divmod(tap, i, j);
  Tap found;
  found.offset = axis.first + i * axis.row + j * axis.column + channel;
  found.h = i * axis.row_h, found.w = j * axis.column_w;
  found.exists = tap < axis.taps;
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

// What a matrix' lines are.
enum class TapLines { kPixels, kFilters };

// As PointwiseLoader. Where pixels are the depth (along rows) a thread counts them on from stage to stage.
template <typename T, TapLines kLinesAre, bool kAlongRows, int kRows>
class TapLoader {
  using Stage = PointwiseStage<T, kAlongRows, kRows>;
  static constexpr int kChunk = Stage::kChunk, kLanes = Stage::kLength / kChunk, kStep = kPointwiseThreads / kLanes;
  static constexpr int kCopies = Stage::kLines / kStep;
  static constexpr bool kPixels = kLinesAre == TapLines::kPixels;
  static_assert(Stage::kLines % kStep == 0 && (kPixels || !kAlongRows));

 public:
  // Of the rows from `first` on.
  __device__ __forceinline__ TapLoader(const TapMatrix& matrix, int32_t first)
      : matrix_(matrix), across_(static_cast<int>(threadIdx.x) % kLanes * kChunk) {
    if constexpr (kAlongRows) {
      tap_ = tap_at(matrix.across, first + across_);
    } else if constexpr (kPixels) {
      base_ = pixel_at(matrix.pixels, first).offset;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const TapPlace place = pixel_at(matrix.pixels, first + line() + i * kStep);
        offsets_[i] = static_cast<int32_t>(place.offset - base_);
        places_[i] = packed(place.h, place.w);
      }
    } else {
      first_ = first + line();
    }
  }

  // From depth `depth` on.
  __device__ __forceinline__ void start(uint32_t stage, const T* source, int32_t depth) {
    const uint32_t to = stage + Stage::offset(line(), static_cast<int>(threadIdx.x) % kLanes);
    constexpr uint32_t kToStep = Stage::offset(kStep, 0) - Stage::offset(0, 0);
    if constexpr (kAlongRows) {
      if (depth != next_) find(depth);
      next_ = depth + Stage::kDepth;
    }
    const Tap tap = kAlongRows ? tap_ : tap_at(matrix_.across, depth + across_);
    source += tap.offset + base_;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      int64_t offset;
      bool exists;
      if constexpr (!kPixels) {
        const int32_t filter = first_ + i * kStep;
        offset = filter * matrix_.pixels.image, exists = filter < matrix_.pixels.extent;
      } else if constexpr (!kAlongRows) {
        offset = offsets_[i], exists = matrix_.pixels.sees(high(places_[i]) + tap.h, low(places_[i]) + tap.w);
      } else {
        const PixelAxis& pixels = matrix_.pixels;
        offset = along_[i];
        exists = depth + line() + i * kStep < pixels.extent &&
                 pixels.sees(pixels.first_h + high(places_[i]) * pixels.step_h + tap.h,
                             pixels.first_w + low(places_[i]) * pixels.step_w + tap.w);
        count_on(i);
      }
      copy_chunk<kPointwiseChunkBytes>(to + i * kToStep, source + offset, exists && tap.exists ? kChunk : 0);
    }
  }

 private:
  static __device__ __forceinline__ int32_t line() { return static_cast<int32_t>(threadIdx.x) / kLanes; }
  static __device__ __forceinline__ int32_t packed(int32_t h, int32_t w) { return h << 16 | (w & 0xffff); }
  static __device__ __forceinline__ int32_t high(int32_t place) { return place >> 16; }
  static __device__ __forceinline__ int32_t low(int32_t place) { return static_cast<int16_t>(place); }

  // Row and column of each line's pixel, of all those that the product adds up.
  __device__ __forceinline__ void find(int32_t depth) {
    const PixelAxis& pixels = matrix_.pixels;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      int32_t n, rest, h, w;
      pixels.by_image.divmod(depth + line() + i * kStep, n, rest);
      pixels.by_row.divmod(rest, h, w);
      along_[i] = pixels.first + n * pixels.image + h * pixels.row + w * pixels.column;
      places_[i] = packed(h, w);
    }
  }
  __device__ __forceinline__ void count_on(int i) {
    const PixelAxis& pixels = matrix_.pixels;
    int32_t h = high(places_[i]) + pixels.stage_rows, w = low(places_[i]) + pixels.stage_columns;
    int64_t offset = along_[i] + pixels.stage;
    if (w >= pixels.columns) w -= pixels.columns, ++h, offset += pixels.next_row;
    if (h >= pixels.rows) h -= pixels.rows, offset += pixels.next_image;
    along_[i] = offset, places_[i] = packed(h, w);
  }

  const TapMatrix& matrix_;
  int32_t across_, first_ = 0, next_ = -1;
  Tap tap_;
  int64_t base_ = 0;
  int32_t offsets_[kPixels && !kAlongRows ? kCopies : 1], places_[kPixels ? kCopies : 1];
  int64_t along_[kAlongRows ? kCopies : 1];
};

}  // namespace fastconv
