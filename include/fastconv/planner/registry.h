// The table of kernels, as the host sees it: it is expanded from launch/configs/*.def, and the CUDA library expands the
// same lines into launchers, so the two cannot disagree.
#pragma once

#include <span>
#include <string_view>

#include "fastconv/core/problem.h"
#include "fastconv/families/depthwise/any.h"
#include "fastconv/families/depthwise/banded.h"
#include "fastconv/families/depthwise/config.h"
#include "fastconv/families/depthwise/cross.h"
#include "fastconv/families/depthwise/diagonal.h"
#include "fastconv/families/depthwise/pairs.h"
#include "fastconv/families/few_channels/embed_config.h"
#include "fastconv/families/few_channels/quads_config.h"
#include "fastconv/families/few_channels/quads_wgrad_config.h"
#include "fastconv/families/few_channels/ready_quads_config.h"
#include "fastconv/families/few_channels/stem_config.h"
#include "fastconv/families/grouped/config.h"
#include "fastconv/families/grouped/planes.h"
#include "fastconv/families/halo/config.h"
#include "fastconv/families/space_to_depth/patches.h"
#include "fastconv/families/space_to_depth/subpixel.h"
#include "fastconv/families/wgrad/config.h"
#include "fastconv/planner/device_spec.h"
#include "fastconv/planner/plan.h"

namespace fastconv {

// A kernel's tile: outputs per block on the two GEMM axes, reduction per step.
struct TileShape {
  int m, n, k;
};

// What a tiled kernel reads in accesses of 16 bytes; the rest is read element by element.
enum class VectorReads : int8_t {
  kScalar,         // nothing
  kFilterVector,   // the filter, along its taps
  kChannelVector,  // both operands, along their channels
  kPixelVector,    // both operands, along their pixels
};

// A family is one template: its kernels share a planner and a launcher. Names in planner/*_family.h.
enum class KernelFamily : int8_t {
  kDirect,
  kIm2col,
  kMma,
  kDepthwise,
  kDepthwiseAny,
  kDepthwiseBanded,
  kDepthwiseDiagonal,
  kDepthwisePairs,
  kDepthwiseCross,
  kGrouped,
  kGroupedPlanes,
  kStem,
  kQuads,
  kReadyQuads,
  kQuadsWgrad,
  kEmbed,
  kHalo,
  kWgrad,
  kPatches,
  kSubpixel,
  kCpu
};

// Bits of KernelEntry::dtypes.
inline constexpr unsigned dtype_bit(DType dtype) { return 1u << static_cast<int>(dtype); }
inline constexpr unsigned kF32 = dtype_bit(DType::kFloat32);
inline constexpr unsigned kF64 = dtype_bit(DType::kFloat64);
inline constexpr unsigned kHalf = dtype_bit(DType::kFloat16) | dtype_bit(DType::kBFloat16);

struct KernelEntry {
  const char* name;  // unique, e.g. "direct_fprop_128x128"
  Pass pass;
  bool is_cuda;
  TileShape tile;
  // Null if the kernel can run the problem on the device; otherwise a sentence. Ask through offer() in planner.h, which
  // knows what holds for all.
  const char* (*why_not)(const KernelEntry&, const ConvProblem&, const DeviceSpec&);
  // Fills grid, split, workspace, cost. Only called where why_not is null, and by offer() alone.
  Plan (*plan)(const KernelEntry&, const ConvProblem&, const DeviceSpec&);
  // CUDA kernels only.
  VectorReads reads = VectorReads::kScalar;
  int thread_m = 0, thread_n = 0;  // outputs per thread
  unsigned dtypes = 0;             // element types it is compiled for
  KernelFamily family = KernelFamily::kCpu;
  int line = 0;         // of the family's .def; kernels of several passes share theirs
  HaloConfig halo{};    // of the halo engine
  WgradConfig wgrad{};  // of its weight gradient
  DepthwiseConfig depthwise{};
  DepthwiseAnyConfig depthwise_any{};
  DepthwiseBandedConfig depthwise_banded{};
  DepthwiseDiagonalConfig depthwise_diagonal{};
  DepthwisePairsConfig depthwise_pairs{};
  DepthwiseCrossConfig depthwise_cross{};
  GroupedConfig grouped{};
  GroupedPlanesConfig grouped_planes{};
  StemConfig stem{};
  QuadsConfig quads{};
  ReadyQuadsConfig ready_quads{};
  QuadsWgradConfig quads_wgrad{};
  EmbedConfig embed{};
  PatchesConfig patches{};
  SubpixelConfig subpixel{};
};

std::span<const KernelEntry> kernel_table();
const KernelEntry* find_kernel(std::string_view name);  // null if there is none

}  // namespace fastconv
