// Values and derivatives of core/activation.h, as torch defines them; NaN stays NaN.
#pragma once

#include "fastconv/core/activation.h"

namespace fastconv {

// Of those that cut off. No minimum and maximum: these lose NaNs.
template <typename Acc>
__device__ __forceinline__ Acc cut_off(Activation activation, Acc z) {
  if (activation == Activation::kNone) return z;
  if (z < Acc{0}) return Acc{0};
  return activation == Activation::kRelu6 && z > Acc{6} ? Acc{6} : z;
}
// Whether the gradient passes.
template <typename Acc>
__device__ __forceinline__ bool passes(Activation activation, Acc z) {
  if (activation == Activation::kNone) return true;
  return !(z <= Acc{0} || (activation == Activation::kRelu6 && z >= Acc{6}));
}

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
__device__ __forceinline__ Acc activate(Activation activation, Acc z) {
  switch (activation) {
    case Activation::kSilu: return z * sigmoid(z);
    case Activation::kGelu: return z * normal_distribution(z);
    case Activation::kGeluTanh: return Acc(0.5) * z * (Acc{1} + GeluTanh<Acc>(z).tanh);
    case Activation::kHardswish: return z * cut_off(Activation::kRelu6, z + Acc{3}) / Acc{6};
    default: return cut_off(activation, z);
  }
}

// dy/dz.
template <typename Acc>
__device__ __forceinline__ Acc slope(Activation activation, Acc z) {
  switch (activation) {
    case Activation::kSilu: {
      const Acc s = sigmoid(z);
      return s * (Acc{1} + z * (Acc{1} - s));
    }
    case Activation::kGelu:
      return normal_distribution(z) + z * Acc(0.39894228040143267794) * exp(Acc(-0.5) * z * z);  // 1 / sqrt(2 pi)
    case Activation::kGeluTanh: {
      using Gelu = GeluTanh<Acc>;
      const Acc t = Gelu(z).tanh;
      return Acc(0.5) * (Acc{1} + t) +
             Acc(0.5) * z * (Acc{1} - t * t) * Gelu::kScale * (Acc{1} + Acc{3} * Gelu::kCubic * z * z);
    }
    case Activation::kHardswish:
      if (z <= Acc{-3}) return Acc{0};
      return z < Acc{3} ? z / Acc{3} + Acc(0.5) : Acc{1};
    default: return passes(activation, z) ? Acc{1} : Acc{0};
  }
}

}  // namespace fastconv
