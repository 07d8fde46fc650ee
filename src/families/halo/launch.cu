#include <type_traits>

#include "fastconv/families/halo/launchers.h"
#include "fastconv/launch/with_dtype.cuh"

namespace fastconv {
namespace {

template <typename T>
Launcher half_halo_launcher(const KernelEntry& kernel) {
  const HaloConfig& config = kernel.config.as<HaloConfig>();
  constexpr OperandForm kHalf = OperandForm::kHalf;
  const int line = kernel.line;
  switch (config.staging) {
    case HaloStaging::kTma:
      switch (config.filter) {
        case FilterTile::kKMajor: return halo_launcher<HaloStaging::kTma, FilterTile::kKMajor, kHalf, T>(line);
        case FilterTile::kNMajor: return halo_launcher<HaloStaging::kTma, FilterTile::kNMajor, kHalf, T>(line);
        case FilterTile::kPairs: return halo_launcher<HaloStaging::kTma, FilterTile::kPairs, kHalf, T>(line);
      }
      break;
    case HaloStaging::kTransposed: return halo_launcher<HaloStaging::kTransposed, FilterTile::kKMajor, kHalf, T>(line);
    case HaloStaging::kPlanes: return halo_launcher<HaloStaging::kPlanes, FilterTile::kKMajor, kHalf, T>(line);
    case HaloStaging::kShifted: return halo_launcher<HaloStaging::kShifted, FilterTile::kKMajor, kHalf, T>(line);
    case HaloStaging::kPixels: return halo_launcher<HaloStaging::kPixels, FilterTile::kKMajor, kHalf, T>(line);
    case HaloStaging::kFolded: return halo_launcher<HaloStaging::kFolded, FilterTile::kKMajor, kHalf, T>(line);
    case HaloStaging::kFloats: break;
  }
  return nullptr;
}

template <HaloStaging kStaging>
Launcher float_halo_launcher(const KernelEntry& kernel) {
  const HaloConfig& config = kernel.config.as<HaloConfig>();
  constexpr FilterTile kKMajor = FilterTile::kKMajor;
  switch (config.operands) {
    case OperandForm::kTf32: return halo_launcher<kStaging, kKMajor, OperandForm::kTf32, float>(kernel.line);
    case OperandForm::kParts: return halo_launcher<kStaging, kKMajor, OperandForm::kParts, float>(kernel.line);
    case OperandForm::kPromotedParts:
      if constexpr (kStaging != HaloStaging::kTransposed) {
        return halo_launcher<kStaging, kKMajor, OperandForm::kPromotedParts, float>(kernel.line);
      }
      break;
    case OperandForm::kScaled:
      if constexpr (kStaging == HaloStaging::kTma) {
        return halo_launcher<kStaging, kKMajor, OperandForm::kScaled, float>(kernel.line);
      }
      break;
    case OperandForm::kPromotedScaled:
      return halo_launcher<kStaging, kKMajor, OperandForm::kPromotedScaled, float>(kernel.line);
    case OperandForm::kHalf: break;
  }
  return nullptr;
}

Launcher float_pairs_launcher(const KernelEntry& kernel) {
  const HaloConfig& config = kernel.config.as<HaloConfig>();
  constexpr HaloStaging kTma = HaloStaging::kTma;
  constexpr FilterTile kPairs = FilterTile::kPairs;
  switch (config.operands) {
    case OperandForm::kParts: return halo_launcher<kTma, kPairs, OperandForm::kParts, float>(kernel.line);
    case OperandForm::kScaled: return halo_launcher<kTma, kPairs, OperandForm::kScaled, float>(kernel.line);
    case OperandForm::kPromotedScaled:
      return halo_launcher<kTma, kPairs, OperandForm::kPromotedScaled, float>(kernel.line);
    default: return nullptr;
  }
}

Launcher float_launcher(const KernelEntry& kernel) {
  const HaloConfig& config = kernel.config.as<HaloConfig>();
  switch (config.staging) {
    case HaloStaging::kTma:
      return config.filter == FilterTile::kPairs ? float_pairs_launcher(kernel)
                                                 : float_halo_launcher<HaloStaging::kTma>(kernel);
    case HaloStaging::kTransposed: return float_halo_launcher<HaloStaging::kTransposed>(kernel);
    case HaloStaging::kFloats: return float_halo_launcher<HaloStaging::kFloats>(kernel);
    default: return nullptr;
  }
}

}  // namespace

Launcher halo_launcher(const KernelEntry& kernel, DType dtype) {
  return with_dtype(dtype, [&]<typename T>() -> Launcher {
    if constexpr (std::is_same_v<T, float>) return float_launcher(kernel);
    if constexpr (sizeof(T) == 2) return half_halo_launcher<T>(kernel);
    return nullptr;
  });
}

}  // namespace fastconv
