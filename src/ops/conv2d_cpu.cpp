#include "fastconv/cpu/conv_cpu.h"
#include "fastconv/ops/conv2d_ops.h"

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#include <algorithm>
#include <climits>

// BLAS' product of matrices, if torch's library has it to give.
extern "C" [[gnu::weak]] void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
                                     const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                                     const float* beta, float* c, const int* ldc);

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

// A matrix as BLAS has it: columns follow each other, or rows do.
struct BlasMatrix {
  char trans = 0;  // 0: neither
  int ld = 0;

  explicit BlasMatrix(const Matrix& m) {
    const auto follow = [&](int64_t size, int64_t step, int64_t count, int64_t next) {
      ld = static_cast<int>(std::max<int64_t>({1, size, count > 1 ? next : 0}));
      return (size <= 1 || step == 1) && (count <= 1 || (next >= size && next < INT_MAX));
    };
    if (follow(m.rows, m.row_step, m.cols, m.col_step)) {
      trans = 'N';
    } else if (follow(m.cols, m.col_step, m.rows, m.row_step)) {
      trans = 'T';
    }
  }
};

// Whether BLAS did it: torch's own product may round float32 to fewer bits, or leave it to another library, by a
// setting that has no place in the stable ABI.
bool multiply_by_blas(const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate) {
  const BlasMatrix c(out), left(a), right(b);
  if (sgemm_ == nullptr || !c.trans || !left.trans || !right.trans) return false;
  if (c.trans == 'T') return multiply_by_blas(out.transposed(), b.transposed(), a.transposed(), accumulate);
  if (std::max({out.rows, out.cols, a.cols}) > INT_MAX) return false;
  const int m = static_cast<int>(out.rows), n = static_cast<int>(out.cols), k = static_cast<int>(a.cols);
  const float one = 1, beta = accumulate ? 1.f : 0.f;
  if (m == 0 || n == 0) return true;
  sgemm_(&left.trans, &right.trans, &m, &n, &k, &one, static_cast<const float*>(a.data), &left.ld,
         static_cast<const float*>(b.data), &right.ld, &beta, static_cast<float*>(out.data), &c.ld);
  return true;
}

void product(DType dtype, const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate) {
  if (dtype == DType::kFloat32 && multiply_by_blas(out, a, b, accumulate)) return;
  multiply(tensor(dtype, out), tensor(dtype, a), tensor(dtype, b), accumulate);
}

// torch.set_float32_matmul_precision and its like may round float32 products to fewer bits, on some chips, where BLAS
// is not at hand. They have no place in the stable ABI, so a product tells: 1 + 2^-23 times 1, in a matrix just large
// enough for them.
bool float32_is_exact() {
  constexpr int64_t kSide = 17;
  struct Probe {
    float values[3][kSide * kSide] = {{1 + 0x1p-23f}, {1}, {}};

    Matrix view(int which) { return {values[which], kSide, kSide, kSide, 1}; }
  };
  static thread_local Probe probe;
  product(DType::kFloat32, probe.view(2), probe.view(0), probe.view(1), false);
  return probe.values[2][0] == probe.values[0][0];
}

const CpuRuntime kRuntime = {parallel_for, product, float32_is_exact};

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
