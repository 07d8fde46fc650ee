// Copies by threads that do not wait for them (PTX ISA, "cp.async").
#pragma once

#include <cstdint>

namespace fastconv::ptx {

// Four bytes; zeros if not `exists`, when `from` is not read.
__device__ __forceinline__ void async_copy4(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(exists ? 4 : 0) : "memory");
}
__device__ __forceinline__ void async_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the last kPending groups of this thread.
template <int kPending>
__device__ __forceinline__ void async_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fastconv::ptx
