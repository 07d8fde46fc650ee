#include "fastconv/cpu/conv_cpu.h"
#include "fastconv/ops/conv2d_ops.h"

namespace fastconv::ops {
namespace {

void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  torch::stable::parallel_for(0, count, grain, body);
}

struct CpuBackend {
  explicit CpuBackend(int /*device_index*/) { spec.threads = static_cast<int>(torch::stable::get_num_threads()); }
  const DeviceSpec& device() const { return spec; }
  void run(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers) {
    run_cpu(plan, problem, buffers, parallel_for);
  }
  int64_t bias_grad_workspace_bytes(const ConvProblem&) const { return 0; }
  void bias_grad(const ConvProblem& problem, const void* grad_output, void* grad_bias, void* /*workspace*/) {
    bias_grad_cpu(problem, grad_output, grad_bias, parallel_for);
  }

  DeviceSpec spec;
};

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fastconv, CPU, library) { register_ops<CpuBackend>(library); }

}  // namespace fastconv::ops
