// Shared memory by its 32-bit address. The matrices are 8x8 16-bit values (PTX ISA, "ldmatrix", "stmatrix"), and lane i
// gives the address of row i % 8 of matrix i / 8.
#pragma once

#include <cstdint>

namespace fastconv::ptx {

__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
// What was declared as `extern __shared__`, for pointers into it. Emulated blocks that run together have one each.
__device__ __forceinline__ void* block_memory(void* declared) { return declared; }

template <bool kTranspose>
__device__ __forceinline__ void ldmatrix4(uint32_t address, uint32_t (&v)[4]) {
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
  }
}

// Two matrices, whose rows lanes 0 to 15 name.
template <bool kTranspose>
__device__ __forceinline__ void ldmatrix2(uint32_t address, uint32_t (&v)[2]) {
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(v[0]), "=r"(v[1])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(v[0]), "=r"(v[1])
                 : "r"(address)
                 : "memory");
  }
}

// Of a matrix in registers: lane i holds values 2 * (i % 4) and the next of row i / 4.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t v) {
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(v));
  return v;
}

template <bool kTranspose>
__device__ __forceinline__ void stmatrix4(uint32_t address, const uint32_t (&v)[4]) {
  if constexpr (kTranspose) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v[0]),
                 "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v[0]),
                 "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
  }
}

// Transposed.
__device__ __forceinline__ void stmatrix2(uint32_t address, const uint32_t (&v)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(v[0]), "r"(v[1])
               : "memory");
}

__device__ __forceinline__ uint16_t load_shared2(uint32_t address) {
  uint16_t v;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_shared4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
// Of what nobody writes meanwhile: free to pass ordinary accesses, but not barriers. Where the load is left out, `v`
// keeps its value in its register.
__device__ __forceinline__ void load_shared_ahead(uint32_t address, uint32_t& v) {
  asm volatile("ld.shared.b32 %0, [%1];" : "+r"(v) : "r"(address));
}
__device__ __forceinline__ void load_shared_ahead(uint32_t address, uint16_t& v) {
  asm volatile("ld.shared.b16 %0, [%1];" : "+h"(v) : "r"(address));
}
__device__ __forceinline__ uint2 load_shared8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_shared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_shared2(uint32_t address, uint16_t v) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(v) : "memory");
}
__device__ __forceinline__ void store_shared4(uint32_t address, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
// Floats stay floats, see shuffle() in warpgroup.cuh.
__device__ __forceinline__ void store_shared_float(uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
__device__ __forceinline__ void store_shared_floats(uint32_t address, float v0, float v1) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v0), "f"(v1) : "memory");
}
__device__ __forceinline__ void store_shared_floats(uint32_t address, float v0, float v1, float v2, float v3) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v0), "f"(v1), "f"(v2), "f"(v3)
               : "memory");
}
__device__ __forceinline__ void store_shared8(uint32_t address, const uint2& v) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_shared16(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

}  // namespace fastconv::ptx
