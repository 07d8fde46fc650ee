// Parameters of the kernels for filters of several taps: the product of pointwise/params.h, of which one operand is
// seen through a window that the taps move.
#pragma once

#include <cstdint>

#include "fastconv/families/pointwise/params.h"

namespace fastconv {

// An index over taps and the channels of each, which are filled up to whole chunks of 16 bytes.
struct TapAxis {
  FastDivmod by_channels, by_columns;  // channels of a tap with what fills them up; taps of a row
  int32_t taps;                        // that exist
  int64_t first, row, column;          // the first one, and from one to the next; elements
  int32_t row_h, column_w;             // the same in pixels
};

// Pixels of all images, and where the window of each begins.
struct PixelAxis {
  int32_t extent;
  FastDivmod by_image, by_row;
  int64_t first, image, row, column;  // elements
  int32_t height, width;              // of the image that is seen
  int32_t first_h, first_w, step_h, step_w;
  // Where pixels are the depth: of an image; and what a stage is further on, besides whole images.
  int32_t rows, columns, stage_rows, stage_columns;
  int64_t stage, next_row, next_image;  // elements: of a stage, and of what is added where a row, an image, ends

  FASTCONV_HOST_DEVICE bool sees(int32_t h, int32_t w) const {
    return static_cast<uint32_t>(h) < static_cast<uint32_t>(height) &&
           static_cast<uint32_t>(w) < static_cast<uint32_t>(width);
  }
};

// A matrix whose lines are pixels (rows of a filter count as such) across which taps' channels lie.
struct TapMatrix {
  PixelAxis pixels;
  TapAxis across;
  int64_t image, group, part;  // from one to the next, elements
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

}  // namespace fastconv
