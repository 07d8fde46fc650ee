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

__device__ __forceinline__ void add_to(float& sum, float v) { sum += v; }
__device__ __forceinline__ void add_to(double& sum, double v) { sum += v; }
__device__ __forceinline__ void add_to(float4& sum, const float4& v) {
  sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
}

// load(first) + load(first + step) + ..., in this order. The compiler keeps a load behind the branch that ends the loop
// before it, so that each would wait for memory: here a batch of them is under way together.
template <int kBatch = 8, typename Index, typename F>
__device__ __forceinline__ auto add_in_order(Index first, Index step, Index end, F&& load) {
  using Value = decltype(load(first));
  Value sum{};
#pragma unroll 1
  for (Index i = first; i < end; i += kBatch * step) {
    Value batch[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const Index at = i + k * step;
      batch[k] = at < end ? load(at) : Value{};
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) add_to(sum, batch[k]);
  }
  return sum;
}

// A thread adds every `strands`-th of the sums of one quad; strands are then added, and store(quad, sum) is called.
template <typename F>
__device__ __forceinline__ void add_partials(const float4* partial, int64_t quads, int32_t parts, int32_t strands,
                                             F&& store) {
  __shared__ float4 sums[kReduceThreads];
  const int thread = static_cast<int>(threadIdx.x), per_block = kReduceThreads / strands, strand = thread / per_block;
  const int64_t at = int64_t{blockIdx.x} * per_block + thread % per_block;
  float4 sum{};
  if (at < quads) sum = add_in_order(strand, strands, parts, [&](int part) { return partial[at + part * quads]; });
  if (strands > 1) {
    sums[thread] = sum;
    __syncthreads();
    if (strand > 0) return;
    for (int i = 1; i < strands; ++i) add_to(sum, sums[thread + i * per_block]);
  }
  if (at < quads) store(at, sum);
}

}  // namespace fastconv
