// What families have in common: the tensors as they see them, and the runs of taps.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"

namespace fastconv {

inline constexpr Pair kUnitStep{1, 1};

// One of the two image tensors; c is a group's channels.
struct Side {
  int64_t n, c, h, w;
  Strides stride;
  int32_t align;
};

inline Side input_side(const ConvProblem& p) { return {p.n, p.c_per_group(), p.h, p.w, p.x_strides, p.x_align}; }
inline Side output_side(const ConvProblem& p) { return {p.n, p.k_per_group(), p.p(), p.q(), p.y_strides, p.y_align}; }

// The one that the filter slides over, and the one that its products are summed for; the weight gradient's as fprop's.
inline Side source_side(const ConvProblem& p) { return p.pass == Pass::kDgrad ? output_side(p) : input_side(p); }
inline Side target_side(const ConvProblem& p) { return p.pass == Pass::kDgrad ? input_side(p) : output_side(p); }

// Padding as a window sees it that slides over the source; the input gradient's has the last tap first.
inline Pair sliding_padding(const ConvProblem& p) {
  return p.pass == Pass::kDgrad ? Pair{p.r - 1 - p.padding.h, p.s - 1 - p.padding.w} : p.padding;
}

// An extent of 1 may have any stride.
inline bool is_step(int64_t stride, int64_t extent, int64_t wanted) { return extent == 1 || stride == wanted; }
// The stride, or 0 if no kernel needs it: some form addresses of lines that do not exist, which must be aligned too.
inline int64_t used_stride(int64_t stride, int64_t extent) { return extent == 1 ? 0 : stride; }
// The same of a whole tensor but its channels: a group may have one of many.
inline Strides image_strides(const Side& side) {
  const Strides& given = side.stride;
  return {used_stride(given.n, side.n), given.c, used_stride(given.h, side.h), used_stride(given.w, side.w)};
}

// Whether 32 bits count extents, and pixels and elements of an image or of a group's filters.
bool images_fit_int32(const ConvProblem& problem);

// Of a result whose filter lies inside; where strides leave taps out, of one that has fewest.
int64_t products_of_a_sum(const ConvProblem& problem);
// Tensor cores truncate what a step adds up; of fewer products than that, multiply-adds lose less ("ieee").
inline constexpr int64_t kLeastTensorProducts = 8;

// Whether so many channels can be read at once: they lie side by side and begin at multiples of their size.
bool channel_vectors(const Side& side, const ConvProblem& problem, int64_t elements);

// All channels of what a pass writes; the weight gradient counts filters.
inline int64_t target_channels(const ConvProblem& p) { return p.pass == Pass::kDgrad ? p.c : p.k; }

// Taps along one dimension that read inputs stride * output + d + i * stride * step, i < count.
struct Run {
  int64_t d, count, step, tap0, dtap;
};

// The taps r, r + period, ... read the same plane of a strided input: as many runs as periods, and taps.
int64_t tap_period(int64_t dilation, int64_t stride);
Run forward_run(int64_t r, int64_t taps, int64_t pad, int64_t dilation, int64_t stride);
// Positions that a row (or image) of a linear tile must have so that a shift by `extent` off its end meets padding: its
// own, or the zeros that the next row starts with. `d`: as a run's.
int64_t linear_size(int64_t outputs, int64_t inputs, int64_t stride, int64_t extent, int64_t d);

// Filters of several taps, as large as their stride: each value of the image belongs to one output at most.
bool is_patches(const ConvProblem& problem);

// 1x1, without stride and padding: a matrix product.
bool is_pointwise(const ConvProblem& problem);
// Of a pointwise convolution: pixels that lie in one row, however the tensors call them, become one row.
void flatten(Side& in, Side& out);

}  // namespace fastconv
