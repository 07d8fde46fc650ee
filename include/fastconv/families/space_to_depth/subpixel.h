// A convolution of few filters, or an input gradient of few channels, as a forward convolution of many: a block of
// neighbouring outputs becomes one pixel, whose channels they are (depth to space, "sub-pixel convolution": Shi et al.,
// CVPR 2016). Its filter has a filter for each output of a block, with zeros where that output does not see a pixel
// that others see. Plain C++ as well as CUDA: the tests run it against brute force.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"

namespace fastconv {

struct SubpixelConfig {
  // Blocks have so many rows and columns; of an input gradient so many strides, since rows as far apart as the stride
  // see the same taps.
  int64_t factor;
};

inline constexpr int kSubpixelThreads = 256;

// Taps of one dimension.
struct SubpixelAxis {
  // From the problem's first tap to what the inner filter's tap `t` is for the block's row or column `a`, in pixels.
  int32_t distance, per_output, per_tap;
  FastDivmod dilation;
  int32_t taps;

  // Of the problem's filter; -1 where the output does not see the pixel.
  FASTCONV_HOST_DEVICE int32_t tap(int32_t a, int32_t t) const {
    const int32_t reach = distance + a * per_output + t * per_tap;
    if (reach < 0) return -1;
    int32_t tap, rest;
    dilation.divmod(reach, tap, rest);
    return rest == 0 && tap < taps ? tap : -1;
  }
};

// An output of a block.
struct SubpixelOutput {
  int32_t channel, row, column;
};

struct SubpixelFilter {
  int64_t target, source, row, column;  // strides of the problem's filter; target: of the channels of the outputs
  SubpixelAxis rows, columns;
  SubpixelOutput levels[3];   // what the indices of a block count, outermost first
  FastDivmod middle, inner;   // sizes of the last two
  int32_t outputs;            // of a block; further ones fill up whole vectors and are zero
  FastDivmod sources;         // channels
  FastDivmod width, taps;     // the inner filter's columns and taps
  int32_t filters, elements;  // of the inner filter

  FASTCONV_HOST_DEVICE SubpixelOutput output(int32_t filter) const {
    int32_t rest, i[3];
    inner.divmod(filter, rest, i[2]);
    middle.divmod(rest, i[0], i[1]);
    SubpixelOutput out{0, 0, 0};
    for (int level = 0; level < 3; ++level) {
      out.channel += i[level] * levels[level].channel;
      out.row += i[level] * levels[level].row, out.column += i[level] * levels[level].column;
    }
    return out;
  }
  // Where the problem's filter has an element of the inner one, which lies in the order filter, row, column, channel;
  // -1 where that is zero.
  FASTCONV_HOST_DEVICE int64_t place(int32_t element) const {
    int32_t pixel, channel, filter, tap, y, x;
    sources.divmod(element, pixel, channel);
    taps.divmod(pixel, filter, tap);
    width.divmod(tap, y, x);
    if (filter >= outputs) return -1;
    const SubpixelOutput out = output(filter);
    const int32_t r = rows.tap(out.row, y), s = columns.tap(out.column, x);
    return r < 0 || s < 0 ? -1 : out.channel * target + channel * source + r * row + s * column;
  }
};

}  // namespace fastconv
