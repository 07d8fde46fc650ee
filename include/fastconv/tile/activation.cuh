// Values and derivatives of core/activation.h, as torch defines them; NaN stays NaN.
#pragma once

#include <cmath>

#include "fastconv/core/activation.h"
#include "fastconv/ptx/minimum.cuh"

namespace fastconv {

// Those that cut off, at bounds that may be infinite. `last` is NaN, which compares as false, where all large values
// pass.
template <typename Acc>
struct CutOff {
  Acc low, high, last;

  __device__ __forceinline__ explicit CutOff(Activation activation)
      : low(activation == Activation::kNone ? -Acc(INFINITY) : Acc{0}),
        high(activation == Activation::kRelu6 ? Acc{6} : Acc(INFINITY)),
        last(activation == Activation::kRelu6 ? Acc{6} : Acc(NAN)) {}
  __device__ __forceinline__ Acc operator()(Acc z) const { return ptx::min_or_nan(ptx::max_or_nan(z, low), high); }
  // Whether the gradient does.
  __device__ __forceinline__ bool passes(Acc z) const { return !(z <= low || z >= last); }
};

template <typename Acc>
struct GeluTanh {
  static constexpr Acc kScale = Acc(0.79788456080286535588), kCubic = Acc(0.044715);  // sqrt(2 / pi)
  Acc tanh;

  __device__ __forceinline__ explicit GeluTanh(Acc z) : tanh(::tanh(kScale * (z + kCubic * z * z * z))) {}
};
template <typename Acc>
__device__ __forceinline__ Acc sigmoid(Acc z) {
  return Acc{1} / (Acc{1} + exp(-z));
}
template <typename Acc>
__device__ __forceinline__ Acc normal_distribution(Acc z) {
  return Acc(0.5) * (Acc{1} + erf(z * Acc(0.70710678118654752440)));
}

template <typename Acc>
__device__ __forceinline__ Acc hard_sigmoid(Acc z) {
  return CutOff<Acc>(Activation::kRelu6)(z + Acc{3}) / Acc{6};
}

// values[i] = f(values[i]) of the others. One branch for all.
template <typename Acc, int kCount>
__device__ __forceinline__ void activate(Activation activation, Acc (&values)[kCount]) {
  const auto each = [&values](auto&& f) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = f(values[i]);
  };
  switch (activation) {
    case Activation::kSilu: return each([](Acc z) { return z * sigmoid(z); });
    case Activation::kGelu: return each([](Acc z) { return z * normal_distribution(z); });
    case Activation::kGeluTanh: return each([](Acc z) { return Acc(0.5) * z * (Acc{1} + GeluTanh<Acc>(z).tanh); });
    default: return each([](Acc z) { return z * hard_sigmoid(z); });
  }
}

// values[i] = f'(values[i]), of all.
template <typename Acc, int kCount>
__device__ __forceinline__ void slopes(Activation activation, Acc (&values)[kCount]) {
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
        using Gelu = GeluTanh<Acc>;
        const Acc t = Gelu(z).tanh;
        return Acc(0.5) * (Acc{1} + t) +
               Acc(0.5) * z * (Acc{1} - t * t) * Gelu::kScale * (Acc{1} + Acc{3} * Gelu::kCubic * z * z);
      });
    case Activation::kHardswish:
      return each([](Acc z) {
        if (z <= Acc{-3}) return Acc{0};
        return z < Acc{3} ? z / Acc{3} + Acc(0.5) : Acc{1};
      });
    default: {
      const CutOff<Acc> cut_off(activation);
      return each([&](Acc z) { return cut_off.passes(z) ? Acc{1} : Acc{0}; });
    }
  }
}

}  // namespace fastconv
