// Parameters of the kernels for filters of several taps: the product of pointwise/params.h, of which one or two
// operands are seen through a window that the taps move.
#pragma once

#include <cstdint>

#include "fastconv/families/pointwise/params.h"

namespace fastconv {

// An index over taps and the channels of each, which are filled up to whole chunks of 16 bytes.
struct TapAxis {
  FastDivmod by_channels, by_columns;   // channels of a tap with what fills them up; taps of a row
  int32_t taps, channels;               // that exist
  int64_t first, row, column, channel;  // the first one, and from one to the next; elements
  int32_t row_h, column_w;              // the same in pixels
};

// Pixels of all images, and where the window of each begins.
struct PixelAxis {
  int32_t extent;
  FastDivmod by_image, by_row;
  int64_t first, image, row, column;  // elements
  int32_t height, width;              // of the image that is seen
  int32_t first_h, first_w, step_h, step_w;

  FASTCONV_HOST_DEVICE bool sees(int32_t h, int32_t w) const {
    return static_cast<uint32_t>(h) < static_cast<uint32_t>(height) &&
           static_cast<uint32_t>(w) < static_cast<uint32_t>(width);
  }
};

// A matrix whose lines are pixels (filters count as such) across which taps' channels lie; or, of an input gradient's
// filter, taps' filters across which channels lie.
struct TapMatrix {
  PixelAxis pixels;
  TapAxis line_taps, across;
  int64_t image, group;  // of a product's, elements
};

struct TapParams {
  TapMatrix a, b;
  PointwiseMatrix out;
  PointwiseColumns columns;
  int64_t out_group;  // of a product's, elements
  int64_t out_first;  // of a phase, elements: the launcher adds it
  int32_t group_filters;
  int32_t steps, slice_steps, stages;
  bool bias_along_n, m_inner;
  FastDivmod by_inner, by_outer, by_images, by_groups;  // tiles; products, which are groups of images
};

// A filter as the kernels want it, in the workspace: [filter][tap][channels in whole chunks].
struct TapPacking {
  int64_t chunks;  // of all
  FastDivmod by_filter, by_tap, by_columns;
  int64_t filter, row, column, channel;  // elements of the given one
  int32_t channels;                      // of a tap
};

}  // namespace fastconv
