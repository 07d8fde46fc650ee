// The three passes as one walk of a window over an image.
//
// An element of the walk has a position (the pixel of the `target` that the window belongs to) and a tap (the pixel of
// the window, in the `filter`):
//   fprop  image x,  target y  = sum over taps of filter w * image
//   dgrad  image dy, target dx = the same, one walk per stride phase: only pixels of dx that agree modulo the stride
//   see
//          the same taps
//   wgrad  image x,  filter dw = sum over positions of target dy * image
#pragma once

#include <cstdint>

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

  Pair pixel, pixel_step;  // which pixel of the target is position (0, 0), and how far the next ones are

  int64_t taps() const { return channels * r * s; }
};

int64_t phase_count(const ConvProblem& problem);
Lowering lower(const ConvProblem& problem, int64_t phase);

}  // namespace fastconv
