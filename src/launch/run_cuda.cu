#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdexcept>
#include <string>

#include "fastconv/launch/launch.h"
#include "fastconv/launch/launchers.h"
#include "fastconv/planner/scaled.h"

namespace fastconv {
namespace {

template <Pass kPass, typename T>
Launcher simt_launcher(const KernelEntry& kernel) {
  return kernel.family == KernelFamily::kDirect ? direct_launcher<kPass, T>(kernel.line)
                                                : im2col_launcher<kPass, T>(kernel.line);
}

template <typename T>
Launcher simt_launcher(const KernelEntry& kernel) {
  switch (kernel.pass) {
    case Pass::kFprop: return simt_launcher<Pass::kFprop, T>(kernel);
    case Pass::kDgrad: return simt_launcher<Pass::kDgrad, T>(kernel);
    case Pass::kWgrad: return simt_launcher<Pass::kWgrad, T>(kernel);
  }
  return nullptr;
}

template <typename T>
Launcher window_launcher(const KernelEntry& kernel) {
  switch (kernel.depthwise.kind) {
    case DepthwiseKind::kSliding: return depthwise_launcher<DepthwiseKind::kSliding, T>(kernel.line);
    case DepthwiseKind::kTransposed: return depthwise_launcher<DepthwiseKind::kTransposed, T>(kernel.line);
    case DepthwiseKind::kWeights: return depthwise_launcher<DepthwiseKind::kWeights, T>(kernel.line);
  }
  return nullptr;
}

template <typename T>
Launcher half_halo_launcher(const KernelEntry& kernel) {
  constexpr OperandForm kHalf = OperandForm::kHalf;
  const int line = kernel.line;
  switch (kernel.halo.staging) {
    case HaloStaging::kTma:
      switch (kernel.halo.filter) {
        case FilterTile::kKMajor: return halo_launcher<HaloStaging::kTma, FilterTile::kKMajor, kHalf, T>(line);
        case FilterTile::kNMajor: return halo_launcher<HaloStaging::kTma, FilterTile::kNMajor, kHalf, T>(line);
        case FilterTile::kPairs: return halo_launcher<HaloStaging::kTma, FilterTile::kPairs, kHalf, T>(line);
      }
      break;
    case HaloStaging::kTransposed: return halo_launcher<HaloStaging::kTransposed, FilterTile::kKMajor, kHalf, T>(line);
    case HaloStaging::kPlanes: return halo_launcher<HaloStaging::kPlanes, FilterTile::kKMajor, kHalf, T>(line);
    case HaloStaging::kShifted: return halo_launcher<HaloStaging::kShifted, FilterTile::kKMajor, kHalf, T>(line);
    case HaloStaging::kPairs: return halo_launcher<HaloStaging::kPairs, FilterTile::kKMajor, kHalf, T>(line);
    case HaloStaging::kPixels: return halo_launcher<HaloStaging::kPixels, FilterTile::kKMajor, kHalf, T>(line);
    case HaloStaging::kFolded: return halo_launcher<HaloStaging::kFolded, FilterTile::kKMajor, kHalf, T>(line);
    case HaloStaging::kFloats: break;
  }
  return nullptr;
}

template <HaloStaging kStaging>
Launcher float_halo_launcher(const KernelEntry& kernel) {
  constexpr FilterTile kKMajor = FilterTile::kKMajor;
  switch (kernel.halo.operands) {
    case OperandForm::kTf32: return halo_launcher<kStaging, kKMajor, OperandForm::kTf32, float>(kernel.line);
    case OperandForm::kParts: return halo_launcher<kStaging, kKMajor, OperandForm::kParts, float>(kernel.line);
    case OperandForm::kPromotedParts:
      return halo_launcher<kStaging, kKMajor, OperandForm::kPromotedParts, float>(kernel.line);
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
  constexpr HaloStaging kTma = HaloStaging::kTma;
  constexpr FilterTile kPairs = FilterTile::kPairs;
  switch (kernel.halo.operands) {
    case OperandForm::kParts: return halo_launcher<kTma, kPairs, OperandForm::kParts, float>(kernel.line);
    case OperandForm::kScaled: return halo_launcher<kTma, kPairs, OperandForm::kScaled, float>(kernel.line);
    case OperandForm::kPromotedScaled:
      return halo_launcher<kTma, kPairs, OperandForm::kPromotedScaled, float>(kernel.line);
    default: return nullptr;
  }
}

Launcher float_wgrad_launcher(const KernelEntry& kernel) {
  constexpr WgradStaging kTma = WgradStaging::kTma, kFloats = WgradStaging::kFloats;
  constexpr OperandForm kParts = OperandForm::kPromotedParts, kScaled = OperandForm::kScaled,
                        kPromotedScaled = OperandForm::kPromotedScaled;
  const int line = kernel.line;
  if (kernel.wgrad.staging == kFloats) {
    return is_scaled(kernel) ? wgrad_launcher<kFloats, kPromotedScaled, float>(line)
                             : wgrad_launcher<kFloats, kParts, float>(line);
  }
  switch (kernel.wgrad.operands) {
    case kScaled: return wgrad_launcher<kTma, kScaled, float>(line);
    case kPromotedScaled: return wgrad_launcher<kTma, kPromotedScaled, float>(line);
    default: return wgrad_launcher<kTma, kParts, float>(line);
  }
}

template <typename T>
Launcher half_wgrad_launcher(const KernelEntry& kernel) {
  constexpr OperandForm kHalf = OperandForm::kHalf;
  const int line = kernel.line;
  switch (kernel.wgrad.staging) {
    case WgradStaging::kTma: return wgrad_launcher<WgradStaging::kTma, kHalf, T>(line);
    case WgradStaging::kTmaPixels: return wgrad_launcher<WgradStaging::kTmaPixels, kHalf, T>(line);
    case WgradStaging::kTmaRows: return wgrad_launcher<WgradStaging::kTmaRows, kHalf, T>(line);
    case WgradStaging::kWarps: return wgrad_launcher<WgradStaging::kWarps, kHalf, T>(line);
    case WgradStaging::kFloats: break;
  }
  return nullptr;
}

template <typename T>
Launcher half_launcher(const KernelEntry& kernel) {
  switch (kernel.family) {
    case KernelFamily::kDepthwise: return window_launcher<T>(kernel);
    case KernelFamily::kDepthwiseAny: return depthwise_any_launcher<T>(kernel.line);
    case KernelFamily::kDepthwiseBanded: return depthwise_banded_launcher<T>(kernel.line);
    case KernelFamily::kDepthwiseDiagonal: return depthwise_diagonal_launcher<T>(kernel.line);
    case KernelFamily::kDepthwisePairs: return depthwise_pairs_launcher<T>(kernel.line);
    case KernelFamily::kDepthwiseCross: return depthwise_cross_launcher<T>(kernel.line);
    case KernelFamily::kHalo: return half_halo_launcher<T>(kernel);
    case KernelFamily::kWgrad: return half_wgrad_launcher<T>(kernel);
    case KernelFamily::kGrouped: return grouped_launcher<T>(kernel.line);
    case KernelFamily::kGroupedPlanes: return grouped_planes_launcher<T>(kernel.line);
    case KernelFamily::kMma: return mma_launcher<T>(kernel.line);
    case KernelFamily::kQuads: return quads_launcher<T>(kernel.line);
    case KernelFamily::kReadyQuads: return ready_quads_launcher<T>(kernel.line);
    case KernelFamily::kQuadsWgrad: return quads_wgrad_launcher<T>(kernel.line);
    case KernelFamily::kEmbed: return embed_launcher<T>(kernel.line);
    default: return simt_launcher<T>(kernel);
  }
}

Launcher float_launcher(const KernelEntry& kernel) {
  switch (kernel.family) {
    case KernelFamily::kDepthwise: return window_launcher<float>(kernel);
    case KernelFamily::kDepthwiseAny: return depthwise_any_launcher<float>(kernel.line);
    case KernelFamily::kDepthwiseDiagonal: return depthwise_diagonal_launcher<float>(kernel.line);
    case KernelFamily::kHalo:
      switch (kernel.halo.staging) {
        case HaloStaging::kTma:
          return kernel.halo.filter == FilterTile::kPairs ? float_pairs_launcher(kernel)
                                                          : float_halo_launcher<HaloStaging::kTma>(kernel);
        case HaloStaging::kTransposed: return float_halo_launcher<HaloStaging::kTransposed>(kernel);
        case HaloStaging::kFloats: return float_halo_launcher<HaloStaging::kFloats>(kernel);
        default: return nullptr;
      }
    case KernelFamily::kWgrad: return float_wgrad_launcher(kernel);
    case KernelFamily::kGrouped: return grouped_launcher<float>(kernel.line);
    case KernelFamily::kGroupedPlanes: return grouped_planes_launcher<float>(kernel.line);
    case KernelFamily::kStem: return stem_launcher(kernel.line);
    case KernelFamily::kQuads: return quads_launcher<float>(kernel.line);
    case KernelFamily::kEmbed: return embed_launcher<float>(kernel.line);
    case KernelFamily::kMma: return mma_launcher<float>(kernel.line);
    default: return simt_launcher<float>(kernel);
  }
}

Launcher launcher_of(const KernelEntry& kernel, DType dtype) {
  if ((kernel.dtypes & dtype_bit(dtype)) == 0) return nullptr;
  if (kernel.family == KernelFamily::kPatches) return launch_patches;
  if (kernel.family == KernelFamily::kSubpixel) return launch_subpixel;
  switch (dtype) {
    case DType::kFloat32: return float_launcher(kernel);
    case DType::kFloat64: return simt_launcher<double>(kernel);
    case DType::kFloat16: return half_launcher<__half>(kernel);
    case DType::kBFloat16: return half_launcher<__nv_bfloat16>(kernel);
  }
  return nullptr;
}

}  // namespace

void run_plan(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  const Launcher launcher = launcher_of(*plan.kernel, problem.dtype);
  if (launcher == nullptr) {
    throw std::runtime_error(std::string("fastconv: ") + plan.kernel->name + " is no CUDA kernel for " +
                             to_string(problem.dtype));
  }
  if (!is_scaled(*plan.kernel)) return launcher(plan, problem, buffers, stream);
  // One of the two kernels finds its gate closed.
  ConvBuffers gated = buffers;
  gated.gate = {measure_operands(plan, problem, buffers, stream), true};
  gated.workspace = static_cast<char*>(buffers.workspace) + kRangeBytes;
  launcher(plan, problem, gated, stream);
  gated.gate.fits = false;
  const Plan& others = plan.others.front();
  launcher_of(*others.kernel, problem.dtype)(others, problem, gated, stream);
}

void run_cuda(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, void* stream) {
  // A backward pass computes the input's gradient before the weight's.
  Stream ours{static_cast<cudaStream_t>(stream), problem.pass == Pass::kWgrad};
  run_plan(plan, problem, buffers, ours);
}

}  // namespace fastconv
