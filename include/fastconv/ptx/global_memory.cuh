// Device memory, and what one warp writes there for others of the grid to see (PTX ISA, "memory consistency model").
#pragma once

#include <cstdint>

namespace fastconv::ptx {

// NOTES: an assignment may become four stores of a word each.
__device__ __forceinline__ void store_global16(void* pointer, const uint32_t (&v)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

// What no thread of this SM reads: the first-level cache keeps what it has instead.
__device__ __forceinline__ void store_global16_once(void* pointer, const uint32_t (&v)[4]) {
  asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}
__device__ __forceinline__ void store_global8_once(void* pointer, const uint32_t (&v)[2]) {
  asm volatile("st.global.L1::no_allocate.v2.b32 [%0], {%1, %2};" ::"l"(pointer), "r"(v[0]), "r"(v[1]) : "memory");
}

__device__ __forceinline__ void load_global16(const void* pointer, uint32_t (&v)[4]) {
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(pointer)
               : "memory");
}

// What no other thread of this SM reads, part of what is read of a line at about that time by others: the first-level
// cache keeps what it has, the second fetches the line.
__device__ __forceinline__ void load_global16_once(const void* pointer, uint32_t (&v)[4]) {
#if __CUDA_ARCH__ >= 750
#define FASTCONV_LOAD_ONCE "ld.global.L1::no_allocate.L2::128B.v4.b32"
#else
#define FASTCONV_LOAD_ONCE "ld.global.L1::no_allocate.v4.b32"
#endif
  asm volatile(FASTCONV_LOAD_ONCE " {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(pointer)
               : "memory");
#undef FASTCONV_LOAD_ONCE
}

// Of a stream that nobody writes: the second-level cache fetches what lies around it, which is needed soon. Where the
// load is left out, `v` keeps its value in its register.
__device__ __forceinline__ void load_ahead(const void* pointer, uint32_t& v) {
  asm volatile("ld.global.L2::256B.b32 %0, [%1];" : "+r"(v) : "l"(pointer));
}
__device__ __forceinline__ void load_ahead(const void* pointer, uint16_t& v) {
  asm volatile("ld.global.L2::256B.b16 %0, [%1];" : "+h"(v) : "l"(pointer));
}

// To the next of some rows. The compiler would rather keep the addresses of all rows of a loop's body in registers.
__device__ __forceinline__ void step(size_t& address, int64_t bytes) {
  asm volatile("add.s64 %0, %0, %1;" : "+l"(address) : "l"(bytes));
}

// Everything that the warp wrote before, if its lanes have met, is visible to whoever acquires the sum.
__device__ __forceinline__ void add_release(uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
// The same for what others of the block wrote before they met with this thread; the value before.
__device__ __forceinline__ uint32_t fetch_add_release(uint32_t* counter, uint32_t value) {
  uint32_t before;
  asm volatile("atom.release.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* counter) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(counter) : "memory");
  return v;
}

}  // namespace fastconv::ptx
