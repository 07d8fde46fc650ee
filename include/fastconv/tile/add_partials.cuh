// Adds what several blocks have of the same sums, in a fixed order.
#pragma once

#include <cstdint>

namespace fastconv {

inline constexpr int kReduceThreads = 256;

// Threads that share a sum: several where there are many parts, since results are few then.
inline int reduce_strands(int64_t parts) {
  int strands = 1;
  while (strands < 16 && strands * 8 < parts) strands *= 2;
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

// add(load(i)) for i = first, first + step, ..., in this order. The compiler keeps a load behind the branch that ends
// the loop before it, so that each would wait for memory: here a batch of them is under way together.
template <int kBatch, typename Index, typename Load, typename Add>
__device__ __forceinline__ void each_in_order(Index first, Index step, Index end, Load&& load, Add&& add) {
#pragma unroll 1
  for (Index i = first; i < end; i += kBatch * step) {
    decltype(load(i)) batch[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (i + k * step < end) batch[k] = load(i + k * step);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (i + k * step < end) add(batch[k]);
    }
  }
}
// load(first) + load(first + step) + ...
template <typename Index, typename Load>
__device__ __forceinline__ auto add_in_order(Index first, Index step, Index end, Load&& load) {
  using Value = decltype(load(first));
  Value sum{};
  each_in_order<(sizeof(Value) <= 8 ? 8 : 4)>(first, step, end, load, [&](const Value& v) { add_to(sum, v); });
  return sum;
}

// A thread adds every `strands`-th of the sums of one quad, or of one output; strands are then added, and
// store(quad, sum) is called.
template <typename Sum, typename F>
__device__ __forceinline__ void add_partials(const Sum* partial, int64_t quads, int32_t parts, int32_t strands,
                                             F&& store) {
  __shared__ Sum sums[kReduceThreads];
  const int thread = static_cast<int>(threadIdx.x), per_block = kReduceThreads / strands, strand = thread / per_block;
  const int64_t at = int64_t{blockIdx.x} * per_block + thread % per_block;
  Sum sum{};
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
