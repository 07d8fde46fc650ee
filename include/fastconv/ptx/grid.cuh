// Blocks of a cooperative launch.
#pragma once

#include <cstdint>

namespace fastconv::ptx {

// Where cooperative_groups.h has the word in what the driver hands to a launch. operand_range.cuh compares; that header
// takes longer to read than all others of a kernel together.
inline constexpr int kGridWord = 1;

// What the driver has for blocks of a cooperative launch to meet with, zero at first. NOTES: read again each time, or
// its address would be kept in registers.
__device__ __forceinline__ uint32_t* grid_word() {
  uint32_t low, high;
  asm volatile("mov.b32 %0, %%envreg2;\nmov.b32 %1, %%envreg1;" : "=r"(low), "=r"(high));
  return reinterpret_cast<uint32_t*>(uint64_t{high} << 32 | low) + kGridWord;
}

}  // namespace fastconv::ptx
