// Neighbouring pixels that one thread moves.
#pragma once

#include "fastconv/ptx/shared_memory.cuh"

namespace fastconv {

template <int kBytes>
struct PixelBytes;
template <>
struct PixelBytes<16> {
  using Value = uint4;
  static __device__ __forceinline__ uint4 load(uint32_t smem) { return ptx::load_shared16(smem); }
  static __device__ __forceinline__ void store(uint32_t smem, const uint4& v) { ptx::store_shared16(smem, v); }
};
template <>
struct PixelBytes<8> {
  using Value = uint2;
  static __device__ __forceinline__ uint2 load(uint32_t smem) { return ptx::load_shared8(smem); }
};
template <>
struct PixelBytes<4> {
  using Value = uint32_t;
  static __device__ __forceinline__ uint32_t load(uint32_t smem) { return ptx::load_shared4(smem); }
  static __device__ __forceinline__ void store(uint32_t smem, uint32_t v) { ptx::store_shared4(smem, v); }
};
template <>
struct PixelBytes<2> {
  using Value = uint16_t;
  static __device__ __forceinline__ uint16_t load(uint32_t smem) { return ptx::load_shared2(smem); }
  static __device__ __forceinline__ void store(uint32_t smem, uint16_t v) { ptx::store_shared2(smem, v); }
};

template <int kVector, int kElementBytes = 2>
using Pixels = PixelBytes<kVector * kElementBytes>;

}  // namespace fastconv
