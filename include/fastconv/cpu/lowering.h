// The three passes as one matrix product, im2col or its transpose times a matrix, without the im2col matrix.
//
// Every pass reads an `image` through a window. An element of the im2col matrix has a position (the pixel of the
// `target` that the window belongs to) and a tap (the pixel of the window, in the `filter`):
//   fprop  image x,  target y  = filter w * im2col
//   dgrad  image dy, target dx = filter w * im2col, one product per stride phase: only pixels of dx that agree modulo
//          the stride see the same taps
//   wgrad  image x,  filter dw = target dy * transposed im2col
// Positions run over (image, row, column); taps over (channel block, row, column, channel), since consecutive channels
// share the bounds check and the block keeps what a window row's neighbours need in cache.
#pragma once

#include <cstdint>
#include <vector>

#include "fastconv/core/problem.h"

namespace fastconv {

struct Lowering {
  int64_t images, rows, cols;  // of positions
  int64_t channels, r, s;      // of taps, in a group
  int64_t m;                   // rows of target and filter, in a group

  // The image's pixel at (position, tap) is position * step + tap * tap_step + origin; outside the image it is zero.
  Pair image_size, step, tap_step, origin;

  // In elements. `c` of the target and `n` of the filter are the strides of m.
  Strides image, target, filter;
  int64_t image_group, target_group, filter_group;  // from one group to the next
  int64_t target_origin, filter_origin;

  int64_t positions() const { return images * rows * cols; }
  int64_t taps() const { return channels * r * s; }
};

int64_t phase_count(const ConvProblem& problem);
Lowering lower(const ConvProblem& problem, int64_t phase);

// Consecutive positions in one row of the image, or consecutive taps at one pixel of the window.
struct Run {
  int64_t begin, length;      // begin counts from the start of the range asked for
  int64_t row, col;           // share of the image's pixel; position runs advance by Lowering::step.w
  int64_t image, image_step;  // element offset in the image
  int64_t other, other_step;  // element offset in the target (positions) or the filter (taps)
};

// The runs that cover [begin, end), none of which crosses a multiple of `panel` counted from `begin`.
void position_runs(const Lowering& lowering, int64_t begin, int64_t end, int64_t panel, std::vector<Run>& runs);
void tap_runs(const Lowering& lowering, int64_t begin, int64_t end, int64_t panel, std::vector<Run>& runs);

}  // namespace fastconv
