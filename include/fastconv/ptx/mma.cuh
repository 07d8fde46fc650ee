// Matrix products of one warp in registers (PTX ISA, "mma"): d = a * b + c, or d += a * b, for 16 rows and 8 columns. A
// depth is 8 values of 16 bits or 4 of TF32, 16 bytes; lane i has word i % 4 of row i / 4 of a and, in the second
// register, of row i / 4 + 8; word i % 4 of column i / 4 of b; columns 2 * (i % 4) and the next of both rows of d.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fastconv::ptx {

#define FASTCONV_MMA_OF_TWO(type, shape2, values)                                                                    \
  __device__ __forceinline__ void mma(type, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,         \
                                      const float (&c)[4]) {                                                         \
    asm("mma.sync.aligned." shape2 ".row.col.f32." values "." values                                                 \
        ".f32 "                                                                                                      \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"                                        \
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                             \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3])); \
  }
#define FASTCONV_MMA_OF_ONE(type, shape1, values)                                                 \
  __device__ __forceinline__ void mma(type, float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0, \
                                      const float (&c)[4]) {                                      \
    asm("mma.sync.aligned." shape1 ".row.col.f32." values "." values                              \
        ".f32 "                                                                                   \
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"                                    \
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                          \
        : "r"(a0), "r"(a1), "r"(b0), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));                 \
  }
FASTCONV_MMA_OF_ONE(__half, "m16n8k8", "f16")
FASTCONV_MMA_OF_ONE(__nv_bfloat16, "m16n8k8", "bf16")
FASTCONV_MMA_OF_ONE(float, "m16n8k4", "tf32")
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
FASTCONV_MMA_OF_TWO(__half, "m16n8k16", "f16")
#else  // Turing has the shorter depth alone
__device__ __forceinline__ void mma(__half type, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                    const float (&c)[4]) {
  mma(type, d, a[0], a[1], b0, c);
  mma(type, d, a[2], a[3], b1, d);
}
#endif
FASTCONV_MMA_OF_TWO(__nv_bfloat16, "m16n8k16", "bf16")
FASTCONV_MMA_OF_TWO(float, "m16n8k8", "tf32")
#undef FASTCONV_MMA_OF_TWO
#undef FASTCONV_MMA_OF_ONE
template <typename T>
__device__ __forceinline__ void mma(T type, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma(type, d, a, b0, b1, d);
}
template <typename T>
__device__ __forceinline__ void mma(T type, float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  mma(type, d, a0, a1, b0, d);
}

// Half of every four elements of a row of a are zero: it has the two others of each four, eight words of them in all,
// which are words i % 4 of row i / 4 and of row i / 4 + 8, then those four words after that. The others' places are two
// bits each, in rising order: of four fours of row i / 4, then of row i / 4 + 8; lanes of a row give the same, so that
// the next four fours have the same places. Its depth is 32 values, of which the four words of b have 2 * (i % 4) and
// the next, and those 8, 16 and 24 after.
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 5)
#define FASTCONV_SPARSE "mma.sp::ordered_metadata"
#else  // which takes places in any order, and makes the same machine code
#define FASTCONV_SPARSE "mma.sp"
#endif
#define FASTCONV_MMA_SPARSE(type, values)                                                                              \
  __device__ __forceinline__ void mma_sparse(type, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],      \
                                             uint32_t places, const float (&c)[4]) {                                   \
    asm(FASTCONV_SPARSE ".sync.aligned.m16n8k32.row.col.f32." values "." values                                        \
                        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%12, %13, %14, %15}, %16, 0x0;" \
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                               \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "f"(c[0]),           \
          "f"(c[1]), "f"(c[2]), "f"(c[3]), "r"(places));                                                               \
  }
FASTCONV_MMA_SPARSE(__half, "f16")
FASTCONV_MMA_SPARSE(__nv_bfloat16, "bf16")
#undef FASTCONV_MMA_SPARSE
#undef FASTCONV_SPARSE

}  // namespace fastconv::ptx
