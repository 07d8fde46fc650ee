#include "fastconv/cpu/conv_cpu.h"

#include <algorithm>

#include "fastconv/cpu/kernels.h"
#include "fastconv/cpu/scalar.h"
#include "fastconv/cpu/work_queue.h"
#include "fastconv/planner/registry.h"

namespace fastconv {
namespace {

template <class F>
void with_scalar(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat32: return f(float{});
    case DType::kFloat64: return f(double{});
    case DType::kFloat16: return f(Half{});
    case DType::kBFloat16: return f(BFloat16{});
  }
}

// Rows are summed in several chains and in double precision: exact enough for any length, and still memory-bound.
template <class T>
double sum_row(const T* row, int64_t size, int64_t step) {
  constexpr int64_t kChains = 8;
  double chains[kChains] = {};
  int64_t i = 0;
  for (; i + kChains <= size; i += kChains) {
    for (int64_t j = 0; j < kChains; ++j) chains[j] += static_cast<Accumulator<T>>(row[(i + j) * step]);
  }
  for (int64_t j = 0; i + j < size; ++j) chains[j] += static_cast<Accumulator<T>>(row[(i + j) * step]);
  double sum = 0;
  for (const double chain : chains) sum += chain;
  return sum;
}

}  // namespace

void run_cpu(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, const CpuRuntime& runtime) {
  const bool depthwise = plan.kernel->config.as<CpuMethod>() == CpuMethod::kDepthwise;
  with_scalar(problem.dtype, [&]<class T>(T) {
    if (depthwise) return depthwise_cpu<T>(problem, buffers, runtime);
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, Half>) {  // those that rounded products would change
      if (!runtime.float32_is_exact()) return gemm_cpu<T, double>(problem, buffers, runtime);
    }
    gemm_cpu<T, Accumulator<T>>(problem, buffers, runtime);
  });
}

void bias_grad_cpu(const ConvProblem& problem, const void* grad_output, void* grad_bias, const CpuRuntime& runtime) {
  constexpr int64_t kChannels = 16;  // summed side by side: they share cache lines in channels_last
  const Strides& y = problem.y_strides;
  const int64_t blocks = (problem.k + kChannels - 1) / kChannels;
  with_scalar(problem.dtype, [&]<class T>(T) {
    const T* grad = static_cast<const T*>(grad_output);
    const int64_t cost = kChannels * problem.n * problem.p() * problem.q();
    for_each_item(runtime, blocks, cost, [&] {
      return [&](int64_t block) {
        const int64_t channel = block * kChannels;
        const int64_t channels = std::min(kChannels, problem.k - channel);
        double sums[kChannels] = {};
        for (int64_t n = 0; n < problem.n; ++n) {
          for (int64_t p = 0; p < problem.p(); ++p) {
            const T* row = grad + (n * y.n + p * y.h + channel * y.c);
            for (int64_t k = 0; k < channels; ++k) sums[k] += sum_row(row + k * y.c, problem.q(), y.w);
          }
        }
        for (int64_t k = 0; k < channels; ++k) {
          static_cast<T*>(grad_bias)[channel + k] = static_cast<T>(static_cast<Accumulator<T>>(sums[k]));
        }
      };
    });
  });
}

}  // namespace fastconv
