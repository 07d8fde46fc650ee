#include "fastconv/norm/activate.h"

#include "fastconv/core/integers.h"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/with_dtype.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/activation.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {
namespace {

constexpr int kThreads = 256, kBytes = 16, kVectors = 4;  // that a thread reads at once, of each tensor

template <typename T>
constexpr int64_t kBlockValues = int64_t{kThreads} * kVectors * kBytes / sizeof(T);

// use(first) of a thread's vectors, and of the rest one by one: use.operator()<kCount>(first).
template <typename T, typename Use>
__device__ __forceinline__ void each_vector_of(int64_t count, Use&& use) {
  constexpr int kCount = kBytes / sizeof(T);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t first = blockIdx.x * kBlockValues<T> + (i * kThreads + static_cast<int>(threadIdx.x)) * kCount;
    if (first + kCount <= count) {
      use.template operator()<kCount>(first);
    } else {
      for (int64_t at = first; at < count; ++at) use.template operator()<1>(at);
    }
  }
}

template <typename T, int kCount>
__device__ __forceinline__ void read(const void* from, int64_t first, Accumulator<T> (&values)[kCount]) {
  const auto found = *reinterpret_cast<const Vector<T, kCount>*>(static_cast<const T*>(from) + first);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = widen(found.data[i]);
}
template <typename T, int kCount>
__device__ __forceinline__ void write(void* to, int64_t first, const Accumulator<T> (&values)[kCount]) {
  Vector<T, kCount> rounded;
#pragma unroll
  for (int i = 0; i < kCount; ++i) rounded.data[i] = narrow<T>(values[i]);
  *reinterpret_cast<Vector<T, kCount>*>(static_cast<T*>(to) + first) = rounded;
}

// Of z and a residual, what the activation gets.
template <typename T, int kCount>
__device__ __forceinline__ void read_sum(const void* z, const void* residual, int64_t first,
                                         Accumulator<T> (&values)[kCount]) {
  read<T>(z, first, values);
  if (residual == nullptr) return;
  Accumulator<T> more[kCount];
  read<T>(residual, first, more);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] += more[i];
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    activate(const __grid_constant__ ActivateForward call, bool cuts, int64_t count) {
  ptx::follow_previous_kernel();
  using Acc = Accumulator<T>;
  const Bounds<Acc> bounds(call.activation);
  each_vector_of<T>(count, [&]<int kCount>(int64_t first) {
    Acc values[kCount];
    read_sum<T>(call.z, call.residual, first, values);
    if (cuts) {
#pragma unroll
      for (Acc& value : values) value = bounds(value);
    } else {
      Curves<sizeof(T) == 2>::activate(call.activation, values);
    }
    write<T>(call.y, first, values);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    activate_backward(const __grid_constant__ ActivateBackward call, int64_t count) {
  ptx::follow_previous_kernel();
  using Acc = Accumulator<T>;
  each_vector_of<T>(count, [&]<int kCount>(int64_t first) {
    Acc slopes[kCount], grad[kCount];
    read_sum<T>(call.kept, call.residual, first, slopes);
    read<T>(call.grad_y, first, grad);
    Curves<sizeof(T) == 2>::slopes(call.activation, slopes);
#pragma unroll
    for (int i = 0; i < kCount; ++i) grad[i] = slopes[i] == Acc{0} ? Acc{0} : grad[i] * slopes[i];
    write<T>(call.grad_z, first, grad);
  });
}

}  // namespace

void activate_cuda(DType dtype, int64_t count, const ActivateForward& call, void* stream) {
  if (count == 0) return;
  Stream ours{static_cast<cudaStream_t>(stream), true};
  with_dtype(dtype, [&]<typename T>() {
    launch("activate", activate<T>, {ceil_div(count, kBlockValues<T>), kThreads}, ours, call, cuts_off(call.activation),
           count);
  });
}

void activate_backward_cuda(DType dtype, int64_t count, const ActivateBackward& call, void* stream) {
  if (count == 0) return;
  Stream ours{static_cast<cudaStream_t>(stream), true};
  with_dtype(dtype, [&]<typename T>() {
    launch("activate_backward", activate_backward<T>, {ceil_div(count, kBlockValues<T>), kThreads}, ours, call, count);
  });
}

}  // namespace fastconv
