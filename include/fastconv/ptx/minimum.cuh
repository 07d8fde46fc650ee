// The smaller and the larger of two; NaN if one is, which fmin() and fmax() lose. PTX ISA, "min", "max".
#pragma once

namespace fastconv::ptx {

__device__ __forceinline__ double min_or_nan(double a, double b) { return a > b || b != b ? b : a; }
__device__ __forceinline__ double max_or_nan(double a, double b) { return a < b || b != b ? b : a; }
__device__ __forceinline__ float min_or_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
#else
  return a > b || b != b ? b : a;
#endif
}
__device__ __forceinline__ float max_or_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
#else
  return a < b || b != b ? b : a;
#endif
}

}  // namespace fastconv::ptx
