#include <type_traits>

#include "fastconv/families/pointwise/launchers.h"
#include "fastconv/launch/with_dtype.cuh"

namespace fastconv {

Launcher pointwise_launcher(const KernelEntry& kernel, DType dtype) {
  return with_dtype(dtype, [&]<typename T>() -> Launcher {
    if constexpr (!std::is_same_v<T, double>) {
      switch (kernel.pass) {
        case Pass::kFprop: return pointwise_launcher<Pass::kFprop, T>(kernel.line);
        case Pass::kDgrad: return pointwise_launcher<Pass::kDgrad, T>(kernel.line);
        case Pass::kWgrad: return pointwise_launcher<Pass::kWgrad, T>(kernel.line);
      }
    }
    return nullptr;
  });
}

}  // namespace fastconv
