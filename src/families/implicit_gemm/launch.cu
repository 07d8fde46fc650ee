#include <type_traits>

#include "fastconv/families/implicit_gemm/config.h"
#include "fastconv/families/implicit_gemm/launchers.h"
#include "fastconv/launch/with_dtype.cuh"

namespace fastconv {
namespace {

template <Pass kPass, typename T>
Launcher tiled_launcher(const KernelEntry& kernel) {
  return kernel.config.as<GemmConfig>().method == GemmMethod::kDirect ? direct_launcher<kPass, T>(kernel.line)
                                                                      : im2col_launcher<kPass, T>(kernel.line);
}

}  // namespace

Launcher implicit_gemm_launcher(const KernelEntry& kernel, DType dtype) {
  return with_dtype(dtype, [&]<typename T>() -> Launcher {
    if constexpr (std::is_same_v<T, float>) {
      if (kernel.config.as<GemmConfig>().method == GemmMethod::kMma) return mma_launcher<T>(kernel.line);
    }
    switch (kernel.pass) {
      case Pass::kFprop: return tiled_launcher<Pass::kFprop, T>(kernel);
      case Pass::kDgrad: return tiled_launcher<Pass::kDgrad, T>(kernel);
      case Pass::kWgrad: return tiled_launcher<Pass::kWgrad, T>(kernel);
    }
    return nullptr;
  });
}

}  // namespace fastconv
