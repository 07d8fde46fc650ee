// Element types of the tensors, the type their products are summed in, and vectors of them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace fastconv {

template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Intrinsics rather than casts: torch's builds switch the conversion operators of these types off.
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T narrow(Accumulator<T> x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

// Two values of 16 bits, rounded.
template <typename T>
__device__ __forceinline__ uint32_t pack2(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack2<__half>(float low, float high) {
  const __half2 value = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&value);
}
template <>
__device__ __forceinline__ uint32_t pack2<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 value = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&value);
}

// `sum` and the values of a word times zero: 0 as long as all were finite, NaNs afterwards.
template <typename T>
__device__ __forceinline__ uint32_t add_zeros(uint32_t values, uint32_t sum);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800  // which have these for bfloat16
template <>
__device__ __forceinline__ uint32_t add_zeros<__half>(uint32_t values, uint32_t sum) {
  const __half2 zeros = __hfma2(*reinterpret_cast<const __half2*>(&values), __half2half2(__ushort_as_half(0)),
                                *reinterpret_cast<const __half2*>(&sum));
  return *reinterpret_cast<const uint32_t*>(&zeros);
}
template <>
__device__ __forceinline__ uint32_t add_zeros<__nv_bfloat16>(uint32_t values, uint32_t sum) {
  const __nv_bfloat162 zeros =
      __hfma2(*reinterpret_cast<const __nv_bfloat162*>(&values), __bfloat162bfloat162(__ushort_as_bfloat16(0)),
              *reinterpret_cast<const __nv_bfloat162*>(&sum));
  return *reinterpret_cast<const uint32_t*>(&zeros);
}
#endif
// Of one float.
template <>
__device__ __forceinline__ uint32_t add_zeros<float>(uint32_t value, uint32_t sum) {
  return __float_as_uint(fmaf(__uint_as_float(value), 0.f, __uint_as_float(sum)));
}

// An access of kBytes as words: what is loaded must not be touched before it is needed, not even to take elements
// apart.
template <int kBytes>
struct alignas(kBytes) Words {
  std::conditional_t<kBytes == 2, uint16_t, uint32_t> data[(kBytes + 3) / 4];
};

// Loads and stores as one access where it is at most 16 bytes.
template <typename T, int kSize>
struct alignas(sizeof(T) * kSize < 16 ? sizeof(T) * kSize : 16) Vector {
  T data[kSize];
};

}  // namespace fastconv
