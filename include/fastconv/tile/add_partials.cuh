// Adds what several blocks have of the same sums, in a fixed order.
#pragma once

#include <cstdint>

namespace fastconv {

inline constexpr int kReduceThreads = 256;

// Threads that share a sum: several where there are many parts, since results are few then.
inline int reduce_strands(int64_t parts) {
  int strands = 1;
  while (strands < 8 && strands * 8 < parts) strands *= 2;
  return strands;
}
inline int64_t reduce_blocks(int64_t quads, int strands) {
  return (quads * strands + kReduceThreads - 1) / kReduceThreads;
}

// A thread adds every `strands`-th of the sums of one quad; strands are then added, and store(quad, sum) is called.
template <typename F>
__device__ __forceinline__ void add_partials(const float4* partial, int64_t quads, int32_t parts, int32_t strands,
                                             F&& store) {
  __shared__ float4 sums[kReduceThreads];
  const int thread = static_cast<int>(threadIdx.x), per_block = kReduceThreads / strands, strand = thread / per_block;
  const int64_t at = int64_t{blockIdx.x} * per_block + thread % per_block;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  if (at < quads) {
#pragma unroll 8
    for (int part = strand; part < parts; part += strands) {
      const float4 v = partial[at + part * quads];
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
  }
  if (strands > 1) {
    sums[thread] = sum;
    __syncthreads();
    if (strand > 0) return;
    for (int i = 1; i < strands; ++i) {
      const float4 v = sums[thread + i * per_block];
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
  }
  if (at < quads) store(at, sum);
}

}  // namespace fastconv
