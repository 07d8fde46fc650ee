// Where the elements of a convolution lie: the only place where index maths lives. Every pass is read as a matrix
// product over two index spaces,
//   pixel  (image, row, column) of the tensor the filter slides over, and
//   tap    (channel, filter row, filter column),
// and three tensors: `source` is gathered at (pixel, tap), `filter` is indexed by tap, `target` by pixel. fprop gathers
// x and targets y; dgrad gathers dy and targets dx; wgrad gathers x at y's pixels, as fprop does, but reads the target
// and writes the filter. Plain C++ as well as CUDA: the tests run it against brute force.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"

namespace fastconv {

// One index of an operand. A pixel's and a tap's Coord add up to the element's: its offset from the tensor's start and
// its row and column, which say whether it is in the image or in the padding. 16 bytes: one shared-memory load.
struct alignas(16) Coord {
  int64_t offset;
  int32_t h, w;
};

// Extents of the direct kernels stay below 2^29, so that a sum with an outside Coord is negative whatever is added.
FASTCONV_HOST_DEVICE Coord outside() { return {0, -2 * kMaxExtent, -2 * kMaxExtent}; }

// The part of one spatial dimension that shares a set of filter taps. dgrad with stride t has up to t phases: output
// row h meets only the taps r with h + padding = r * dilation (mod t), and those form an arithmetic progression.
struct AxisPhase {
  int32_t index;      // target row = index + target_step * i
  int32_t first_tap;  // tap = first_tap + tap_step * j
  int32_t taps;
  int32_t offset;  // source row = offset + source_step * i + tap_source_step * j
};

struct Axis {
  int32_t source_extent, target_extent;
  int32_t phases, rows;  // rows of a phase; the last may lie beyond target_extent
  int32_t target_step, source_step, tap_step, tap_source_step;
  int32_t taps, padding, dilation;
  int32_t stride_gcd, inverse;  // of stride and dilation; of dilation / gcd modulo stride / gcd

  FASTCONV_HOST_DEVICE AxisPhase phase(int32_t index) const {
    if (phases == 1 && target_step == 1) {
      // fprop slides forwards, dgrad backwards.
      return {0, 0, taps, tap_source_step > 0 ? -padding : padding};
    }
    const int32_t shifted = index + padding;
    if (shifted % stride_gcd != 0) return {index, 0, 0, 0};
    const auto first = static_cast<int32_t>(int64_t{shifted / stride_gcd} * inverse % tap_step);
    const int32_t count = first < taps ? (taps - 1 - first) / tap_step + 1 : 0;
    // Exact: first was chosen so that the stride divides it.
    return {index, first, count, static_cast<int32_t>((shifted - int64_t{first} * dilation) / target_step)};
  }
};

// One phase of both dimensions.
struct ConvPhase {
  AxisPhase h, w;
  FastDivmod by_taps, by_taps_w;
};

// A problem as the direct kernels see it. Channels and filters are those of one group: the reduced and the produced.
struct ConvMap {
  Axis h, w;
  int32_t channels, filters;
  bool channels_inner;  // taps ordered (r, s, c) rather than (c, r, s), so that the source is read along its channels
  int64_t pixels;       // over all images, of one phase
  FastDivmod by_image, by_row;
  FastDivmod by_channels;
  // Phases differ by at most one tap per axis: index 1 is for those with the most.
  FastDivmod by_taps_w[2], by_taps[2][2];
  Strides source, target;
  Strides filter;  // n: produced channel, c: reduced channel

  FASTCONV_HOST_DEVICE ConvPhase phase(int32_t phase_h, int32_t phase_w) const {
    const AxisPhase at_h = h.phase(phase_h), at_w = w.phase(phase_w);
    const int full_h = at_h.taps * h.tap_step >= h.taps;
    const int full_w = at_w.taps * w.tap_step >= w.taps;
    return {at_h, at_w, by_taps[full_h][full_w], by_taps_w[full_w]};
  }
};

struct Pixel {
  int32_t image, h, w;
};

// A pixel number as image and remainder, so that the steps from there fit 32 bits.
struct PixelOrigin {
  int32_t image, rest;
};

// A ConvMap at one phase.
struct ConvView {
  const ConvMap& map;
  const ConvPhase& phase;

  FASTCONV_HOST_DEVICE int32_t taps() const { return map.channels * phase.h.taps * phase.w.taps; }

  FASTCONV_HOST_DEVICE PixelOrigin origin(int64_t pixel) const {
    const auto image = static_cast<int32_t>(pixel / map.by_image.divisor);
    return {image, static_cast<int32_t>(pixel - int64_t{image} * map.by_image.divisor)};
  }
  FASTCONV_HOST_DEVICE Pixel pixel(PixelOrigin origin, int32_t step) const {
    int32_t images, rest, row, column;
    map.by_image.divmod(origin.rest + step, images, rest);
    map.by_row.divmod(rest, row, column);
    return {origin.image + images, row, column};
  }

  FASTCONV_HOST_DEVICE Coord source_pixel(Pixel pixel) const {
    const int32_t row = phase.h.offset + pixel.h * map.h.source_step;
    const int32_t column = phase.w.offset + pixel.w * map.w.source_step;
    return {pixel.image * map.source.n + row * map.source.h + column * map.source.w, row, column};
  }
  FASTCONV_HOST_DEVICE Coord source_tap(int32_t tap) const {
    const Tap t = split(tap);
    const int32_t row = t.r * map.h.tap_source_step;
    const int32_t column = t.s * map.w.tap_source_step;
    return {t.c * map.source.c + row * map.source.h + column * map.source.w, row, column};
  }
  FASTCONV_HOST_DEVICE int64_t filter_tap(int32_t tap) const {
    const Tap t = split(tap);
    return t.c * map.filter.c + (phase.h.first_tap + t.r * map.h.tap_step) * map.filter.h +
           (phase.w.first_tap + t.s * map.w.tap_step) * map.filter.w;
  }
  // Negative where a phase's last row or column lies beyond the target.
  FASTCONV_HOST_DEVICE int64_t target_pixel(Pixel pixel) const {
    const int32_t row = phase.h.index + pixel.h * map.h.target_step;
    const int32_t column = phase.w.index + pixel.w * map.w.target_step;
    if (row >= map.h.target_extent || column >= map.w.target_extent) return -1;
    return pixel.image * map.target.n + row * map.target.h + column * map.target.w;
  }

 private:
  struct Tap {
    int32_t c, r, s;
  };
  FASTCONV_HOST_DEVICE Tap split(int32_t tap) const {
    Tap t;
    int32_t rs;
    if (map.channels_inner) {
      map.by_channels.divmod(tap, rs, t.c);
    } else {
      phase.by_taps.divmod(tap, t.c, rs);
    }
    phase.by_taps_w.divmod(rs, t.r, t.s);
    return t;
  }
};

// The columns matrix of im2col, (pixel, tap) -> source element, for any problem: 64-bit throughout, taps ordered
// (c, r, s), and no phases (a strided dgrad has zeros where the stride does not divide).
struct Columns {
  bool transposed;
  int64_t images, rows, columns;  // of the target
  int64_t channels, filters, taps_h, taps_w;
  int64_t source_h, source_w;
  Pair stride, padding, dilation;
  Strides source, target;
  Strides filter;  // n: produced channel, c: reduced channel

  FASTCONV_HOST_DEVICE int64_t pixels() const { return images * rows * columns; }
  FASTCONV_HOST_DEVICE int64_t taps() const { return channels * taps_h * taps_w; }

  FASTCONV_HOST_DEVICE int64_t target_pixel(int64_t pixel) const {
    return pixel / columns / rows * target.n + pixel / columns % rows * target.h + pixel % columns * target.w;
  }
  FASTCONV_HOST_DEVICE int64_t filter_tap(int64_t tap) const {
    return tap / taps_w / taps_h * filter.c + tap / taps_w % taps_h * filter.h + tap % taps_w * filter.w;
  }
  // Negative in the padding.
  FASTCONV_HOST_DEVICE int64_t source_element(int64_t pixel, int64_t tap) const {
    const int64_t row =
        source_index(pixel / columns % rows, tap / taps_w % taps_h, stride.h, padding.h, dilation.h, source_h);
    const int64_t column = source_index(pixel % columns, tap % taps_w, stride.w, padding.w, dilation.w, source_w);
    if (row < 0 || column < 0) return -1;
    return pixel / columns / rows * source.n + tap / taps_w / taps_h * source.c + row * source.h + column * source.w;
  }

 private:
  FASTCONV_HOST_DEVICE int64_t source_index(int64_t target, int64_t tap, int64_t stride, int64_t padding,
                                            int64_t dilation, int64_t extent) const {
    int64_t index = target * stride - padding + tap * dilation;
    if (transposed) {
      const int64_t shifted = target + padding - tap * dilation;
      if (shifted < 0 || shifted % stride != 0) return -1;
      index = shifted / stride;
    }
    return index < extent ? index : -1;
  }
};

inline Axis make_axis(bool transposed, int64_t source_extent, int64_t target_extent, int64_t taps, int64_t stride,
                      int64_t padding, int64_t dilation) {
  Axis axis{};
  axis.source_extent = static_cast<int32_t>(source_extent);
  axis.target_extent = static_cast<int32_t>(target_extent);
  axis.taps = static_cast<int32_t>(taps);
  axis.padding = static_cast<int32_t>(padding);
  axis.dilation = static_cast<int32_t>(dilation);
  if (!transposed) {
    axis.phases = 1;
    axis.rows = axis.target_extent;
    axis.target_step = axis.tap_step = axis.stride_gcd = 1;
    axis.source_step = static_cast<int32_t>(stride);
    axis.tap_source_step = axis.dilation;
    return axis;
  }
  const int64_t gcd = std::gcd(stride, dilation);
  axis.phases = static_cast<int32_t>(std::min(stride, target_extent));
  axis.rows = static_cast<int32_t>((target_extent + stride - 1) / stride);
  axis.target_step = static_cast<int32_t>(stride);
  axis.source_step = 1;
  axis.stride_gcd = static_cast<int32_t>(gcd);
  axis.tap_step = static_cast<int32_t>(stride / gcd);
  axis.tap_source_step = static_cast<int32_t>(-dilation / gcd);
  // Extended Euclid for the inverse of dilation / gcd modulo stride / gcd.
  int64_t a = dilation / gcd % axis.tap_step, b = axis.tap_step, x = 1, y = 0;
  while (a != 0) {
    y -= b / a * x;
    b %= a;
    std::swap(a, b);
    std::swap(x, y);
  }
  axis.inverse = static_cast<int32_t>((y % axis.tap_step + axis.tap_step) % axis.tap_step);
  return axis;
}

inline ConvMap make_conv_map(const ConvProblem& problem, bool channels_inner) {
  const bool transposed = problem.pass == Pass::kDgrad;
  const int64_t p = problem.p(), q = problem.q();
  ConvMap map{};
  map.h = make_axis(transposed, transposed ? p : problem.h, transposed ? problem.h : p, problem.r, problem.stride.h,
                    problem.padding.h, problem.dilation.h);
  map.w = make_axis(transposed, transposed ? q : problem.w, transposed ? problem.w : q, problem.s, problem.stride.w,
                    problem.padding.w, problem.dilation.w);
  map.channels = static_cast<int32_t>(transposed ? problem.k_per_group() : problem.c_per_group());
  map.filters = static_cast<int32_t>(transposed ? problem.c_per_group() : problem.k_per_group());
  map.channels_inner = channels_inner;
  map.pixels = problem.n * map.h.rows * map.w.rows;
  map.by_image = FastDivmod(int64_t{map.h.rows} * map.w.rows);
  map.by_row = FastDivmod(map.w.rows);
  map.by_channels = FastDivmod(std::max(map.channels, 1));
  for (int full_h : {0, 1}) {
    const int32_t taps_h = map.h.taps / map.h.tap_step + (full_h && map.h.taps % map.h.tap_step != 0);
    for (int full_w : {0, 1}) {
      const int32_t taps_w = map.w.taps / map.w.tap_step + (full_w && map.w.taps % map.w.tap_step != 0);
      map.by_taps_w[full_w] = FastDivmod(std::max(taps_w, 1));
      map.by_taps[full_h][full_w] = FastDivmod(std::max(taps_h * taps_w, 1));
    }
  }
  map.source = transposed ? problem.y_strides : problem.x_strides;
  map.target = transposed ? problem.x_strides : problem.y_strides;
  map.filter = problem.w_strides;
  if (transposed) std::swap(map.filter.n, map.filter.c);
  return map;
}

inline Columns make_columns(const ConvProblem& problem) {
  const bool transposed = problem.pass == Pass::kDgrad;
  const int64_t p = problem.p(), q = problem.q();
  Columns columns{};
  columns.transposed = transposed;
  columns.images = problem.n;
  columns.rows = transposed ? problem.h : p;
  columns.columns = transposed ? problem.w : q;
  columns.channels = transposed ? problem.k_per_group() : problem.c_per_group();
  columns.filters = transposed ? problem.c_per_group() : problem.k_per_group();
  columns.taps_h = problem.r;
  columns.taps_w = problem.s;
  columns.source_h = transposed ? p : problem.h;
  columns.source_w = transposed ? q : problem.w;
  columns.stride = problem.stride;
  columns.padding = problem.padding;
  columns.dilation = problem.dilation;
  columns.source = transposed ? problem.y_strides : problem.x_strides;
  columns.target = transposed ? problem.x_strides : problem.y_strides;
  columns.filter = problem.w_strides;
  if (transposed) std::swap(columns.filter.n, columns.filter.c);
  return columns;
}

}  // namespace fastconv
