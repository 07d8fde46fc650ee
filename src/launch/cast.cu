#include "fastconv/core/integers.h"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/launch.h"
#include "fastconv/launch/with_dtype.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {
namespace {

constexpr int kThreads = 256, kEach = 4;

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) cast_values(const From* from, To* to, int64_t count) {
  ptx::follow_previous_kernel();
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEach;
  const auto cast = [](From value) { return narrow<To>(static_cast<Accumulator<To>>(widen(value))); };
  if (first + kEach > count) {
    for (int64_t i = first; i < count; ++i) to[i] = cast(from[i]);
    return;
  }
  const auto values = *reinterpret_cast<const Vector<From, kEach>*>(from + first);
  Vector<To, kEach> results;
#pragma unroll
  for (int i = 0; i < kEach; ++i) results.data[i] = cast(values.data[i]);
  *reinterpret_cast<Vector<To, kEach>*>(to + first) = results;
}

}  // namespace

void cast_cuda(DType from_type, DType to_type, const void* from, void* to, int64_t count, void* stream) {
  if (count == 0) return;
  Stream ours{static_cast<cudaStream_t>(stream), true};
  with_dtype(from_type, [&]<typename From>() {
    with_dtype(to_type, [&]<typename To>() {
      launch("cast_values", cast_values<From, To>, {ceil_div(count, int64_t{kThreads} * kEach), kThreads}, ours,
             static_cast<const From*>(from), static_cast<To*>(to), count);
    });
  });
}

}  // namespace fastconv
