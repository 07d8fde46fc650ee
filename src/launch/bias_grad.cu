#include "fastconv/core/integers.h"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/launch.h"
#include "fastconv/launch/with_dtype.cuh"
#include "fastconv/planner/bias_grad.h"
#include "fastconv/tile/bias_grad.cuh"

namespace fastconv {
namespace {

template <typename T>
void run(const ConvProblem& problem, const DeviceSpec& device, const void* grad_output, void* grad_bias,
         void* workspace, Stream& stream) {
  constexpr int kVector = kBiasUnitBytes / sizeof(T);
  const BiasGradPlan plan = plan_bias_grad(problem, device);
  const BiasGradParams& params = plan.params;
  auto* partial = static_cast<Accumulator<T>*>(workspace);
  const auto kernel = plan.across  ? bias_grad_slices<T, kVector, true>
                      : plan.along ? bias_grad_slices<T, kVector, false>
                                   : bias_grad_slices<T, 1, false>;
  launch("bias_grad", kernel, LaunchShape{plan.grid(), kBiasThreads}, stream, params,
         static_cast<const T*>(grad_output), partial);
  launch("bias_grad", bias_grad_total<T>, LaunchShape{ceil_div(32 * params.channels, kBiasThreads), kBiasThreads},
         stream, static_cast<const Accumulator<T>*>(partial), static_cast<T*>(grad_bias), params.channels,
         params.slices);
}

}  // namespace

void bias_grad_cuda(const ConvProblem& problem, const DeviceSpec& device, const void* grad_output, void* grad_bias,
                    void* workspace, void* stream) {
  Stream ours{static_cast<cudaStream_t>(stream), true};  // behind the other gradients
  with_dtype(problem.dtype, [&]<typename T>() { run<T>(problem, device, grad_output, grad_bias, workspace, ours); });
}

}  // namespace fastconv
