#include "fastconv/launch/tensor_map.h"

namespace fastconv {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// Found at run time: linking libcuda would keep the library from loading on machines without a driver.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTiled>(address)
                                                                        : nullptr;
  }();
  return function;
}

}  // namespace

cudaError_t encode_tensor_map(const HaloTensorMap& map, DType dtype, int row_bytes, const void* address,
                              CUtensorMap* out) {
  if (encode_tiled() == nullptr) return cudaErrorNotSupported;
  cuuint64_t size[5], stride[4];
  for (int i = 0; i < 5; ++i) size[i] = map.size[i];
  for (int i = 0; i < 4; ++i) stride[i] = map.stride[i];
  const CUtensorMapSwizzle swizzle = row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                       : CU_TENSOR_MAP_SWIZZLE_32B;
  const CUresult result =
      encode_tiled()(out, dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                     5, const_cast<void*>(address), size, stride, map.box, map.step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace fastconv
