// Parameters of the pointwise kernels: a product of two matrices for each image, out[m][n] = sum of a[m][d] * b[n][d].
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"

namespace fastconv {

// Where an index lies in memory, elements: that of a pixel of all images, or of a channel, which is a column alone.
struct PointwiseLines {
  int32_t extent;
  bool pixels;
  FastDivmod by_image, by_row;
  int64_t image, row, column;

  FASTCONV_HOST_DEVICE int64_t at(int32_t i) const { return pixels ? of_pixel(i) : i * column; }
  FASTCONV_HOST_DEVICE int64_t of_pixel(int32_t i) const {
    int32_t n, rest, h, w;
    by_image.divmod(i, n, rest);
    by_row.divmod(rest, h, w);
    return n * image + h * row + w * column;
  }
};

// A matrix: lines of neighbouring elements, that can be accessed so many bytes at a time.
struct PointwiseMatrix {
  PointwiseLines lines;
  int32_t length;  // of a line
  int32_t vector_bytes;
  int64_t image;  // from one product's to the next one's
};

// Where the columns of an output lie: side by side, or in rows of so many.
struct PointwiseColumns {
  bool apart;
  FastDivmod by_row;
  int64_t row, column;  // elements
  int32_t exist;        // of a row

  // Negative where there is none.
  FASTCONV_HOST_DEVICE int64_t at(int32_t n) const {
    if (!apart) return n;
    int32_t i, j;
    by_row.divmod(n, i, j);
    return j < exist ? i * row + j * column : -1;
  }
};

struct PointwiseParams {
  PointwiseMatrix a, b, out;
  PointwiseColumns columns;
  int32_t depth, image_steps;  // of a product; stages that it takes
  // Of a weight gradient products are added, and all their stages are cut into slices.
  int32_t steps, slice_steps;
  int32_t stages;  // of the ring
  bool adds_images;
  bool bias_along_n;
  // A block is a tile; the first of these is the fastest.
  bool m_inner;
  FastDivmod by_inner, by_outer, by_images;
};

}  // namespace fastconv
