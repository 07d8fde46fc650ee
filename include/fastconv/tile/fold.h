// A strided convolution of few channels as one without stride: a pixel of the folded input stands for as many of the
// input's as the strides span, with the channels of all of them, and a tap of the folded filter for as many taps. Plain
// C++ as well as CUDA: the tests run it against brute force.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"

namespace fastconv {

inline constexpr int kMaxFoldedChannels = 64;

struct FoldedAxis {
  int32_t stride, size, taps;  // of the convolution, its input and its filter
  int32_t begin;               // pixel that folded pixel 0 begins with: of the image, or before it
  int32_t lead;                // taps that the folded filter has before the filter's own

  // Of part `part` of folded pixel or tap i. Those that the input or filter has not are zero.
  FASTCONV_HOST_DEVICE int32_t pixel(int32_t i, int32_t part) const { return i * stride + begin + part; }
  FASTCONV_HOST_DEVICE int32_t tap(int32_t i, int32_t part) const { return i * stride + part - lead; }
  FASTCONV_HOST_DEVICE bool has_pixel(int32_t pixel) const {
    return static_cast<uint32_t>(pixel) < static_cast<uint32_t>(size);
  }
  FASTCONV_HOST_DEVICE bool has_tap(int32_t tap) const {
    return static_cast<uint32_t>(tap) < static_cast<uint32_t>(taps);
  }
};

// Which of a folded pixel's pixels and of their channels this one is.
struct FoldedChannel {
  int32_t offset;  // elements from the folded pixel's first
  int8_t h, w;
  int16_t c;
};

// The channels are in the order in which they lie in memory.
struct Fold {
  FoldedAxis h, w;
  int32_t channels;
  bool pairs;  // channels 2i and 2i + 1 are one aligned 32-bit word, inside the image or outside
  FoldedChannel channel[kMaxFoldedChannels];
};

// The folded input in the workspace, which the kernel writes before its products begin.
struct FoldedRows {
  Fold fold;
  const void* in;
  void* rows;
  int64_t in_n;  // strides of the input, elements
  int32_t in_h, in_w;
  int32_t row;     // elements of a folded pixel: the channels, rounded up to 8
  int32_t pixels;  // of all images; 0: nothing is written
  FastDivmod width, height;
};

}  // namespace fastconv
