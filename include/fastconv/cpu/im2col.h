// What windows see of an image, as a matrix: the im2col matrix, and back. It has the taps of a window in rows and the
// windows' positions (image, row, column of the output) in columns, in memory one of two ways, as the image is:
//   planes   rows side by side, taps in the order channel, row, column
//   pixels   columns side by side, taps in the order row, column, channel
// so that what is contiguous in the image is contiguous in the matrix. A window of one pixel makes any tensor a matrix.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "fastconv/core/integers.h"
#include "fastconv/cpu/conv_cpu.h"
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

// to[i] = from[i * step]
template <class To, class From>
FASTCONV_INLINE void copy_row(To* to, const From* from, int64_t size, int64_t step) {
  if (step == 1) {
    for (int64_t i = 0; i < size; ++i) to[i] = static_cast<To>(from[i]);
  } else {
    for (int64_t i = 0; i < size; ++i) to[i] = static_cast<To>(from[i * step]);
  }
}
template <class To>
FASTCONV_INLINE void fill_zero(To* to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) to[i] = 0;
}

struct Im2col {
  Strides strides;  // of the image
  int64_t channels;
  Pair size;
  Pair window, stride, padding, dilation;
  int64_t n, p, q;  // positions

  int64_t taps() const { return channels * window.h * window.w; }
  int64_t positions() const { return n * p * q; }
  bool planes() const { return strides.c != 1 || channels == 1; }
  // Positions [first, last) of a row see the image's columns with tap s.
  int64_t first_col(int64_t s) const {
    const int64_t before = padding.w - s * dilation.w;
    return std::clamp(before > 0 ? ceil_div(before, stride.w) : 0, int64_t{0}, q);
  }
  int64_t last_col(int64_t s) const {
    const int64_t most = size.w - 1 + padding.w - s * dilation.w;
    return most < 0 ? 0 : std::min(most / stride.w + 1, q);
  }
};

// The window of a problem's filter over x, or, for `y`, of one pixel over y. Of a group.
inline Im2col columns_of_x(const ConvProblem& problem) {
  return {problem.x_strides,
          problem.c_per_group(),
          {problem.h, problem.w},
          {problem.r, problem.s},
          problem.stride,
          problem.padding,
          problem.dilation,
          problem.n,
          problem.p(),
          problem.q()};
}
inline Im2col columns_of_y(const ConvProblem& problem) {
  const int64_t p = problem.p(), q = problem.q();
  return {problem.y_strides, problem.k_per_group(), {p, q}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, problem.n, p, q};
}
inline bool is_pointwise(const Im2col& c) {
  const Pair one = {1, 1}, none = {0, 0};
  return c.window == one && c.stride == one && c.padding == none && c.size == Pair{c.p, c.q};
}
// A window of one pixel does not see where rows and images end: makes rows of positions as long as memory has them.
inline Im2col merge_rows(Im2col c) {
  if (!is_pointwise(c)) return c;
  if (c.q == 1) c.q = c.p, c.p = 1, c.strides.w = c.strides.h;
  if (c.p > 1 && c.strides.h == c.q * c.strides.w) c.q *= c.p, c.p = 1;
  if (c.p == 1 && c.q == 1) c.q = c.n, c.n = 1, c.strides.w = c.strides.n;
  if (c.p == 1 && c.n > 1 && c.strides.n == c.q * c.strides.w) c.q *= c.n, c.n = 1;
  c.size = {c.p, c.q};
  return c;
}

// Positions [begin, end) of the matrix, and of those planes' channels or pixels' positions the part [first, last) of
// `of`. `to` has planes of end - begin elements, or pixels of taps().
template <class Scalar, class T>
FASTCONV_INLINE void pack_columns(Scalar* to, const T* image, const Im2col& c, int64_t begin, int64_t end, int64_t part,
                                  int64_t parts) {
  const int64_t image_size = c.p * c.q;
  if (c.planes()) {
    const int64_t first = c.channels * part / parts, last = c.channels * (part + 1) / parts;
    for (int64_t tap = first * c.window.h * c.window.w; tap < last * c.window.h * c.window.w; ++tap) {
      const int64_t s = tap % c.window.w, r = tap / c.window.w % c.window.h, channel = tap / c.window.w / c.window.h;
      const int64_t seen = c.first_col(s), unseen = std::max(seen, c.last_col(s));
      Scalar* row = to + tap * (end - begin);
      int64_t n = begin / image_size, p = begin / c.q % c.p, q = begin % c.q;
      for (int64_t at = begin; at < end;) {
        const int64_t length = std::min(c.q - q, end - at);
        const int64_t y = p * c.stride.h - c.padding.h + r * c.dilation.h;
        if (y < 0 || y >= c.size.h) {
          fill_zero(row, length);
        } else {
          const int64_t lo = std::clamp(seen, q, q + length), hi = std::clamp(unseen, lo, q + length);
          const int64_t x = lo * c.stride.w - c.padding.w + s * c.dilation.w;
          fill_zero(row, lo - q);
          copy_row(row + (lo - q),
                   image + (n * c.strides.n + channel * c.strides.c + y * c.strides.h + x * c.strides.w), hi - lo,
                   c.stride.w * c.strides.w);
          fill_zero(row + (hi - q), q + length - hi);
        }
        row += length, at += length, q = 0;
        if (++p == c.p) p = 0, ++n;
      }
    }
    return;
  }
  const int64_t first = begin + (end - begin) * part / parts, last = begin + (end - begin) * (part + 1) / parts;
  Scalar* row = to + (first - begin) * c.taps();
  int64_t n = first / image_size, p = first / c.q % c.p, q = first % c.q;
  const bool whole_rows = c.dilation.w == 1 && c.strides.w == c.channels;
  for (int64_t at = first; at < last; ++at) {
    const int64_t x = q * c.stride.w - c.padding.w;
    for (int64_t r = 0; r < c.window.h; ++r) {
      const int64_t y = p * c.stride.h - c.padding.h + r * c.dilation.h;
      const T* from = image + (n * c.strides.n + y * c.strides.h + x * c.strides.w);
      if (y < 0 || y >= c.size.h) {
        fill_zero(row, c.window.w * c.channels);
        row += c.window.w * c.channels;
      } else if (whole_rows && x >= 0 && x + c.window.w <= c.size.w) {
        copy_row(row, from, c.window.w * c.channels, 1);
        row += c.window.w * c.channels;
      } else {
        for (int64_t s = 0; s < c.window.w; ++s, row += c.channels) {
          const int64_t column = x + s * c.dilation.w;
          if (column < 0 || column >= c.size.w) {
            fill_zero(row, c.channels);
          } else {
            copy_row(row, from + s * c.dilation.w * c.strides.w, c.channels, 1);
          }
        }
      }
    }
    if (++q == c.q) {
      q = 0;
      if (++p == c.p) p = 0, ++n;
    }
  }
}

// The other way: what all taps of all positions bring to a row of the image, which is complete after. The matrix has
// positions from row `first_p` of image n on, `steps` apart, its taps `tap_step` apart, of which [channel,
// channel + channels) are taken.
template <class Scalar, class T>
FASTCONV_INLINE void add_columns(T* image, Scalar* sums, const Im2col& c, const Scalar* columns, int64_t step,
                                 int64_t y, int64_t first_p) {
  // Of a row of the image: planes [channels][w], pixels [w][channels].
  fill_zero(sums, c.channels * c.size.w);
  for (int64_t r = 0; r < c.window.h; ++r) {
    const int64_t scaled = y + c.padding.h - r * c.dilation.h;
    if (scaled < 0 || scaled % c.stride.h != 0 || scaled / c.stride.h >= c.p) continue;
    const int64_t position = (scaled / c.stride.h - first_p) * c.q;
    for (int64_t s = 0; s < c.window.w; ++s) {
      const int64_t first = c.first_col(s), last = c.last_col(s);
      const int64_t x = first * c.stride.w - c.padding.w + s * c.dilation.w;
      const int64_t tap = r * c.window.w + s;
      if (c.planes()) {
        for (int64_t channel = 0; channel < c.channels; ++channel) {
          const Scalar* from = columns + (channel * c.window.h * c.window.w + tap) * step + position + first;
          Scalar* to = sums + channel * c.size.w + x;
          if (c.stride.w == 1) {
            for (int64_t q = 0; q < last - first; ++q) to[q] += from[q];
          } else {
            for (int64_t q = 0; q < last - first; ++q) to[q * c.stride.w] += from[q];
          }
        }
      } else {
        for (int64_t q = first; q < last; ++q) {
          const Scalar* from = columns + (position + q) * step + tap * c.channels;
          Scalar* to = sums + (x + (q - first) * c.stride.w) * c.channels;
          for (int64_t channel = 0; channel < c.channels; ++channel) to[channel] += from[channel];
        }
      }
    }
  }
  // To the image.
  T* row = image + y * c.strides.h;
  if (c.planes()) {
    for (int64_t channel = 0; channel < c.channels; ++channel, row += c.strides.c, sums += c.size.w) {
      for (int64_t x = 0; x < c.size.w; ++x) row[x * c.strides.w] = static_cast<T>(sums[x]);
    }
  } else {
    for (int64_t x = 0; x < c.size.w; ++x, row += c.strides.w, sums += c.channels) {
      for (int64_t channel = 0; channel < c.channels; ++channel) row[channel] = static_cast<T>(sums[channel]);
    }
  }
}

}  // namespace fastconv
