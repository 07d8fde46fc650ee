#include <algorithm>

#include "fastconv/core/integers.h"
#include "fastconv/kernels/bias_grad.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/launch/launch.h"

namespace fastconv {
namespace {

BiasGradParams make_params(const ConvProblem& problem) {
  const Strides& y = problem.y_strides;
  const int64_t p = problem.p(), q = problem.q();
  BiasGradParams params{};
  params.channels = problem.k;
  const bool whole_images = p == 1 || y.h == q * y.w;
  params.rows_per_image = whole_images ? 1 : p;
  params.rows = problem.n * params.rows_per_image;
  params.length = whole_images ? p * q : q;
  params.stride_n = y.n;
  params.stride_c = y.c;
  params.stride_row = y.h;
  params.stride = q == 1 && whole_images ? y.h : y.w;
  params.segments = params.rows * ceil_div(params.length, kBiasSegment);
  params.lanes_c = problem.k > 1 && y.c < params.stride ? 32 : 1;
  return params;
}

// Blocks enough to fill the chip four times over, if there is work for them.
int64_t slice_count(const BiasGradParams& params, const DeviceSpec& device) {
  const int64_t blocks = ceil_div(params.channels, params.lanes_c);
  return std::clamp<int64_t>(ceil_div(4 * 8 * device.sm_count, blocks), 1, std::max<int64_t>(1, params.segments));
}

template <typename T>
void run(const ConvProblem& problem, const DeviceSpec& device, const void* grad_output, void* grad_bias,
         void* workspace, cudaStream_t stream) {
  const BiasGradParams params = make_params(problem);
  const int64_t slices = slice_count(params, device);
  auto* partial = static_cast<Accumulator<T>*>(workspace);
  launch("bias_grad", bias_grad_slices<T>,
         LaunchShape{slices * ceil_div(params.channels, params.lanes_c), kBiasThreads}, stream, params,
         static_cast<const T*>(grad_output), partial, slices);
  launch("bias_grad", bias_grad_total<T>, LaunchShape{ceil_div(params.channels, kBiasThreads), kBiasThreads}, stream,
         static_cast<const Accumulator<T>*>(partial), static_cast<T*>(grad_bias), params.channels, slices);
}

}  // namespace

int64_t bias_grad_workspace_bytes(const ConvProblem& problem, const DeviceSpec& device) {
  return slice_count(make_params(problem), device) * problem.k * (problem.dtype == DType::kFloat64 ? 8 : 4);
}

void bias_grad_cuda(const ConvProblem& problem, const DeviceSpec& device, const void* grad_output, void* grad_bias,
                    void* workspace, void* stream) {
  auto* const cuda_stream = static_cast<cudaStream_t>(stream);
  switch (problem.dtype) {
    case DType::kFloat32: return run<float>(problem, device, grad_output, grad_bias, workspace, cuda_stream);
    case DType::kFloat64: return run<double>(problem, device, grad_output, grad_bias, workspace, cuda_stream);
    case DType::kFloat16: return run<__half>(problem, device, grad_output, grad_bias, workspace, cuda_stream);
    case DType::kBFloat16: return run<__nv_bfloat16>(problem, device, grad_output, grad_bias, workspace, cuda_stream);
  }
}

}  // namespace fastconv
