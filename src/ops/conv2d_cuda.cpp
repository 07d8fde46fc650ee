#include <cuda_runtime_api.h>

#include <string>

#include "fastconv/ops/conv2d_ops.h"
#include "fastconv/ops/cuda_call.h"
#include "fastconv/planner/gpus.h"

namespace fastconv::ops {
namespace {

Ints cuda_device(int64_t index) { return ints_of(cuda_device_spec(static_cast<int>(index))); }

std::string cuda_build() {
  return "architectures\t" FASTCONV_CUDA_ARCHS "\nCUDA runtime\t" + std::to_string(CUDART_VERSION / 1000) + "." +
         std::to_string(CUDART_VERSION % 1000 / 10) + ", for drivers from " +
         std::to_string(oldest_driver(CUDART_VERSION)) + " on\n";
}

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
