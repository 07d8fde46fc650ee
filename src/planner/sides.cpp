#include "fastconv/planner/sides.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>

#include "fastconv/core/integers.h"

namespace fastconv {
namespace {

// The largest element after the first of an image, all dimensions but n.
int64_t reach(const Side& side, int64_t groups) {
  return (side.c * groups - 1) * side.stride.c + (side.h - 1) * side.stride.h + (side.w - 1) * side.stride.w;
}

}  // namespace

bool is_patches(const ConvProblem& p) {
  auto along = [](int64_t taps, int64_t stride, int64_t padding, int64_t dilation) {
    return taps == stride && padding == 0 && (taps == 1 || dilation == 1);
  };
  return p.r * p.s > 1 && along(p.r, p.stride.h, p.padding.h, p.dilation.h) &&
         along(p.s, p.stride.w, p.padding.w, p.dilation.w);
}

int64_t products_of_a_sum(const ConvProblem& p) {
  switch (p.pass) {
    case Pass::kFprop:
      return p.c_per_group() * std::min(p.r, ceil_div(p.h, p.dilation.h)) * std::min(p.s, ceil_div(p.w, p.dilation.w));
    case Pass::kDgrad:
      return p.k_per_group() * std::min(std::max<int64_t>(1, p.r / p.stride.h), ceil_div(p.h, p.dilation.h)) *
             std::min(std::max<int64_t>(1, p.s / p.stride.w), ceil_div(p.w, p.dilation.w));
    case Pass::kWgrad: return p.n * p.p() * p.q();
  }
  return 0;
}

bool images_fit_int32(const ConvProblem& a) {
  for (const int64_t extent : {a.n, a.c, a.k, a.h + 2 * a.padding.h, a.w + 2 * a.padding.w, a.stride.h, a.stride.w,
                               a.dilation.h, a.dilation.w}) {
    if (extent >= kMaxExtent) return false;
  }
  // Expanded images have more pixels than elements.
  if (a.h * a.w > INT32_MAX || a.p() * a.q() > INT32_MAX) return false;
  const Side filter{1, a.c_per_group(), a.r, a.s, a.w_strides, 0};
  const int64_t of_group = reach(filter, 1) + (a.k_per_group() - 1) * a.w_strides.n;
  return reach(input_side(a), a.groups) < INT32_MAX && reach(output_side(a), a.groups) < INT32_MAX &&
         of_group < INT32_MAX && a.r * a.s < kMaxExtent;
}

bool channel_vectors(const Side& side, const ConvProblem& a, int64_t elements) {
  const Strides& strides = side.stride;
  return strides.c == 1 && side.align >= elements * element_size(a.dtype) &&
         keeps_multiples(strides.n, a.n, elements) && keeps_multiples(strides.h, side.h, elements) &&
         keeps_multiples(strides.w, side.w, elements);
}

int64_t tap_period(int64_t dilation, int64_t stride) { return stride / std::gcd(dilation, stride); }

Run forward_run(int64_t r, int64_t taps, int64_t pad, int64_t dilation, int64_t stride) {
  const int64_t period = tap_period(dilation, stride);
  return {r * dilation - pad, ceil_div(taps - r, period), dilation / std::gcd(dilation, stride), r, period};
}

int64_t linear_size(int64_t outputs, int64_t inputs, int64_t stride, int64_t extent, int64_t d) {
  if (d >= 0) return outputs + extent;
  const int64_t lead = ceil_div(-d, stride), inputs_end = ceil_div(inputs - d, stride);
  return std::min(outputs + extent, std::max(outputs + extent - lead, inputs_end));
}

bool is_pointwise(const ConvProblem& p) {
  return p.r == 1 && p.s == 1 && p.stride.h == 1 && p.stride.w == 1 && p.padding.h == 0 && p.padding.w == 0;
}

void flatten(Side& in, Side& out) {
  auto one_row = [](const Side& s) { return s.h == 1 || s.stride.h == s.w * s.stride.w; };
  auto one_image = [](const Side& s) { return s.n == 1 || s.stride.n == s.w * s.stride.w; };
  if (!one_row(in) || !one_row(out) || in.h * in.w >= kMaxExtent) return;
  for (Side* side : {&in, &out}) side->w *= side->h, side->h = 1;
  if (!one_image(in) || !one_image(out) || in.n * in.w >= kMaxExtent) return;
  for (Side* side : {&in, &out}) side->w *= side->n, side->n = 1;
}

}  // namespace fastconv
