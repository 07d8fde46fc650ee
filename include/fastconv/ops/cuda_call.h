// The device and the stream of a call of an op, and the backend of ops/conv2d_ops.h.
#pragma once

#include <optional>

#include "fastconv/launch/launch.h"
#include "fastconv/ops/torch_stable.h"
#include "fastconv/planner/bias_grad.h"

namespace fastconv::ops {

class CudaCall {
 public:
  explicit CudaCall(int device_index) : spec_(cuda_device_spec(device_index)) {
    // A guard costs a tenth of a microsecond, and is seldom needed.
    if (current_cuda_device() != device_index) guard_.emplace(device_index);
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_index, &stream_));
  }
  const DeviceSpec& device() const { return spec_; }
  void* stream() const { return stream_; }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
  const DeviceSpec& spec_;
  void* stream_ = nullptr;
};

template <bool kBehindOurs>
struct CudaBackendOf : CudaCall {
  using CudaCall::CudaCall;
  void run(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers) {
    run_cuda(plan, problem, buffers, stream(), kBehindOurs);
  }
  int64_t bias_grad_workspace_bytes(const ConvProblem& problem) const {
    return plan_bias_grad(problem, device()).workspace_bytes;
  }
  void bias_grad(const ConvProblem& problem, const void* grad_output, void* grad_bias, void* workspace) {
    bias_grad_cuda(problem, device(), grad_output, grad_bias, workspace, stream());
  }
};

using CudaBackend = CudaBackendOf<false>;

}  // namespace fastconv::ops
