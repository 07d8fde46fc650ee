#include "fastconv/launch/launch.h"
#include "fastconv/ops/conv2d_ops.h"
#include "fastconv/planner/bias_grad.h"

namespace fastconv::ops {
namespace {

class CudaBackend {
 public:
  explicit CudaBackend(int device_index) : spec_(cuda_device_spec(device_index)) {
    // A guard costs a tenth of a microsecond, and is seldom needed.
    if (current_cuda_device() != device_index) guard_.emplace(device_index);
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_index, &stream_));
  }
  const DeviceSpec& device() const { return spec_; }
  void run(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers) {
    run_cuda(plan, problem, buffers, stream_);
  }
  int64_t bias_grad_workspace_bytes(const ConvProblem& problem) const {
    return plan_bias_grad(problem, spec_).workspace_bytes;
  }
  void bias_grad(const ConvProblem& problem, const void* grad_output, void* grad_bias, void* workspace) {
    bias_grad_cuda(problem, spec_, grad_output, grad_bias, workspace, stream_);
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
  const DeviceSpec& spec_;
  void* stream_ = nullptr;
};

// As python/fastconv/explain.py has it.
Ints cuda_device(int64_t index) {
  const DeviceSpec& spec = cuda_device_spec(static_cast<int>(index));
  return {spec.arch,
          spec.sm_count,
          spec.smem_optin_bytes,
          static_cast<int64_t>(spec.clock_mhz),
          static_cast<int64_t>(spec.memory_gbps),
          spec.l2_bytes};
}

std::string cuda_build() { return "architectures\t" FASTCONV_CUDA_ARCHS "\n"; }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(fastconv, library) {
  library.def("_cuda_build() -> str");
  library.def("_cuda_device(int index) -> int[]");
}

STABLE_TORCH_LIBRARY_IMPL(fastconv, CUDA, library) { register_ops<CudaBackend>(library); }
STABLE_TORCH_LIBRARY_IMPL(aten, CUDA, library) { register_node<CudaBackend>(library); }

STABLE_TORCH_LIBRARY_IMPL(fastconv, CompositeExplicitAutograd, library) {
  library.impl("_cuda_build", TORCH_BOX(&cuda_build));
  library.impl("_cuda_device", TORCH_BOX(&cuda_device));
}

}  // namespace fastconv::ops
