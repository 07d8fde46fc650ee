// The bulk TMA (PTX ISA, "cp.async.bulk") and the fence that goes with it.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace fastconv::ptx {

// A box of a tensor of rank 5; coordinates from the innermost dimension, outside means zero.
__device__ __forceinline__ void tma_load(uint32_t smem, const CUtensorMap* map, int32_t i0, int32_t i1, int32_t i2,
                                         int32_t i3, int32_t i4, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(smem),
      "l"(map), "r"(barrier), "r"(i0), "r"(i1), "r"(i2), "r"(i3), "r"(i4)
      : "memory");
}

// The way back. What lies outside is not written; a box that begins before the tensor was an illegal instruction on an
// H100. The copies of a thread since the last commit are a group; their shared memory is free once they have read it.
__device__ __forceinline__ void tma_store(const CUtensorMap* map, uint32_t smem, int32_t i0, int32_t i1, int32_t i2,
                                          int32_t i3, int32_t i4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
               "r"(smem), "r"(i0), "r"(i1), "r"(i2), "r"(i3), "r"(i4)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Of all groups but the last kLeft.
template <int kLeft = 0>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}
// Until they have written, too.
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Contiguous bytes; both addresses and the size are multiples of 16.
__device__ __forceinline__ void bulk_load(uint32_t smem, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void tma_prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Orders this thread's ordinary writes to shared memory before later reads by wgmma or TMA.
__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The same for all memory, in both directions.
__device__ __forceinline__ void async_proxy_fence_all() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace fastconv::ptx
