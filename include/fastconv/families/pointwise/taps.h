// Parameters of the kernels for filters of several taps: the product of pointwise/params.h, of which one operand is
// seen through a window that the taps move.
#pragma once

#include <cstdint>

#include "fastconv/families/pointwise/params.h"

namespace fastconv {

// A pixel's row and column in one number, row << shift plus column, so that those of a window and of a tap are added at
// once. It wraps around, as either may be negative.
struct ImageBounds {
  uint32_t signs, limits;  // bits of both that are set if negative; what sets them if added to one that is too large

  FASTCONV_HOST_DEVICE bool hold(uint32_t window, uint32_t tap) const {
    const uint32_t place = window + tap;
    return ((place | (place + limits)) & signs) == 0;
  }
};
// Of what does not exist: in front of every image, whatever is added, and behind if it is this.
inline constexpr uint32_t kBeforeImages = 5U << 29;

// An index over taps and the channels of each, which are filled up to whole chunks of 16 bytes.
struct TapAxis {
  FastDivmod by_channels, by_columns;  // channels of a tap with what fills them up; taps of a row
  int32_t extent;                      // of all taps together
  int64_t first, row, column;          // the first tap, and from one to the next; elements
  uint32_t row_place, column_place;    // the same in the image
  // What a stage is further on besides whole taps, and besides whole rows of them; then what is added where a tap's
  // channels, and where a row's taps end.
  int32_t stage_channels, stage_columns;
  int64_t stage, next_column, next_row;
  uint32_t stage_place, next_row_place;
};

// Pixels of all images, and where the window of each begins.
struct PixelAxis {
  int32_t extent;
  FastDivmod by_image, by_row;
  int64_t first, image, row, column;  // elements
  int64_t behind;                     // how far before a pixel a later one lies at most, as windows overlap
  uint32_t first_place, row_place, column_place;
  ImageBounds bounds;  // of the image that is seen
  // Where pixels are the depth: of an image; and what a stage is further on, besides whole images; then what is added
  // where a row, and where an image ends.
  int32_t rows, columns, stage_rows, stage_columns;
  int64_t stage, next_row, next_image;
  uint32_t stage_place, next_row_place, next_image_place;
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
