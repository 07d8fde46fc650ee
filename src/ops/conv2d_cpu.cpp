#include "fastconv/cpu/conv_cpu.h"
#include "fastconv/ops/conv2d_ops.h"

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

namespace fastconv::ops {
namespace {

void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  torch::stable::parallel_for(0, count, grain, body);
}

Tensor tensor(DType dtype, const Matrix& matrix) {
  const int64_t sizes[] = {matrix.rows, matrix.cols}, strides[] = {matrix.row_step, matrix.col_step};
  const int32_t type = dtype == DType::kFloat64 ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob(matrix.data, 2, sizes, strides, 0, type,
                                                            aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

// Below the dispatcher: no mode, no autocast, nothing that autograd remembers.
void multiply(const Tensor& out, const Tensor& a, const Tensor& b, bool accumulate) {
  if (accumulate) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(out.get(), out.get(), a.get(), b.get(), 1, 1));
  } else {
    TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(out.get(), a.get(), b.get()));
  }
}

// torch.set_float32_matmul_precision and its like may round float32 products to fewer bits, on some chips. They have no
// place in the stable ABI, so a product tells: 1 + 2^-23 times 1, in a matrix just large enough for them.
bool float32_is_exact() {
  constexpr int64_t kSide = 17;
  struct Probe {
    float values[3][kSide * kSide] = {{1 + 0x1p-23f}, {1}, {}};
    Tensor a = view(0), b = view(1), out = view(2);

    Tensor view(int which) { return tensor(DType::kFloat32, {values[which], kSide, kSide, kSide, 1}); }
  };
  static thread_local Probe probe;
  multiply(probe.out, probe.a, probe.b, false);
  return probe.values[2][0] == probe.values[0][0];
}

const CpuRuntime kRuntime = {
    parallel_for,
    [](DType dtype, const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate) {
      multiply(tensor(dtype, out), tensor(dtype, a), tensor(dtype, b), accumulate);
    },
    float32_is_exact,
};

struct CpuBackend {
  explicit CpuBackend(int /*device_index*/) { spec.threads = static_cast<int>(torch::stable::get_num_threads()); }
  const DeviceSpec& device() const { return spec; }
  void run(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers) {
    run_cpu(plan, problem, buffers, kRuntime);
  }
  int64_t bias_grad_workspace_bytes(const ConvProblem&) const { return 0; }
  void bias_grad(const ConvProblem& problem, const void* grad_output, void* grad_bias, void* /*workspace*/) {
    bias_grad_cpu(problem, grad_output, grad_bias, kRuntime);
  }

  DeviceSpec spec;
};

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fastconv, CPU, library) { register_ops<CpuBackend>(library); }
STABLE_TORCH_LIBRARY_IMPL(aten, CPU, library) { register_node<CpuBackend>(library); }

}  // namespace fastconv::ops
