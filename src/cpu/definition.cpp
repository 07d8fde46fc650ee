#include <cmath>

#include "fastconv/cpu/kernels.h"

namespace fastconv {
namespace {

int64_t offset(const Strides& strides, int64_t n, int64_t c, int64_t h, int64_t w) {
  return n * strides.n + c * strides.c + h * strides.h + w * strides.w;
}

}  // namespace

template <class T>
Accumulator<T> by_definition(const ConvProblem& problem, const ConvBuffers& buffers, int64_t n, int64_t c, int64_t h,
                             int64_t w) {
  const auto& [stride, padding, dilation] = std::tie(problem.stride, problem.padding, problem.dilation);
  Accumulator<T> sum = 0;
  // The product of the output (n, k, p, q) and the tap (r, s) of its filter's input channel `tap_c`, if that tap sees a
  // pixel. False once nothing changes the sum.
  const auto add = [&](int64_t n, int64_t k, int64_t p, int64_t q, int64_t tap_c, int64_t r, int64_t s) {
    const int64_t row = p * stride.h - padding.h + r * dilation.h, col = q * stride.w - padding.w + s * dilation.w;
    if (row < 0 || row >= problem.h || col < 0 || col >= problem.w) return true;
    const int64_t channel = k / problem.k_per_group() * problem.c_per_group() + tap_c;
    const auto value = [](const void* data, int64_t at) {
      return static_cast<Accumulator<T>>(static_cast<const T*>(data)[at]);
    };
    const auto x = [&] { return value(buffers.x, offset(problem.x_strides, n, channel, row, col)); };
    const auto y = [&] { return value(buffers.y, offset(problem.y_strides, n, k, p, q)); };
    const auto filter = [&] { return value(buffers.w, offset(problem.w_strides, k, tap_c, r, s)); };
    switch (problem.pass) {
      case Pass::kFprop: sum += x() * filter(); break;
      case Pass::kDgrad: sum += y() * filter(); break;
      case Pass::kWgrad: sum += x() * y(); break;
    }
    return !std::isnan(sum);
  };
  const int64_t window = problem.r * problem.s;
  if (problem.pass == Pass::kFprop) {
    for (int64_t i = 0; i < problem.c_per_group() * window; ++i) {
      if (!add(n, c, h, w, i / window, i / problem.s % problem.r, i % problem.s)) break;
    }
  } else if (problem.pass == Pass::kDgrad) {
    const int64_t group = c / problem.c_per_group();
    for (int64_t i = 0; i < problem.k_per_group() * window; ++i) {
      const int64_t r = i / problem.s % problem.r, s = i % problem.s;
      const int64_t row = h + padding.h - r * dilation.h, col = w + padding.w - s * dilation.w;
      if (row % stride.h != 0 || col % stride.w != 0) continue;
      const int64_t p = row / stride.h, q = col / stride.w;
      if (p < 0 || p >= problem.p() || q < 0 || q >= problem.q()) continue;
      if (!add(n, group * problem.k_per_group() + i / window, p, q, c % problem.c_per_group(), r, s)) break;
    }
  } else {
    const int64_t image = problem.p() * problem.q();
    for (int64_t i = 0; i < problem.n * image; ++i) {
      if (!add(i / image, n, i / problem.q() % problem.p(), i % problem.q(), c, h, w)) break;
    }
  }
  return sum;
}

template float by_definition<float>(const ConvProblem&, const ConvBuffers&, int64_t, int64_t, int64_t, int64_t);
template double by_definition<double>(const ConvProblem&, const ConvBuffers&, int64_t, int64_t, int64_t, int64_t);
template float by_definition<Half>(const ConvProblem&, const ConvBuffers&, int64_t, int64_t, int64_t, int64_t);
template float by_definition<BFloat16>(const ConvProblem&, const ConvBuffers&, int64_t, int64_t, int64_t, int64_t);

}  // namespace fastconv
