#include "fastconv/launch/run_wgrad.h"

#include "fastconv/launch/tensor_map.h"
#include "fastconv/launch/wgrad_sm90.cuh"

namespace fastconv {

#define WGRAD_CONFIG(channels, blocks, units, warpgroups, staging)                                                     \
  extern template cudaError_t launch_wgrad<__half, channels, blocks, units, warpgroups, WgradStaging::staging>(        \
      const WgradPlan&, const WgradParams&, const CUtensorMap&, const CUtensorMap&, cudaStream_t);                     \
  extern template cudaError_t launch_wgrad<__nv_bfloat16, channels, blocks, units, warpgroups, WgradStaging::staging>( \
      const WgradPlan&, const WgradParams&, const CUtensorMap&, const CUtensorMap&, cudaStream_t);
#include "fastconv/launch/wgrad_sm90.def"
#undef WGRAD_CONFIG

namespace {

template <typename T>
cudaError_t dispatch(const WgradPlan& plan, const WgradParams& params, const CUtensorMap& x_map,
                     const CUtensorMap& y_map, cudaStream_t stream) {
  const WgradConfig& c = plan.config;
#define WGRAD_CONFIG(ch, b, u, w, staging)                                      \
  if (c.channels == ch && c.blocks == b && c.units == u && c.warpgroups == w && \
      c.tma == (WgradStaging::staging == WgradStaging::kTma))                   \
    return launch_wgrad<T, ch, b, u, w, WgradStaging::staging>(plan, params, x_map, y_map, stream);
#include "fastconv/launch/wgrad_sm90.def"
#undef WGRAD_CONFIG
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t run_wgrad(const WgradPlan& plan, const ConvProblem& problem, const ConvBuffers& buffers,
                      cudaStream_t stream) {
  WgradParams params = plan.params;
  params.x.data = buffers.x, params.y.data = buffers.y, params.w = buffers.w;
  params.partial = static_cast<float*>(buffers.workspace);

  CUtensorMap x_map{}, y_map{};
  cudaError_t error = cudaSuccess;
  if (params.x_copied) {
    error = encode_tensor_map(plan.x_map, problem.dtype, plan.config.channels * 2, buffers.x, &x_map);
  }
  if (params.y_copied && error == cudaSuccess) {
    error = encode_tensor_map(plan.y_map, problem.dtype, 128, buffers.y, &y_map);
  }
  if (error != cudaSuccess) return error;
  return problem.dtype == DType::kFloat16 ? dispatch<__half>(plan, params, x_map, y_map, stream)
                                          : dispatch<__nv_bfloat16>(plan, params, x_map, y_map, stream);
}

}  // namespace fastconv
