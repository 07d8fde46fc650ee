// Values in registers.
#pragma once

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

}  // namespace fastconv
