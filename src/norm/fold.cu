#include "fastconv/norm/fold.h"

#include <algorithm>

#include "fastconv/core/integers.h"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/with_dtype.cuh"
#include "fastconv/norm/batch_norm.cuh"

namespace fastconv {
namespace {

constexpr int kThreads = 128, kEach = 8;

// Blocks of a filter, one after the other; the first has its bias.
template <typename From, typename T>
__global__ void __launch_bounds__(kThreads) fold_norm(const __grid_constant__ NormFold fold, int32_t blocks) {
  ptx::follow_previous_kernel();
  using Acc = Accumulator<T>;
  const int64_t filter = blockIdx.x / blocks, first = int64_t{blockIdx.x} % blocks * kThreads * kEach + threadIdx.x;
  const Acc variance = read<T>(fold.variance, filter, Acc{1});
  const Acc scale = inverse_deviation(variance, static_cast<Acc>(fold.eps)) * read<T>(fold.weight, filter, Acc{1});
  if (first == 0) {
    const Acc distance = read<T>(fold.bias, filter, Acc{0}) - read<T>(fold.mean, filter, Acc{0});
    static_cast<Acc*>(fold.folded_bias)[filter] = distance * scale + read<T>(fold.norm_bias, filter, Acc{0});
  }
  const From* from = static_cast<const From*>(fold.filters) + filter * fold.values;
  T* to = static_cast<T*>(fold.folded) + filter * fold.values;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t at = first + i * kThreads;
    if (at < fold.values) to[at] = narrow<T>(static_cast<Acc>(widen(from[at])) * scale);
  }
}

}  // namespace

void fold_norm_cuda(DType dtype, const NormFold& fold, void* stream) {
  if (fold.count == 0) return;
  Stream ours{static_cast<cudaStream_t>(stream), true};
  const int64_t blocks = std::max<int64_t>(ceil_div(fold.values, int64_t{kThreads} * kEach), 1);
  with_dtype(dtype, [&]<typename T>() {
    with_dtype(fold.filters_type, [&]<typename From>() {
      launch("fold_norm", fold_norm<From, T>, {fold.count * blocks, kThreads}, ours, fold,
             static_cast<int32_t>(blocks));
    });
  });
}

}  // namespace fastconv
