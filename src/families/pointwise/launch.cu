#include <type_traits>

#include "fastconv/families/pointwise/config.h"
#include "fastconv/families/pointwise/launchers.h"
#include "fastconv/launch/with_dtype.cuh"

namespace fastconv {

Launcher pointwise_launcher(const KernelEntry& kernel, DType dtype) {
  const bool taps = kernel.config.as<PointwiseConfig>().taps != TapReads::kNone;
  return with_dtype(dtype, [&]<typename T>() -> Launcher {
    if constexpr (!std::is_same_v<T, double>) {
      const auto of_pass = [&]<Pass kPass>() {
        return taps ? tap_launcher<kPass, T>(kernel.line) : pointwise_launcher<kPass, T>(kernel.line);
      };
      switch (kernel.pass) {
        case Pass::kFprop: return of_pass.template operator()<Pass::kFprop>();
        case Pass::kDgrad: return of_pass.template operator()<Pass::kDgrad>();
        case Pass::kWgrad: return of_pass.template operator()<Pass::kWgrad>();
      }
    }
    return nullptr;
  });
}

}  // namespace fastconv
