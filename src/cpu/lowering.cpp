#include "fastconv/cpu/lowering.h"

#include <algorithm>
#include <numeric>

namespace fastconv {
namespace {

constexpr int64_t kChannelBlock = 32;

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
  };
}

// A window of one pixel does not see where rows end, so that longer runs are possible.
void merge_rows(Lowering& lowering) {
  const bool pointwise = lowering.r == 1 && lowering.s == 1 && lowering.step.h == 1 && lowering.step.w == 1 &&
                         lowering.origin.h == 0 && lowering.origin.w == 0 && lowering.rows == lowering.image_size.h &&
                         lowering.cols == lowering.image_size.w;
  const auto rows_adjoin = [&](const Strides& strides) { return strides.h == lowering.cols * strides.w; };
  if (!pointwise || !rows_adjoin(lowering.image) || !rows_adjoin(lowering.target)) return;
  lowering.cols *= lowering.rows;
  lowering.rows = 1;
  const auto images_adjoin = [&](const Strides& strides) { return strides.n == lowering.cols * strides.w; };
  if (images_adjoin(lowering.image) && images_adjoin(lowering.target)) {
    lowering.cols *= lowering.images;
    lowering.images = 1;
  }
  lowering.image_size = {1, lowering.cols};
}

}  // namespace

int64_t phase_count(const ConvProblem& problem) {
  if (problem.pass != Pass::kDgrad) return 1;
  return std::min(problem.stride.h, problem.h) * std::min(problem.stride.w, problem.w);
}

Lowering lower(const ConvProblem& problem, int64_t phase) {
  Lowering lowering = problem.pass == Pass::kDgrad ? lower_dgrad(problem, phase) : lower_forward_window(problem);
  merge_rows(lowering);
  return lowering;
}

void position_runs(const Lowering& lowering, int64_t begin, int64_t end, int64_t panel, std::vector<Run>& runs) {
  runs.clear();
  const Strides &image = lowering.image, &target = lowering.target;
  for (int64_t at = begin; at < end;) {
    const int64_t col = at % lowering.cols;
    const int64_t row = at / lowering.cols % lowering.rows;
    const int64_t n = at / lowering.cols / lowering.rows;
    const int64_t in_panel = panel - (at - begin) % panel;
    const Pair pixel = {row * lowering.step.h + lowering.origin.h, col * lowering.step.w + lowering.origin.w};
    const int64_t length = std::min({lowering.cols - col, end - at, in_panel});
    runs.push_back({.begin = at - begin,
                    .length = length,
                    .row = pixel.h,
                    .col = pixel.w,
                    .image = n * image.n + pixel.h * image.h + pixel.w * image.w,
                    .image_step = lowering.step.w * image.w,
                    .other = lowering.target_origin + n * target.n + row * target.h + col * target.w,
                    .other_step = target.w});
    at += length;
  }
}

void tap_runs(const Lowering& lowering, int64_t begin, int64_t end, int64_t panel, std::vector<Run>& runs) {
  runs.clear();
  const Strides &image = lowering.image, &filter = lowering.filter;
  const int64_t window = lowering.r * lowering.s;
  for (int64_t at = begin; at < end;) {
    const int64_t block = at / (kChannelBlock * window) * kChannelBlock;
    const int64_t block_width = std::min(kChannelBlock, lowering.channels - block);
    const int64_t in_block = at - block * window;
    const int64_t r = in_block / block_width / lowering.s;
    const int64_t s = in_block / block_width % lowering.s;
    const int64_t c = block + in_block % block_width;
    const int64_t in_panel = panel - (at - begin) % panel;
    const Pair pixel = {r * lowering.tap_step.h, s * lowering.tap_step.w};
    const int64_t length = std::min({block + block_width - c, end - at, in_panel});
    runs.push_back({.begin = at - begin,
                    .length = length,
                    .row = pixel.h,
                    .col = pixel.w,
                    .image = c * image.c + pixel.h * image.h + pixel.w * image.w,
                    .image_step = image.c,
                    .other = lowering.filter_origin + c * filter.c + r * filter.h + s * filter.w,
                    .other_step = filter.c});
    at += length;
  }
}

}  // namespace fastconv
