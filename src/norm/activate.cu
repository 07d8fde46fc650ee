#include "fastconv/norm/activate.h"

#include "fastconv/core/integers.h"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/with_dtype.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/activation.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {
namespace {

constexpr int kThreads = 128, kBytes = 16, kVectors = 4;  // that a thread reads at once, of each tensor

template <typename T>
constexpr int64_t kBlockValues = int64_t{kThreads} * kVectors * kBytes / sizeof(T);

// use(first, read(first)) of a thread's vectors, all of which are read before the first is used, and of the tensor's
// last values one by one: both have the number as their template argument.
template <typename T, typename Read, typename Use>
__device__ __forceinline__ void each_vector_of(int64_t count, Read&& read, Use&& use) {
  constexpr int kCount = kBytes / sizeof(T);
  const int64_t block = blockIdx.x * kBlockValues<T>;
  const auto first = [&](int i) { return block + (i * kThreads + static_cast<int>(threadIdx.x)) * kCount; };
  if (block + kBlockValues<T> <= count) {
    decltype(read.template operator()<kCount>(block)) vectors[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vectors[i] = read.template operator()<kCount>(first(i));
#pragma unroll
    for (int i = 0; i < kVectors; ++i) use.template operator()<kCount>(first(i), vectors[i]);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kVectors; ++i) {
    if (first(i) + kCount <= count) {
      use.template operator()<kCount>(first(i), read.template operator()<kCount>(first(i)));
    } else {
      for (int64_t at = first(i); at < count; ++at) use.template operator()<1>(at, read.template operator()<1>(at));
    }
  }
}

template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> load(const void* from, int64_t first) {
  return *reinterpret_cast<const Vector<T, kCount>*>(static_cast<const T*>(from) + first);
}
template <typename T, int kCount>
__device__ __forceinline__ void store(void* to, int64_t first, const Accumulator<T> (&values)[kCount]) {
  Vector<T, kCount> rounded;
#pragma unroll
  for (int i = 0; i < kCount; ++i) rounded.data[i] = narrow<T>(values[i]);
  *reinterpret_cast<Vector<T, kCount>*>(static_cast<T*>(to) + first) = rounded;
}

// Of z, and of a residual, what the activation gets.
template <typename T, int kCount>
struct Sum {
  Vector<T, kCount> z, residual;

  __device__ static __forceinline__ Sum read(const void* z, const void* residual, int64_t first) {
    Sum sum{load<T, kCount>(z, first), {}};
    if (residual != nullptr) sum.residual = load<T, kCount>(residual, first);
    return sum;
  }
  __device__ __forceinline__ void add(bool has_residual, Accumulator<T> (&values)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = widen(z.data[i]);
    if (!has_residual) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += widen(residual.data[i]);
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    activate(const __grid_constant__ ActivateForward call, bool cuts, int64_t count) {
  ptx::follow_previous_kernel();
  using Acc = Accumulator<T>;
  const Bounds<Acc> bounds(call.activation);
  each_vector_of<T>(
      count, [&]<int kCount>(int64_t first) { return Sum<T, kCount>::read(call.z, call.residual, first); },
      [&]<int kCount>(int64_t first, const Sum<T, kCount>& sum) {
        Acc values[kCount];
        sum.add(call.residual != nullptr, values);
        if (cuts) {
#pragma unroll
          for (Acc& value : values) value = bounds(value);
        } else {
          Curves<sizeof(T) == 2>::activate(call.activation, values);
        }
        store<T>(call.y, first, values);
      });
}

template <typename T, int kCount>
struct SumAndGradient {
  Sum<T, kCount> sum;
  Vector<T, kCount> grad_y;
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    activate_backward(const __grid_constant__ ActivateBackward call, int64_t count) {
  ptx::follow_previous_kernel();
  using Acc = Accumulator<T>;
  each_vector_of<T>(
      count,
      [&]<int kCount>(int64_t first) {
        return SumAndGradient<T, kCount>{Sum<T, kCount>::read(call.kept, call.residual, first),
                                         load<T, kCount>(call.grad_y, first)};
      },
      [&]<int kCount>(int64_t first, const SumAndGradient<T, kCount>& read) {
        Acc slopes[kCount], grad[kCount];
        read.sum.add(call.residual != nullptr, slopes);
        Curves<sizeof(T) == 2>::slopes(call.activation, slopes);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          grad[i] = slopes[i] == Acc{0} ? Acc{0} : widen(read.grad_y.data[i]) * slopes[i];
        }
        store<T>(call.grad_z, first, grad);
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
