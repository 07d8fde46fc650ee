// What warp-specialised kernels need of each other: registers, barriers of some warps (PTX ISA, "setmaxnreg",
// "barrier").
#pragma once

#include <cstdint>

namespace fastconv::ptx {

// Registers per thread, of all warps of a warpgroup together. NOTES: they come from a pool: what some give back must
// cover what others ask for, or those wait forever.
template <int kRegisters>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void acquire_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// kThreads of the block, whole warps, that name the same barrier of 0 to 15; __syncthreads() is 0.
template <int kThreads>
__device__ __forceinline__ void barrier_sync(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
__device__ __forceinline__ void barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The same for those who do not wait.
template <int kThreads>
__device__ __forceinline__ void barrier_arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Of the warp's 32. NOTES: read again each time, so that it takes no register in between.
__device__ __forceinline__ int lane() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// A value of another lane of a whole warp. NOTES: __shfl_sync takes the bits of a float as an integer; the compiler
// then keeps accumulators as integers, and ptxas no longer sees that they are wgmma's.
__device__ __forceinline__ float shuffle(float value, int lane) {
  float other;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(other) : "f"(value), "r"(lane));
  return other;
}

// Of all lanes of a whole warp, from sm_80 on.
__device__ __forceinline__ uint32_t reduce_max(uint32_t value) {
  asm volatile("redux.sync.max.u32 %0, %0, 0xffffffff;" : "+r"(value));
  return value;
}
__device__ __forceinline__ uint32_t reduce_add(uint32_t value) {
  asm volatile("redux.sync.add.u32 %0, %0, 0xffffffff;" : "+r"(value));
  return value;
}

}  // namespace fastconv::ptx
