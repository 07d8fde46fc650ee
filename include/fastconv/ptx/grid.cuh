// Blocks of a cooperative launch.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

namespace fastconv::ptx {

// What the driver has for blocks of a cooperative launch to meet with, zero at first. NOTES: read again each time, or
// its address would be kept in registers.
__device__ __forceinline__ uint32_t* grid_word() {
  uint32_t low, high;
  asm volatile("mov.b32 %0, %%envreg2;\nmov.b32 %1, %%envreg1;" : "=r"(low), "=r"(high));
  return &reinterpret_cast<cooperative_groups::details::grid_workspace*>(uint64_t{high} << 32 | low)->barrier;
}

}  // namespace fastconv::ptx
