#include "fastconv/cpu/lowering.h"

#include <algorithm>
#include <numeric>

namespace fastconv {
namespace {

// The taps along one dimension that pixels first, first + stride, ... of dx see.
struct PhaseTaps {
  int64_t count, first, every;  // taps first, first + every, ...
  int64_t origin, step;         // tap number j of pixel number i multiplies dy[i + origin - j * step]
};

PhaseTaps phase_taps(int64_t pixel, int64_t taps, int64_t stride, int64_t padding, int64_t dilation) {
  // dy[p] reaches the pixel through tap r where p * stride = pixel + padding - r * dilation.
  const int64_t every = stride / std::gcd(stride, dilation);
  for (int64_t first = 0; first < std::min(every, taps); ++first) {
    const int64_t distance = pixel + padding - first * dilation;
    if (distance % stride != 0) continue;
    return {(taps - 1 - first) / every + 1, first, every, distance / stride, every * dilation / stride};
  }
  return {0, 0, every, 0, 0};
}

Lowering lower_dgrad(const ConvProblem& problem, int64_t phase) {
  const Pair phases = {std::min(problem.stride.h, problem.h), std::min(problem.stride.w, problem.w)};
  const Pair pixel = {phase / phases.w, phase % phases.w};
  const PhaseTaps r = phase_taps(pixel.h, problem.r, problem.stride.h, problem.padding.h, problem.dilation.h);
  const PhaseTaps s = phase_taps(pixel.w, problem.s, problem.stride.w, problem.padding.w, problem.dilation.w);
  const Strides &x = problem.x_strides, &w = problem.w_strides, &y = problem.y_strides;
  return {
      .images = problem.n,
      .rows = (problem.h - 1 - pixel.h) / problem.stride.h + 1,
      .cols = (problem.w - 1 - pixel.w) / problem.stride.w + 1,
      .channels = problem.k_per_group(),
      .r = r.count,
      .s = s.count,
      .m = problem.c_per_group(),
      .image_size = {problem.p(), problem.q()},
      .step = {1, 1},
      .tap_step = {-r.step, -s.step},
      .origin = {r.origin, s.origin},
      .image = y,
      .target = {x.n, x.c, x.h * problem.stride.h, x.w * problem.stride.w},
      .filter = {w.c, w.n, w.h * r.every, w.w * s.every},
      .image_group = problem.k_per_group() * y.c,
      .target_group = problem.c_per_group() * x.c,
      .filter_group = problem.k_per_group() * w.n,
      .target_origin = pixel.h * x.h + pixel.w * x.w,
      .filter_origin = r.first * w.h + s.first * w.w,
      .pixel = pixel,
      .pixel_step = problem.stride,
  };
}

Lowering lower_forward_window(const ConvProblem& problem) {
  const Strides &x = problem.x_strides, &w = problem.w_strides, &y = problem.y_strides;
  return {
      .images = problem.n,
      .rows = problem.p(),
      .cols = problem.q(),
      .channels = problem.c_per_group(),
      .r = problem.r,
      .s = problem.s,
      .m = problem.k_per_group(),
      .image_size = {problem.h, problem.w},
      .step = problem.stride,
      .tap_step = problem.dilation,
      .origin = {-problem.padding.h, -problem.padding.w},
      .image = x,
      .target = y,
      .filter = w,
      .image_group = problem.c_per_group() * x.c,
      .target_group = problem.k_per_group() * y.c,
      .filter_group = problem.k_per_group() * w.n,
      .target_origin = 0,
      .filter_origin = 0,
      .pixel = {0, 0},
      .pixel_step = {1, 1},
  };
}

}  // namespace

int64_t phase_count(const ConvProblem& problem) {
  if (problem.pass != Pass::kDgrad) return 1;
  return std::min(problem.stride.h, problem.h) * std::min(problem.stride.w, problem.w);
}

Lowering lower(const ConvProblem& problem, int64_t phase) {
  return problem.pass == Pass::kDgrad ? lower_dgrad(problem, phase) : lower_forward_window(problem);
}

}  // namespace fastconv
