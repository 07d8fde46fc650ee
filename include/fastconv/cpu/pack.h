// Copies between tensors and the small dense matrices that the CPU kernels compute with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <span>

#include "fastconv/cpu/lowering.h"
#include "fastconv/cpu/scalar.h"
#include "fastconv/cpu/simd.h"

namespace fastconv {

// Uninitialised memory at a cache line's start.
template <class T>
class AlignedBuffer {
 public:
  explicit AlignedBuffer(int64_t size)
      : data_(static_cast<T*>(::operator new(static_cast<size_t>(size) * sizeof(T), kAlignment))) {}
  ~AlignedBuffer() { ::operator delete(data_, kAlignment); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  T* data() { return data_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  T* data_;
};

template <class Scalar>
FASTCONV_INLINE void fill_zero(Scalar* to, int64_t to_row_step, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; ++i, to += to_row_step) {
    for (int64_t j = 0; j < cols; ++j) to[j] = 0;
  }
}

// to[i][j] = from[i * row_step + j * col_step]
template <class To, class From>
FASTCONV_INLINE void copy_in(To* to, int64_t to_row_step, const From* from, int64_t rows, int64_t cols,
                             int64_t row_step, int64_t col_step) {
  if (col_step == 1) {
    for (int64_t i = 0; i < rows; ++i, to += to_row_step, from += row_step) {
      for (int64_t j = 0; j < cols; ++j) to[j] = static_cast<To>(from[j]);
    }
    return;
  }
  // Few columns at a time: their cache lines have to survive until the next row, also where strides are powers of two.
  constexpr int64_t kCols = 8;
  for (; cols >= kCols; cols -= kCols, to += kCols, from += kCols * col_step) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < kCols; ++j) to[i * to_row_step + j] = static_cast<To>(from[i * row_step + j * col_step]);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) to[i * to_row_step + j] = static_cast<To>(from[i * row_step + j * col_step]);
  }
}

// to[i * row_step + j * col_step] = from[i][j] + bias[i]
template <class To, class From>
FASTCONV_INLINE void copy_out(To* to, int64_t row_step, int64_t col_step, const From* from, int64_t from_row_step,
                              int64_t rows, int64_t cols, const To* bias) {
  const auto store_row = [&](int64_t i, int64_t first, int64_t last) __attribute__((always_inline)) {
    const From shift = bias ? static_cast<From>(bias[i]) : From{0};
    To* row = to + i * row_step;
    const From* source = from + i * from_row_step;
    if (col_step == 1) {
      for (int64_t j = first; j < last; ++j) row[j] = static_cast<To>(source[j] + shift);
    } else {
      for (int64_t j = first; j < last; ++j) row[j * col_step] = static_cast<To>(source[j] + shift);
    }
  };
  // Where rows adjoin in memory, the cache lines written have to survive until the next row.
  const int64_t cols_at_once = row_step == 1 && col_step != 1 ? 16 : cols;
  for (int64_t first = 0; first < cols; first += cols_at_once) {
    for (int64_t i = 0; i < rows; ++i) store_row(i, first, std::min(cols, first + cols_at_once));
  }
}

// Writes the block reduction x columns of the im2col matrix (or of its transpose) as panels [column /
// kPanel][depth][kPanel]. `depth` is the number of elements that `reduction` covers. Columns that complete the last
// panel become zero.
template <int64_t kPanel, bool kColumnsArePositions, class Scalar, class T>
FASTCONV_INLINE void pack_im2col(Scalar* to, const T* image, const Lowering& lowering, int64_t depth,
                                 std::span<const Run> reduction, std::span<const Run> columns) {
  for (const Run& column : columns) {
    Scalar* panel = to + column.begin / kPanel * kPanel * depth + column.begin % kPanel;
    for (const Run& step : reduction) {
      const Run& position = kColumnsArePositions ? column : step;
      const Run& tap = kColumnsArePositions ? step : column;
      Scalar* patch = panel + step.begin * kPanel;
      const int64_t row = position.row + tap.row;
      const int64_t col = position.col + tap.col;
      // Positions [first, last) of the run lie inside the image. Divisions are slow, and seldom needed.
      const int64_t stride = lowering.step.w;
      const int64_t beyond = col + (position.length - 1) * stride - (lowering.image_size.w - 1);
      int64_t first = 0;
      int64_t last = position.length;
      if (col < 0) first = std::min(stride == 1 ? -col : (stride - 1 - col) / stride, position.length);
      if (beyond > 0) last -= std::min(stride == 1 ? beyond : (beyond + stride - 1) / stride, position.length);
      if (row < 0 || row >= lowering.image_size.h || first >= last) {
        fill_zero(patch, kPanel, step.length, column.length);
        continue;
      }
      const T* from = image + (position.image + tap.image + first * position.image_step);
      if (kColumnsArePositions) {
        if (first > 0) fill_zero(patch, kPanel, step.length, first);
        if (last < column.length) fill_zero(patch + last, kPanel, step.length, column.length - last);
        copy_in(patch + first, kPanel, from, step.length, last - first, step.image_step, column.image_step);
      } else {
        fill_zero(patch, kPanel, first, column.length);
        fill_zero(patch + last * kPanel, kPanel, step.length - last, column.length);
        copy_in(patch + first * kPanel, kPanel, from, last - first, column.length, step.image_step, column.image_step);
      }
    }
  }
  const int64_t end = columns.back().begin + columns.back().length;
  if (end % kPanel != 0) {
    fill_zero(to + end / kPanel * kPanel * depth + end % kPanel, kPanel, depth, kPanel - end % kPanel);
  }
}

}  // namespace fastconv
