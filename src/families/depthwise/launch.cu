#include <type_traits>

#include "fastconv/families/depthwise/any.h"
#include "fastconv/families/depthwise/banded.h"
#include "fastconv/families/depthwise/config.h"
#include "fastconv/families/depthwise/cross.h"
#include "fastconv/families/depthwise/diagonal.h"
#include "fastconv/families/depthwise/launchers.h"
#include "fastconv/families/depthwise/pairs.h"
#include "fastconv/families/depthwise/sequence.h"
#include "fastconv/launch/with_dtype.cuh"

namespace fastconv {
namespace {

template <typename T>
Launcher window_launcher(const KernelEntry& kernel) {
  switch (kernel.config.as<DepthwiseConfig>().kind) {
    case DepthwiseKind::kSliding: return depthwise_launcher<DepthwiseKind::kSliding, T>(kernel.line);
    case DepthwiseKind::kTransposed: return depthwise_launcher<DepthwiseKind::kTransposed, T>(kernel.line);
    case DepthwiseKind::kWeights: return depthwise_launcher<DepthwiseKind::kWeights, T>(kernel.line);
  }
  return nullptr;
}

}  // namespace

Launcher depthwise_launcher(const KernelEntry& kernel, DType dtype) {
  const auto& config = kernel.config;
  return with_dtype(dtype, [&]<typename T>() -> Launcher {
    if constexpr (!std::is_same_v<T, double>) {
      if (config.holds<DepthwiseConfig>()) return window_launcher<T>(kernel);
      if (config.holds<DepthwiseAnyConfig>()) return depthwise_any_launcher<T>(kernel.line);
      if (config.holds<DepthwiseDiagonalConfig>()) return depthwise_diagonal_launcher<T>(kernel.line);
      if (config.holds<DepthwiseSequenceConfig>()) return depthwise_sequence_launcher<T>(kernel.line);
      if constexpr (!std::is_same_v<T, float>) {
        if (config.holds<DepthwiseBandedConfig>()) return depthwise_banded_launcher<T>(kernel.line);
        if (config.holds<DepthwisePairsConfig>()) return depthwise_pairs_launcher<T>(kernel.line);
        if (config.holds<DepthwiseCrossConfig>()) return depthwise_cross_launcher<T>(kernel.line);
      }
    }
    return nullptr;
  });
}

}  // namespace fastconv
