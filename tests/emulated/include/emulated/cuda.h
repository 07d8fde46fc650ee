// What kernels use of CUDA's own headers, for C++. Not those headers: where there is no nvcc they are missing too.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "emulated/block.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
// One for all fibers; and unlike `static` it may follow `extern`.
#define __shared__ thread_local

using cudaStream_t = void*;

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline constexpr fastconv::emulated::Index& threadIdx = fastconv::emulated::thread_index;
inline constexpr fastconv::emulated::Index& blockIdx = fastconv::emulated::block_index;
inline constexpr fastconv::emulated::Index& blockDim = fastconv::emulated::block_size;
inline constexpr fastconv::emulated::Index& gridDim = fastconv::emulated::grid_size;

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}

inline size_t __cvta_generic_to_global(const void* pointer) { return reinterpret_cast<size_t>(pointer); }
inline void* __cvta_global_to_generic(size_t address) { return reinterpret_cast<void*>(address); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline int __ffs(uint32_t x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t select) {
  uint32_t result = 0;
  for (int i = 0; i < 32; i += 8) {
    result |= static_cast<uint32_t>((uint64_t{y} << 32 | x) >> 8 * (select >> i / 2 & 7) & 0xff) << i;
  }
  return result;
}
template <typename T>
void __stcs(T* to, const T& value) {
  *to = value;
}
inline void __syncthreads() {
  int nothing = 0;
  fastconv::emulated::with_block("__syncthreads", nothing, [](const auto&) {});
}
inline int __syncthreads_or(int predicate) {
  int any = predicate;
  fastconv::emulated::with_block("__syncthreads_or", any, [](const auto& threads) {
    int all = 0;
    for (int* thread : threads) all |= *thread;
    for (int* thread : threads) *thread = all != 0;
  });
  return any;
}
inline int __syncthreads_and(int predicate) { return !__syncthreads_or(!predicate); }

namespace fastconv::emulated {

inline void whole_warp(uint32_t mask) {
  if (mask != ~0u) throw std::logic_error("not emulated: a part of a warp");
}

}  // namespace fastconv::emulated

inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
  fastconv::emulated::whole_warp(mask);
  uint32_t mine = predicate != 0;
  fastconv::emulated::with_warp("__ballot_sync", mine, [](const auto& lanes) {
    uint32_t all = 0;
    for (int i = 0; i < 32; ++i) all |= *lanes[i] << i;
    for (uint32_t* lane : lanes) *lane = all;
  });
  return mine;
}
inline void __syncwarp() {
  int nothing = 0;
  fastconv::emulated::with_warp("__syncwarp", nothing, [](const auto&) {});
}
inline int __any_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
// A GPU may run each lane alone.
inline uint32_t __activemask() { return 1u << threadIdx.x % 32; }
inline int __all_sync(uint32_t mask, int predicate) {
  return mask == __activemask() ? predicate : __ballot_sync(mask, predicate) == ~0u;
}
template <typename T>
T __shfl_sync(uint32_t mask, T value, int from) {
  fastconv::emulated::whole_warp(mask);
  struct Mine {
    T given, got;
    int from;
  } mine{value, value, from};
  fastconv::emulated::with_warp("__shfl_sync", mine, [](const auto& lanes) {
    for (Mine* lane : lanes) lane->got = lanes[lane->from % 32]->given;
  });
  return mine.got;
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes) {
  return __shfl_sync(mask, value, static_cast<int>(threadIdx.x % 32) ^ lanes);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, int lanes) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return __shfl_sync(mask, value, lane + lanes < 32 ? lane + lanes : lane);
}

struct __half {
  _Float16 value;

  __half() = default;
  explicit __half(float x) : value(static_cast<_Float16>(x)) {}
  explicit operator float() const { return static_cast<float>(value); }
};
struct __half2 {
  __half x, y;
};
inline float __half2float(__half x) {
  // Processors that convert them by instruction are not assumed, and functions take long.
  static const auto kValues = [] {
    std::vector<float> values;
    for (uint32_t bits = 0; bits < 1 << 16; ++bits)
      values.push_back(std::bit_cast<_Float16>(static_cast<uint16_t>(bits)));
    return values;
  }();
  return kValues[std::bit_cast<uint16_t>(x)];
}
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __ushort_as_half(uint16_t bits) { return std::bit_cast<__half>(bits); }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  const auto fma = [](__half a, __half b, __half c) {
    return std::fma(__half2float(a), __half2float(b), __half2float(c));
  };
  return __floats2half2_rn(fma(a.x, b.x, c.x), fma(a.y, b.y, c.y));
}

struct __nv_bfloat16 {
  uint16_t bits;

  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float x) {
    const auto word = std::bit_cast<uint32_t>(x);
    // To nearest, ties to even. The carry would turn a NaN with a long mantissa into infinity.
    bits = std::isnan(x) ? 0x7fff : static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline float __bfloat162float(__nv_bfloat16 x) { return static_cast<float>(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) { return std::bit_cast<__nv_bfloat16>(bits); }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  const auto fma = [](__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
    return std::fma(__bfloat162float(a), __bfloat162float(b), __bfloat162float(c));
  };
  return __floats2bfloat162_rn(fma(a.x, b.x, c.x), fma(a.y, b.y, c.y));
}
