// One operand that taps move: from global memory into a stage of shared memory. Loaders have a common form, that of
// PointwiseLoader and, where a stage's pixels differ from the last one's, a table of them that threads share:
// `prepare` writes what the next `start` reads, once they have met.
#pragma once

#include "fastconv/families/pointwise/operand.cuh"
#include "fastconv/families/pointwise/taps.h"

namespace fastconv {

// Where something lies, in elements, and in the image. Two of them add up to an element's.
struct TapPlace {
  int64_t offset;
  uint32_t place;
};
__device__ __forceinline__ TapPlace pixel_at(const PixelAxis& axis, int32_t pixel) {
  int32_t n, rest, h, w;
  axis.by_image.divmod(pixel, n, rest);
  axis.by_row.divmod(rest, h, w);
  const uint32_t place = axis.first_place + h * axis.row_place + w * axis.column_place;
  return {axis.first + n * axis.image + h * axis.row + w * axis.column, pixel < axis.extent ? place : kBeforeImages};
}

// A thread's tap and its channel, which go on from stage to stage.
class TapCursor {
 public:
  __device__ __forceinline__ TapPlace at(const TapAxis& axis, int32_t index) {
    if (index != next_) find(axis, index);
    return {offset_, index < axis.extent ? place_ : kBeforeImages};
  }
  // So many elements further on, which are those of a stage.
  __device__ __forceinline__ void advance(const TapAxis& axis, int32_t index, int32_t depth) {
    next_ = index + depth;
    channel_ += axis.stage_channels, column_ += axis.stage_columns;
    offset_ += axis.stage, place_ += axis.stage_place;
    if (channel_ >= axis.by_channels.divisor) {
      channel_ -= axis.by_channels.divisor, ++column_, offset_ += axis.next_column, place_ += axis.column_place;
    }
    if (column_ >= axis.by_columns.divisor) {
      column_ -= axis.by_columns.divisor, offset_ += axis.next_row, place_ += axis.next_row_place;
    }
  }

 private:
  __device__ __forceinline__ void find(const TapAxis& axis, int32_t index) {
    int32_t tap, row;
    axis.by_channels.divmod(index, tap, channel_);
    axis.by_columns.divmod(tap, row, column_);
    offset_ = axis.first + row * axis.row + column_ * axis.column + channel_;
    place_ = row * axis.row_place + column_ * axis.column_place;
  }

  int32_t next_ = -1, channel_, column_;
  uint32_t place_;
  int64_t offset_;
};

// What all of them know of a stage: a thread keeps its chunk of a line, and steps along the lines.
template <typename T, bool kAlongRows, int kRows>
struct TapStage : PointwiseStage<T, kAlongRows, kRows> {
  using Stage = PointwiseStage<T, kAlongRows, kRows>;
  static constexpr int kLanes = Stage::kLength / Stage::kChunk, kStep = kPointwiseThreads / kLanes;
  static constexpr int kCopies = Stage::kLines / kStep;
  static constexpr uint32_t kToStep = Stage::offset(kStep, 0) - Stage::offset(0, 0);
  static_assert(Stage::kLines % kStep == 0);

  static __device__ __forceinline__ int32_t line() { return static_cast<int32_t>(threadIdx.x) / kLanes; }
  static __device__ __forceinline__ int32_t chunk() { return static_cast<int32_t>(threadIdx.x) % kLanes; }
  static __device__ __forceinline__ int32_t across() { return chunk() * Stage::kChunk; }
  // Where the thread's copies go.
  static __device__ __forceinline__ uint32_t first(uint32_t stage) { return stage + Stage::offset(line(), chunk()); }
  static __device__ __forceinline__ void copy(uint32_t to, int i, const void* from, bool exists) {
    ptx::async_copy<kPointwiseChunkBytes>(to + i * kToStep, from, exists);
  }
};

// Rows of a filter.
template <typename T, int kRows>
class TapFilterLoader {
  using Stage = TapStage<T, false, kRows>;

 public:
  static constexpr int kTableBytes = 0;

  __device__ __forceinline__ TapFilterLoader(const TapMatrix& matrix, int32_t first, uint32_t)
      : matrix_(matrix), first_(first + Stage::line()) {}

  __device__ __forceinline__ void prepare(int32_t) {}
  __device__ __forceinline__ void start(uint32_t stage, const T* source, int32_t depth) {
    const uint32_t to = Stage::first(stage);
    const int32_t index = depth + Stage::across();
    const TapPlace tap = cursor_.at(matrix_.across, index);
    const T* from = source + (first_ * matrix_.pixels.image + tap.offset);
    const int32_t filters = tap.place == kBeforeImages ? 0 : matrix_.pixels.extent - first_;
#pragma unroll
    for (int i = 0; i < Stage::kCopies; ++i) {
      Stage::copy(to, i, from, i * Stage::kStep < filters);
      from += Stage::kStep * matrix_.pixels.image;
    }
    cursor_.advance(matrix_.across, index, Stage::kDepth);
  }

 private:
  const TapMatrix& matrix_;
  int32_t first_;
  TapCursor cursor_;
};

// Pixels of the product's rows, which a thread keeps.
template <typename T, int kRows>
class TapWindowLoader {
  using Stage = TapStage<T, false, kRows>;

 public:
  static constexpr int kTableBytes = 0;

  __device__ __forceinline__ TapWindowLoader(const TapMatrix& matrix, int32_t first, uint32_t)
      : matrix_(matrix), base_(pixel_at(matrix.pixels, first).offset - matrix.pixels.behind) {
#pragma unroll
    for (int i = 0; i < Stage::kCopies; ++i) {
      const TapPlace pixel = pixel_at(matrix.pixels, first + Stage::line() + i * Stage::kStep);
      bytes_[i] = static_cast<uint32_t>((pixel.offset - base_) * static_cast<int64_t>(sizeof(T)));
      places_[i] = pixel.place;
    }
  }

  __device__ __forceinline__ void prepare(int32_t) {}
  __device__ __forceinline__ void start(uint32_t stage, const T* source, int32_t depth) {
    const uint32_t to = Stage::first(stage);
    const int32_t index = depth + Stage::across();
    const TapPlace tap = cursor_.at(matrix_.across, index);
    const char* from = reinterpret_cast<const char*>(source + (tap.offset + base_));
#pragma unroll
    for (int i = 0; i < Stage::kCopies; ++i) {
      Stage::copy(to, i, from + bytes_[i], matrix_.pixels.bounds.hold(places_[i], tap.place));
    }
    cursor_.advance(matrix_.across, index, Stage::kDepth);
  }

 private:
  const TapMatrix& matrix_;
  int64_t base_;
  uint32_t bytes_[Stage::kCopies], places_[Stage::kCopies];
  TapCursor cursor_;
};

// Pixels that the product adds up. A thread has one of each stage's, which it counts on and writes into a table of two
// stages; all read there.
template <typename T, int kRows, bool kLastThreads>
class TapPixelLoader {
  using Stage = TapStage<T, true, kRows>;
  static constexpr int kHalfBytes = Stage::kLines * kTapEntryBytes;

 public:
  static constexpr int kTableBytes = 2 * kHalfBytes;
  static_assert(2 * kTableBytes == tap_table_bytes(sizeof(T)));

  // Of the taps and channels from `first` on.
  __device__ __forceinline__ TapPixelLoader(const TapMatrix& matrix, int32_t first, uint32_t table)
      : matrix_(matrix),
        table_(table),
        mine_(static_cast<int32_t>(threadIdx.x) - (kLastThreads ? kPointwiseThreads - Stage::kLines : 0)) {
    const int32_t index = first + Stage::across();
    tap_ = TapCursor().at(matrix.across, index);
  }

  // Those from `depth` on.
  __device__ __forceinline__ void prepare(int32_t depth) {
    half_ ^= kHalfBytes;
    if (static_cast<uint32_t>(mine_) >= Stage::kLines) return;
    const PixelAxis& pixels = matrix_.pixels;
    const int32_t pixel = depth + mine_;
    if (pixel == next_) {
      count_on();
    } else {
      int32_t n, rest;
      pixels.by_image.divmod(pixel, n, rest);
      pixels.by_row.divmod(rest, row_, column_);
      here_ = pixel_at(pixels, pixel);
    }
    next_ = pixel + Stage::kDepth;
    const auto bytes = here_.offset * static_cast<int64_t>(sizeof(T));
    const uint32_t place = pixel < pixels.extent ? here_.place : kBeforeImages;
    ptx::store_shared16(table_ + half_ + mine_ * kTapEntryBytes,
                        make_uint4(static_cast<uint32_t>(bytes), static_cast<uint32_t>(bytes >> 32), place, 0));
  }
  __device__ __forceinline__ void start(uint32_t stage, const T* source, int32_t) {
    const uint32_t to = Stage::first(stage), at = table_ + half_ + Stage::line() * kTapEntryBytes;
    const char* from = reinterpret_cast<const char*>(source + tap_.offset);
    uint4 pixels[Stage::kCopies];
#pragma unroll
    for (int i = 0; i < Stage::kCopies; ++i) pixels[i] = ptx::load_shared16(at + i * Stage::kStep * kTapEntryBytes);
#pragma unroll
    for (int i = 0; i < Stage::kCopies; ++i) {
      const auto bytes = static_cast<int64_t>(static_cast<uint64_t>(pixels[i].y) << 32 | pixels[i].x);
      const bool exists = matrix_.pixels.bounds.hold(pixels[i].z, tap_.place);
      Stage::copy(to, i, from + bytes, exists);
    }
  }

 private:
  __device__ __forceinline__ void count_on() {
    const PixelAxis& pixels = matrix_.pixels;
    row_ += pixels.stage_rows, column_ += pixels.stage_columns;
    here_.offset += pixels.stage, here_.place += pixels.stage_place;
    if (column_ >= pixels.columns) {
      column_ -= pixels.columns, ++row_, here_.offset += pixels.next_row, here_.place += pixels.next_row_place;
    }
    if (row_ >= pixels.rows) {
      row_ -= pixels.rows, here_.offset += pixels.next_image, here_.place += pixels.next_image_place;
    }
  }

  const TapMatrix& matrix_;
  uint32_t table_, half_ = 0;
  int32_t mine_, next_ = -1, row_ = 0, column_ = 0;
  TapPlace here_{}, tap_;
};

}  // namespace fastconv
