#include "fastconv/launch/run_halo.h"

#include "fastconv/launch/halo_sm90.cuh"

namespace fastconv {

#define HALO_CONFIG(block_k, m_blocks, channels, staging, filter)                                                   \
  extern template cudaError_t                                                                                       \
  launch_halo<__half, block_k, m_blocks, channels, HaloStaging::staging, FilterTile::filter>(                       \
      const HaloPlan&, const HaloParams&, const PackParams&, const CUtensorMap&, const CUtensorMap&, cudaStream_t); \
  extern template cudaError_t                                                                                       \
  launch_halo<__nv_bfloat16, block_k, m_blocks, channels, HaloStaging::staging, FilterTile::filter>(                \
      const HaloPlan&, const HaloParams&, const PackParams&, const CUtensorMap&, const CUtensorMap&, cudaStream_t);
#include "fastconv/launch/halo_sm90.def"
#undef HALO_CONFIG

namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

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

cudaError_t encode(const HaloTensorMap& map, DType dtype, const void* address, CUtensorMap* out) {
  cuuint64_t size[5], stride[4];
  for (int i = 0; i < 5; ++i) size[i] = map.size[i];
  for (int i = 0; i < 4; ++i) stride[i] = map.stride[i];
  const CUtensorMapSwizzle swizzle = map.box[0] == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : map.box[0] == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                        : CU_TENSOR_MAP_SWIZZLE_32B;
  if (encode_tiled() == nullptr) return cudaErrorNotSupported;
  const CUresult result =
      encode_tiled()(out, dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                     5, const_cast<void*>(address), size, stride, map.box, map.step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <typename T>
cudaError_t dispatch(const HaloPlan& plan, const HaloParams& params, const PackParams& pack, const CUtensorMap& in_map,
                     const CUtensorMap& filter_map, cudaStream_t stream) {
  const HaloConfig& c = plan.config;
#define HALO_CONFIG(k, m, ch, how, layout)                                                                        \
  if (c.block_k == k && c.m_blocks == m && c.channels == ch && c.staging == HaloStaging::how &&                   \
      c.filter == FilterTile::layout)                                                                             \
    return launch_halo<T, k, m, ch, HaloStaging::how, FilterTile::layout>(plan, params, pack, in_map, filter_map, \
                                                                          stream);
#include "fastconv/launch/halo_sm90.def"
#undef HALO_CONFIG
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t run_halo(const HaloPlan& plan, const ConvProblem& problem, const ConvBuffers& buffers,
                     cudaStream_t stream) {
  const bool dgrad = problem.pass == Pass::kDgrad;
  HaloParams params = plan.params;
  params.in = dgrad ? buffers.y : buffers.x;
  params.out = dgrad ? buffers.x : buffers.y;
  params.bias = dgrad ? nullptr : buffers.bias;
  params.packed_filter = buffers.workspace;

  PackParams pack;
  pack.filter = buffers.w;
  pack.packed = buffers.workspace;
  const Strides& w = problem.w_strides;
  pack.row = dgrad ? w.c : w.n, pack.col = dgrad ? w.n : w.c, pack.r = w.h, pack.s = w.w;
  pack.group = problem.k_per_group() * w.n;
  pack.rows = params.k, pack.cols = params.c;
  pack.filter_h = static_cast<int32_t>(problem.r), pack.filter_w = static_cast<int32_t>(problem.s);

  CUtensorMap in_map{}, filter_map{};
  if (plan.config.staging == HaloStaging::kTma) {
    const cudaError_t error = encode(plan.in_map, problem.dtype, params.in, &in_map);
    if (error != cudaSuccess) return error;
  }
  if (params.filter_direct) {
    const cudaError_t error = encode(plan.filter_map, problem.dtype, buffers.w, &filter_map);
    if (error != cudaSuccess) return error;
  }
  return problem.dtype == DType::kFloat16 ? dispatch<__half>(plan, params, pack, in_map, filter_map, stream)
                                          : dispatch<__nv_bfloat16>(plan, params, pack, in_map, filter_map, stream);
}

}  // namespace fastconv
