#include <cmath>

#include "fastconv/core/integers.h"
#include "fastconv/cpu/kernels.h"

namespace fastconv {
namespace {

template <class T>
Accumulator<T> dot(const T* a, int64_t a_step, const T* b, int64_t b_step, int64_t size) {
  Accumulator<T> sum = 0;
  for (int64_t i = 0; i < size; ++i) {
    sum += static_cast<Accumulator<T>>(a[i * a_step]) * static_cast<Accumulator<T>>(b[i * b_step]);
  }
  return sum;
}

// One dimension of a problem.
struct Window {
  int64_t pixels, outputs, stride, padding, dilation;

  int64_t pixel(int64_t output, int64_t tap) const { return output * stride - padding + tap * dilation; }
  // Outputs [first, last) see a pixel with the tap.
  int64_t first(int64_t tap) const {
    const int64_t before = -pixel(0, tap);
    return before > 0 ? std::min(ceil_div(before, stride), outputs) : 0;
  }
  int64_t last(int64_t tap) const {
    const int64_t most = pixels - 1 - pixel(0, tap);
    return most < 0 ? 0 : std::min(most / stride + 1, outputs);
  }
};

enum class Sight : int8_t { kNothing, kPadding, kElement };

// What an output sees of the image with a tap, or, in dgrad, a pixel of the outputs.
Sight look(const Window& axis, bool dgrad, int64_t from, int64_t tap, int64_t& at) {
  at = dgrad ? from + axis.padding - tap * axis.dilation : axis.pixel(from, tap);
  if (dgrad && at % axis.stride != 0) return Sight::kNothing;
  if (dgrad) at /= axis.stride;
  return at >= 0 && at < (dgrad ? axis.outputs : axis.pixels) ? Sight::kElement : Sight::kPadding;
}

}  // namespace

template <class T>
Accumulator<T> by_definition(const ConvProblem& problem, const ConvBuffers& buffers, int64_t n, int64_t c, int64_t h,
                             int64_t w, int64_t* witness) {
  const Window rows = {problem.h, problem.p(), problem.stride.h, problem.padding.h, problem.dilation.h};
  const Window cols = {problem.w, problem.q(), problem.stride.w, problem.padding.w, problem.dilation.w};
  const Strides &of_x = problem.x_strides, &of_w = problem.w_strides, &of_y = problem.y_strides;
  const T *x = static_cast<const T*>(buffers.x), *y = static_cast<const T*>(buffers.y);
  const T* filter = static_cast<const T*>(buffers.w);
  const int64_t channels = problem.c_per_group(), filters = problem.k_per_group();
  Accumulator<T> sum = 0;
  if (problem.pass == Pass::kWgrad) {
    x += (n / filters * channels + c) * of_x.c, y += n * of_y.c;
    const int64_t q = cols.first(w), size = cols.last(w) - q, all = problem.n * rows.outputs;
    for (int64_t i = 0; i < all && size > 0; ++i) {
      const int64_t at = (*witness + i) % all, image = at / rows.outputs, p = at % rows.outputs;
      if (p < rows.first(h) || p >= rows.last(h)) continue;
      sum += dot(x + (image * of_x.n + rows.pixel(p, h) * of_x.h + cols.pixel(q, w) * of_x.w), cols.stride * of_x.w,
                 y + (image * of_y.n + p * of_y.h + q * of_y.w), of_y.w, size);
      if (std::isnan(sum)) {
        *witness = at;
        break;
      }
    }
    return sum;
  }
  const bool dgrad = problem.pass == Pass::kDgrad;
  const int64_t group = c / (dgrad ? channels : filters);
  bool padded = false;
  for (int64_t i = 0; i < problem.r * problem.s; ++i) {
    int64_t row, col;
    const Sight r = look(rows, dgrad, h, i / problem.s, row), s = look(cols, dgrad, w, i % problem.s, col);
    padded |= r != Sight::kNothing && s != Sight::kNothing && (r == Sight::kPadding || s == Sight::kPadding);
  }
  if (!padded) return NAN;
  for (int64_t i = 0; i < problem.r * problem.s && !std::isnan(sum); ++i) {
    int64_t row, col;
    if (look(rows, dgrad, h, i / problem.s, row) != Sight::kElement) continue;
    if (look(cols, dgrad, w, i % problem.s, col) != Sight::kElement) continue;
    const T* tap = filter + (i / problem.s * of_w.h + i % problem.s * of_w.w);
    sum += dgrad ? dot(y + (n * of_y.n + group * filters * of_y.c + row * of_y.h + col * of_y.w), of_y.c,
                       tap + (group * filters * of_w.n + c % channels * of_w.c), of_w.n, filters)
                 : dot(x + (n * of_x.n + group * channels * of_x.c + row * of_x.h + col * of_x.w), of_x.c,
                       tap + c * of_w.n, of_w.c, channels);
  }
  return sum;
}

template float by_definition<float>(const ConvProblem&, const ConvBuffers&, int64_t, int64_t, int64_t, int64_t,
                                    int64_t*);
template double by_definition<double>(const ConvProblem&, const ConvBuffers&, int64_t, int64_t, int64_t, int64_t,
                                      int64_t*);
template float by_definition<Half>(const ConvProblem&, const ConvBuffers&, int64_t, int64_t, int64_t, int64_t,
                                   int64_t*);
template float by_definition<BFloat16>(const ConvProblem&, const ConvBuffers&, int64_t, int64_t, int64_t, int64_t,
                                       int64_t*);

}  // namespace fastconv
