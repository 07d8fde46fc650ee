// Copies by threads that do not wait for them (PTX ISA, "cp.async").
#pragma once

#include <cstdint>

namespace fastconv::ptx {

// 4, 8 or 16 bytes, these past L1; zeros if not `exists`, when `from` is not read.
template <int kBytes>
__device__ __forceinline__ void async_copy(uint32_t to, const void* from, bool exists) {
  const int read = exists ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(read) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(read)
                 : "memory");
  }
}
__device__ __forceinline__ void async_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the last kPending groups of this thread.
template <int kPending>
__device__ __forceinline__ void async_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fastconv::ptx
