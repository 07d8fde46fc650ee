// Clusters of blocks and each other's shared memory (PTX ISA, "barrier.cluster", "mapa").
#pragma once

#include <cstdint>

namespace fastconv::ptx {

// All threads of the cluster that have not exited. Shared-memory writes before it are visible after it.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// This block's number in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// 16 bytes at this block's shared-memory address, in the block of that rank.
__device__ __forceinline__ float4 cluster_load(uint32_t smem, uint32_t rank) {
  uint32_t address;
  float4 v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(smem), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

}  // namespace fastconv::ptx
