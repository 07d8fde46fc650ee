// Asynchronous warpgroup matrix multiply, sm_90a (PTX ISA, "wgmma"): D[64][N] (+)= A[64][K] * B[K][N], rows of A and B
// of 32 bytes in shared memory, or two times 16, those of A in registers if wanted; 16-bit values or float for TF32;
// fp32 accumulators.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "fastconv/ptx/matrix_descriptor.cuh"

namespace fastconv::ptx {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// NOTES: ptxas wants every accumulator named in one instruction, hence the lists.
#define FASTCONV_REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FASTCONV_REGISTERS_16 \
  FASTCONV_REGISTERS_8        \
  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FASTCONV_REGISTERS_24 \
  FASTCONV_REGISTERS_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23"
#define FASTCONV_REGISTERS_32 \
  FASTCONV_REGISTERS_24       \
  ", %24, %25, %26, %27, %28, %29, %30, %31"
#define FASTCONV_REGISTERS_48 \
  FASTCONV_REGISTERS_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FASTCONV_REGISTERS_64 \
  FASTCONV_REGISTERS_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FASTCONV_REGISTERS_96                                                        \
  FASTCONV_REGISTERS_64                                                              \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FASTCONV_REGISTERS_128                                                                   \
  FASTCONV_REGISTERS_96                                                                          \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FASTCONV_SUMS_8(i)                                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define FASTCONV_SUMS_16(i) FASTCONV_SUMS_8(i), FASTCONV_SUMS_8(i + 8)
#define FASTCONV_SUMS_24(i) FASTCONV_SUMS_16(i), FASTCONV_SUMS_8(i + 16)
#define FASTCONV_SUMS_32(i) FASTCONV_SUMS_16(i), FASTCONV_SUMS_16(i + 16)
#define FASTCONV_SUMS_48(i) FASTCONV_SUMS_32(i), FASTCONV_SUMS_16(i + 32)
#define FASTCONV_SUMS_64(i) FASTCONV_SUMS_32(i), FASTCONV_SUMS_32(i + 32)
#define FASTCONV_SUMS_96(i) FASTCONV_SUMS_64(i), FASTCONV_SUMS_32(i + 64)
#define FASTCONV_SUMS_128(i) FASTCONV_SUMS_64(i), FASTCONV_SUMS_64(i + 64)
#define FASTCONV_WGMMA_TYPED(type, n, sums, a_at, b_at, accumulate_at, a_major_at, b_major_at, ...)           \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #accumulate_at                                            \
               ", 0;\n"                                                                                       \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" FASTCONV_REGISTERS_##sums \
               "}, %" #a_at ", %" #b_at ", p, 1, 1, %" #a_major_at ", %" #b_major_at ";\n}"                   \
               : FASTCONV_SUMS_##sums(0)                                                                      \
               : "l"(a), "l"(b), "r"(accumulate), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)))
// Values of TF32 lie along K alone.
#define FASTCONV_WGMMA_TF32(n, sums, a_at, b_at, accumulate_at, a_major_at, b_major_at, ...)         \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #accumulate_at                                   \
               ", 0;\n"                                                                              \
               "wgmma.mma_async.sync.aligned.m64n" #n "k8.f32.tf32.tf32 {" FASTCONV_REGISTERS_##sums \
               "}, %" #a_at ", %" #b_at ", p, 1, 1;\n}"                                              \
               : FASTCONV_SUMS_##sums(0)                                                             \
               : "l"(a), "l"(b), "r"(accumulate))
#define FASTCONV_WGMMA(...)                    \
  if constexpr (std::is_same_v<T, __half>)     \
    FASTCONV_WGMMA_TYPED("f16", __VA_ARGS__);  \
  else if constexpr (std::is_same_v<T, float>) \
    FASTCONV_WGMMA_TF32(__VA_ARGS__);          \
  else                                         \
    FASTCONV_WGMMA_TYPED("bf16", __VA_ARGS__)
// A in registers.
#define FASTCONV_WGMMA_RS_TYPED(type, n, sums, a0, a1, a2, a3, b_at, accumulate_at, b_major_at)               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #accumulate_at                                            \
               ", 0;\n"                                                                                       \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" FASTCONV_REGISTERS_##sums \
               "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, 1, 1, %" #b_major_at ";\n}"       \
               : FASTCONV_SUMS_##sums(0)                                                                      \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(static_cast<int>(kB)))
#define FASTCONV_WGMMA_RS_TF32(n, sums, a0, a1, a2, a3, b_at, accumulate_at, b_major_at)             \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #accumulate_at                                   \
               ", 0;\n"                                                                              \
               "wgmma.mma_async.sync.aligned.m64n" #n "k8.f32.tf32.tf32 {" FASTCONV_REGISTERS_##sums \
               "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, 1, 1;\n}"                \
               : FASTCONV_SUMS_##sums(0)                                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
#define FASTCONV_WGMMA_RS(...)                   \
  if constexpr (std::is_same_v<T, __half>)       \
    FASTCONV_WGMMA_RS_TYPED("f16", __VA_ARGS__); \
  else if constexpr (std::is_same_v<T, float>)   \
    FASTCONV_WGMMA_RS_TF32(__VA_ARGS__);         \
  else                                           \
    FASTCONV_WGMMA_RS_TYPED("bf16", __VA_ARGS__)
// N, the number of accumulators, and the numbers of the operands that follow them: fewer if A has a descriptor.
#define FASTCONV_WGMMA_OF_N(wgmma)                      \
  if constexpr (kN == 16) {                             \
    wgmma(16, 8, 8, 9, 10, 11, 12, 13, 14);             \
  } else if constexpr (kN == 32) {                      \
    wgmma(32, 16, 16, 17, 18, 19, 20, 21, 22);          \
  } else if constexpr (kN == 48) {                      \
    wgmma(48, 24, 24, 25, 26, 27, 28, 29, 30);          \
  } else if constexpr (kN == 64) {                      \
    wgmma(64, 32, 32, 33, 34, 35, 36, 37, 38);          \
  } else if constexpr (kN == 96) {                      \
    wgmma(96, 48, 48, 49, 50, 51, 52, 53, 54);          \
  } else if constexpr (kN == 128) {                     \
    wgmma(128, 64, 64, 65, 66, 67, 68, 69, 70);         \
  } else if constexpr (kN == 192) {                     \
    wgmma(192, 96, 96, 97, 98, 99, 100, 101, 102);      \
  } else if constexpr (kN == 256) {                     \
    wgmma(256, 128, 128, 129, 130, 131, 132, 133, 134); \
  } else {                                              \
    static_assert(kN == 0, "no such N");                \
  }

// d = a * b, plus d unless `accumulate` is 0.
template <typename T, Major kA, Major kB, int kSums>
__device__ __forceinline__ void wgmma(float (&d)[kSums], uint64_t a, uint64_t b, int accumulate) {
  static_assert(!std::is_same_v<T, float> || (kA == Major::kK && kB == Major::kK));
  constexpr int kN = 2 * kSums;
  FASTCONV_WGMMA_OF_N(FASTCONV_WGMMA)
}

// The same with A in registers: of its warp's 16 rows a lane has lane / 4, then that + 8; of K what lies 4 * (lane % 4)
// bytes into the first 16 bytes of the row in a[0] and a[1], and into the others in a[2] and a[3]. NOTES: they are read
// while the instruction is in flight.
template <typename T, Major kB, int kSums>
__device__ __forceinline__ void wgmma(float (&d)[kSums], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  static_assert(!std::is_same_v<T, float> || kB == Major::kK);
  constexpr int kN = 2 * kSums;
  FASTCONV_WGMMA_OF_N(FASTCONV_WGMMA_RS)
}

}  // namespace fastconv::ptx
