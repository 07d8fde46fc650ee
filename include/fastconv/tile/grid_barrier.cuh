// Blocks of a cooperative launch wait for each other, as cooperative groups have it, but not each thread for all
// others: some threads may arrive for their block, others wait, and the rest goes on.
#pragma once

#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/ptx/grid.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/ptx/warpgroup.cuh"

namespace fastconv {

struct GridBarrier {
  uint32_t* word = ptx::grid_word();  // its highest bit changes whenever all blocks have arrived

  // One thread of a block that has met with those who wrote, after a fence of each.
  __device__ __forceinline__ uint32_t arrive() const {
    return ptx::fetch_add_release(word, blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1);
  }
  // For all blocks; `before` is what the block's arrival brought. A fence follows, of each who reads.
  __device__ __forceinline__ void wait(uint32_t before) const {
    while (((ptx::load_acquire(word) ^ before) & 0x80000000u) == 0) {
    }
  }
};

// So many threads of each block, which have a named barrier of their own; thread 0 of them is one. Everything that any
// wrote to memory before is visible to all of them after it, to TMA too if kTma.
template <bool kTma = true>
__device__ __forceinline__ void sync_grid(int block_barrier, int thread, int threads) {
  if constexpr (kTma) ptx::async_proxy_fence_all();
  ptx::barrier_sync(block_barrier, threads);
  if (thread == 0) {
    const GridBarrier barrier;
    barrier.wait(barrier.arrive());
  }
  ptx::barrier_sync(block_barrier, threads);
  if constexpr (kTma) ptx::async_proxy_fence_all();
}
// All threads of all blocks.
template <bool kTma = true>
__device__ __forceinline__ void sync_grid() {
  sync_grid<kTma>(0, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
}

}  // namespace fastconv
