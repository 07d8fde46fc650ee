#include <type_traits>

#include "fastconv/families/wgrad/launchers.h"
#include "fastconv/launch/with_dtype.cuh"

namespace fastconv {
namespace {

Launcher float_wgrad_launcher(const KernelEntry& kernel) {
  const WgradConfig& config = kernel.config.as<WgradConfig>();
  constexpr WgradStaging kTma = WgradStaging::kTma, kFloats = WgradStaging::kFloats;
  constexpr OperandForm kParts = OperandForm::kPromotedParts, kScaled = OperandForm::kScaled,
                        kPromotedScaled = OperandForm::kPromotedScaled;
  const int line = kernel.line;
  if (config.staging == kFloats) {
    return is_scaled(config.operands) ? wgrad_launcher<kFloats, kPromotedScaled, float>(line)
                                      : wgrad_launcher<kFloats, kParts, float>(line);
  }
  switch (config.operands) {
    case kScaled: return wgrad_launcher<kTma, kScaled, float>(line);
    case kPromotedScaled: return wgrad_launcher<kTma, kPromotedScaled, float>(line);
    default: return wgrad_launcher<kTma, kParts, float>(line);
  }
}

template <typename T>
Launcher half_wgrad_launcher(const KernelEntry& kernel) {
  const WgradConfig& config = kernel.config.as<WgradConfig>();
  constexpr OperandForm kHalf = OperandForm::kHalf;
  const int line = kernel.line;
  switch (config.staging) {
    case WgradStaging::kTma: return wgrad_launcher<WgradStaging::kTma, kHalf, T>(line);
    case WgradStaging::kTmaPixels: return wgrad_launcher<WgradStaging::kTmaPixels, kHalf, T>(line);
    case WgradStaging::kTmaRows: return wgrad_launcher<WgradStaging::kTmaRows, kHalf, T>(line);
    case WgradStaging::kWarps: return wgrad_launcher<WgradStaging::kWarps, kHalf, T>(line);
    case WgradStaging::kFloats: break;
  }
  return nullptr;
}

}  // namespace

Launcher wgrad_launcher(const KernelEntry& kernel, DType dtype) {
  return with_dtype(dtype, [&]<typename T>() -> Launcher {
    if constexpr (std::is_same_v<T, float>) return float_wgrad_launcher(kernel);
    if constexpr (sizeof(T) == 2) return half_wgrad_launcher<T>(kernel);
    return nullptr;
  });
}

}  // namespace fastconv
