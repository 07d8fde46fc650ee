// How wgmma is told where an operand lies in shared memory (PTX ISA, "wgmma", "matrix descriptor").
#pragma once

#include <cstdint>

namespace fastconv::ptx {

// Swizzle of a row of the operand tile, as the matrix descriptor encodes it (bits 62-63).
enum class Swizzle : uint32_t { kNone = 0, k128B = 1, k64B = 2, k32B = 3 };
// By the bytes of a row.
__host__ __device__ constexpr Swizzle swizzle_of(int row_bytes) {
  return row_bytes == 128 ? Swizzle::k128B : row_bytes == 64 ? Swizzle::k64B : Swizzle::k32B;
}

// What runs along the rows of an operand's tile: the product's K, or its M (of A) or N (of B).
enum class Major : int { kK, kMn };

// A matrix descriptor in two halves, so that the loops add to the low one in 32 bits. Addresses in units of 16 bytes.
// The start address may be any whole row of the tile and the group pitch any multiple of 16 bytes: the hardware
// swizzles by absolute address bits, base_offset stays 0 (measured on an H200).
// `group_pitch_bytes`: between groups of 8 rows.
__device__ __forceinline__ uint32_t descriptor_high(uint32_t group_pitch_bytes, Swizzle swizzle) {
  return (group_pitch_bytes >> 4) | (static_cast<uint32_t>(swizzle) << 30);
}
// `block_pitch_bytes`: between the blocks, one row wide, of an MN-major operand; of a K-major one without a swizzle,
// whose rows lie 16 bytes apart, between the halves of a row; other K-major ones ignore it. NOTES: 18 bits of the
// address are kept: in a cluster, a block's rank stands above them and would fall into the pitch.
__device__ __forceinline__ uint32_t descriptor_low(uint32_t smem_bytes, uint32_t block_pitch_bytes = 16) {
  return ((smem_bytes & 0x3ffff) >> 4) | ((block_pitch_bytes >> 4) << 16);
}
__device__ __forceinline__ uint64_t descriptor(uint32_t low, uint32_t high) {
  return (static_cast<uint64_t>(high) << 32) | low;
}

}  // namespace fastconv::ptx
