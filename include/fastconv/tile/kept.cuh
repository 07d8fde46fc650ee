// Values in registers, and when parameters get there.
#pragma once

#include <cstdint>
#include <type_traits>

namespace fastconv {

// To the compiler a value of which it knows nothing: it is kept, where it would rather be made anew for each use.
template <typename T>
__device__ __forceinline__ T kept(T value) {
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(value));
  } else if constexpr (std::is_same_v<T, float>) {
    asm volatile("" : "+f"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
  return value;
}

// To global memory, which the compiler no longer sees either.
template <typename T>
__device__ __forceinline__ T* kept_global(T* pointer) {
  pointer = kept(pointer);
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}

// A kernel's parameters, where not every block reads them: the compiler would load those of a branch before it, and a
// warp waits for each line of 64 bytes that it is the first to read.
template <typename Params>
__device__ __forceinline__ const Params& seldom(const Params& params) {
  const uint32_t zero = threadIdx.x >> 10;  // of which the compiler does not know that it is
  return *reinterpret_cast<const Params*>(reinterpret_cast<const char*>(&params) + zero);
}

}  // namespace fastconv
