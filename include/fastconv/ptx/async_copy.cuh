// Copies by threads that do not wait for them (PTX ISA, "cp.async"). GPUs before sm_80 have none: there they are done
// when the function returns.
#pragma once

#include <cstdint>

namespace fastconv::ptx {

// 4, 8 or 16 bytes, only these past L1 if asked; zeros if not `exists`, when `from` is not read.
template <int kBytes, bool kPastL1 = kBytes == 16>
__device__ __forceinline__ void async_copy(uint32_t to, const void* from, bool exists) {
#if __CUDA_ARCH__ >= 800
  const int read = exists ? kBytes : 0;
  if constexpr (kPastL1) {
    static_assert(kBytes == 16);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(read) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(read)
                 : "memory");
  }
#else
  for (int i = 0; i < kBytes; i += 4) {
    const uint32_t word = exists ? *reinterpret_cast<const uint32_t*>(static_cast<const char*>(from) + i) : 0;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + i), "r"(word) : "memory");
  }
#endif
}
__device__ __forceinline__ void async_copy_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// All but the last kPending groups of this thread.
template <int kPending>
__device__ __forceinline__ void async_copy_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace fastconv::ptx
