// Values and derivatives of core/activation.h, as torch defines them; NaN stays NaN.
#pragma once

#include <cmath>

#include "fastconv/core/activation.h"
#include "fastconv/core/problem.h"
#include "fastconv/ptx/minimum.cuh"

namespace fastconv {

// Those that cut off.
template <typename Acc>
struct Bounds {
  Acc low = -Acc(INFINITY), high = Acc(INFINITY);

  Bounds() = default;
  FASTCONV_HOST_DEVICE explicit Bounds(Activation activation)
      : low(activation == Activation::kNone ? -Acc(INFINITY) : Acc{0}),
        high(activation == Activation::kRelu6 ? Acc{6} : Acc(INFINITY)) {}
  FASTCONV_HOST_DEVICE bool cut() const { return low == Acc{0}; }
  __device__ __forceinline__ Acc operator()(Acc z) const { return ptx::min_or_nan(ptx::max_or_nan(z, low), high); }
};

// And their gradients. `last` is NaN, which compares as false, where all large values pass.
template <typename Acc>
struct CutOff : Bounds<Acc> {
  Acc last;

  __device__ __forceinline__ explicit CutOff(Activation activation)
      : Bounds<Acc>(activation), last(activation == Activation::kRelu6 ? Acc{6} : Acc(NAN)) {}
  __device__ __forceinline__ bool passes(Acc z) const { return !(z <= this->low || z >= last); }
};

// Values and derivatives of the others. kFast: for results of 16 bits, to a few units in the last place of float32.
template <bool kFast>
struct Curves {
  template <typename Acc>
  __device__ static __forceinline__ Acc sigmoid(Acc z) {
    if constexpr (kFast) {
      return __fdividef(1.f, 1.f + __expf(-z));
    } else {
      return Acc{1} / (Acc{1} + exp(-z));
    }
  }
  // 1 + tanh(u) is twice the sigmoid of twice as much.
  template <typename Acc>
  __device__ static __forceinline__ Acc tanh(Acc u) {
    if constexpr (kFast) {
      return Acc{2} * sigmoid(Acc{2} * u) - Acc{1};
    } else {
      return ::tanh(u);
    }
  }
  template <typename Acc>
  __device__ static __forceinline__ Acc normal_distribution(Acc z) {
    return Acc(0.5) * (Acc{1} + erf(z * Acc(0.70710678118654752440)));
  }
  template <typename Acc>
  __device__ static __forceinline__ Acc hard_sigmoid(Acc z) {
    return CutOff<Acc>(Activation::kRelu6)(z + Acc{3}) * Acc(1.0 / 6);
  }
  static constexpr double kGeluScale = 0.79788456080286535588, kGeluCubic = 0.044715;  // sqrt(2 / pi)
  template <typename Acc>
  __device__ static __forceinline__ Acc gelu_tanh(Acc z) {
    return tanh(Acc(kGeluScale) * (z + Acc(kGeluCubic) * z * z * z));
  }

  // values[i] = f(values[i]). One branch for all.
  template <typename Acc, int kCount>
  __device__ static __forceinline__ void activate(Activation activation, Acc (&values)[kCount]) {
    const auto each = [&values](auto&& f) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = f(values[i]);
    };
    switch (activation) {
      case Activation::kSilu: return each([](Acc z) { return z * sigmoid(z); });
      case Activation::kGelu: return each([](Acc z) { return z * normal_distribution(z); });
      case Activation::kGeluTanh: return each([](Acc z) { return Acc(0.5) * z * (Acc{1} + gelu_tanh(z)); });
      default: return each([](Acc z) { return z * hard_sigmoid(z); });
    }
  }

  // values[i] = f'(values[i]), of those that cut off as well.
  template <typename Acc, int kCount>
  __device__ static __forceinline__ void slopes(Activation activation, Acc (&values)[kCount]) {
    const auto each = [&values](auto&& f) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = f(values[i]);
    };
    switch (activation) {
      case Activation::kSilu:
        return each([](Acc z) {
          const Acc s = sigmoid(z);
          return s * (Acc{1} + z * (Acc{1} - s));
        });
      case Activation::kGelu:
        return each([](Acc z) {
          return normal_distribution(z) + z * Acc(0.39894228040143267794) * exp(Acc(-0.5) * z * z);  // 1 / sqrt(2 pi)
        });
      case Activation::kGeluTanh:
        return each([](Acc z) {
          const Acc t = gelu_tanh(z), of_cubic = Acc{1} + Acc(3 * kGeluCubic) * z * z;
          return Acc(0.5) * (Acc{1} + t) + Acc(0.5) * z * (Acc{1} - t * t) * Acc(kGeluScale) * of_cubic;
        });
      case Activation::kHardswish:
        return each([](Acc z) {
          if (z <= Acc{-3}) return Acc{0};
          return z < Acc{3} ? z * Acc(1.0 / 3) + Acc(0.5) : Acc{1};
        });
      default: {
        const CutOff<Acc> cut_off(activation);
        return each([&](Acc z) { return cut_off.passes(z) ? Acc{1} : Acc{0}; });
      }
    }
  }
};

}  // namespace fastconv
