#include <type_traits>

#include "fastconv/families/pointwise/config.h"
#include "fastconv/families/pointwise/launchers.h"
#include "fastconv/launch/with_dtype.cuh"

namespace fastconv {
namespace {

template <OperandForm kForm, typename T>
Launcher taps_of(const KernelEntry& kernel) {
  return kernel.pass == Pass::kWgrad ? tap_wgrad_launcher<kForm, T>(kernel.line) : tap_launcher<kForm, T>(kernel.line);
}

template <typename T>
Launcher of_type(const KernelEntry& kernel) {
  const auto& config = kernel.config.as<PointwiseConfig>();
  if (config.taps) {
    if constexpr (std::is_same_v<T, float>) {
      switch (config.operands) {
        case OperandForm::kTf32: return taps_of<OperandForm::kTf32, T>(kernel);
        case OperandForm::kParts: return taps_of<OperandForm::kParts, T>(kernel);
        case OperandForm::kPromotedParts: return taps_of<OperandForm::kPromotedParts, T>(kernel);
        case OperandForm::kPromotedScaled: return taps_of<OperandForm::kPromotedScaled, T>(kernel);
        default: return nullptr;
      }
    } else {
      return taps_of<OperandForm::kHalf, T>(kernel);
    }
  }
  switch (kernel.pass) {
    case Pass::kFprop: return pointwise_launcher<Pass::kFprop, T>(kernel.line);
    case Pass::kDgrad: return pointwise_launcher<Pass::kDgrad, T>(kernel.line);
    case Pass::kWgrad: return pointwise_launcher<Pass::kWgrad, T>(kernel.line);
  }
  return nullptr;
}

}  // namespace

Launcher pointwise_launcher(const KernelEntry& kernel, DType dtype) {
  return with_dtype(dtype, [&]<typename T>() -> Launcher {
    if constexpr (!std::is_same_v<T, double>) return of_type<T>(kernel);
    return nullptr;
  });
}

}  // namespace fastconv
