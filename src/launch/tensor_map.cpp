#include "fastconv/launch/tensor_map.h"

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "fastconv/launch/launch.cuh"

namespace fastconv {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// Found at run time: linking libcuda would keep the library from loading on machines without a driver.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    constexpr const char* kName = "cuTensorMapEncodeTiled";
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    check_cuda(cudaGetDriverEntryPointByVersion(kName, &address, 12000, cudaEnableDefault, &found), kName);
#else  // which CUDA 13 has no more
    check_cuda(cudaGetDriverEntryPoint(kName, &address, cudaEnableDefault, &found), kName);
#endif
    if (found != cudaDriverEntryPointSuccess) throw std::runtime_error(std::string("fastconv: no ") + kName);
    return reinterpret_cast<EncodeTiled>(address);
  }();
  return function;
}

CUtensorMapSwizzle swizzle_of(int32_t bytes) {
  switch (bytes) {
    case 128: return CU_TENSOR_MAP_SWIZZLE_128B;
    case 64: return CU_TENSOR_MAP_SWIZZLE_64B;
    case 32: return CU_TENSOR_MAP_SWIZZLE_32B;
    default: return CU_TENSOR_MAP_SWIZZLE_NONE;
  }
}

// What L2 fetches at once. More than a box's row would be fetched for nothing where a stride leaves pixels out, or the
// rest of a pixel is read much later (docs/perf-log.md). Rows of 32 bytes, mostly whole pixels, have neighbours that
// are wanted soon.
CUtensorMapL2promotion promotion_of(int32_t row_bytes) {
  return row_bytes == 32 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
}

}  // namespace

CUtensorMap encode_tensor_map(const TensorMapSpec& spec, DType dtype, const void* address) {
  CUtensorMap map;
  cuuint64_t size[5], stride[4];
  for (int i = 0; i < 5; ++i) size[i] = spec.size[i];
  for (int i = 0; i < 4; ++i) stride[i] = spec.stride[i];
  const auto type = dtype == DType::kFloat16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                    : dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                    : spec.exact                ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                : CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;  // rounded on the way
  auto* start = static_cast<uint8_t*>(const_cast<void*>(address)) + spec.offset * element_size(dtype);
  auto encode = [&] {
    return encode_tiled()(&map, type, 5, start, size, stride, spec.box, spec.step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                          swizzle_of(spec.swizzle_bytes), promotion_of(spec.swizzle_bytes),
                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult result = encode();
  if (result == CUDA_ERROR_INVALID_CONTEXT) {  // a thread that has used no CUDA yet, as one of autograd's may be
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaSetDevice(device), "cudaSetDevice");  // makes the device's context the thread's
    result = encode();
  }
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("fastconv: cuTensorMapEncodeTiled: error " + std::to_string(result));
  }
  return map;
}

}  // namespace fastconv
