// The table of kernels, as the host sees it. Families fill it from the lines of their .def, which the CUDA library
// expands into launchers, so that the two cannot disagree.
#pragma once

#include <climits>
#include <span>
#include <string_view>

#include "fastconv/core/problem.h"
#include "fastconv/planner/family.h"
#include "fastconv/planner/opaque.h"

namespace fastconv {

// A kernel's tile: outputs per block on the two GEMM axes, reduction per step.
struct TileShape {
  int m, n, k;
};

// Bits of KernelEntry::dtypes.
inline constexpr unsigned dtype_bit(DType dtype) { return 1u << static_cast<int>(dtype); }
inline constexpr unsigned kF32 = dtype_bit(DType::kFloat32);
inline constexpr unsigned kF64 = dtype_bit(DType::kFloat64);
inline constexpr unsigned kHalf = dtype_bit(DType::kFloat16) | dtype_bit(DType::kBFloat16);
inline constexpr unsigned kAllDtypes = kF32 | kF64 | kHalf;

// Compute capabilities x 10 that a kernel runs on, and what is said of others.
struct ArchRange {
  int least, most;
  const char* why_not;

  constexpr bool includes(int arch) const { return least <= arch && arch <= most; }
};
inline constexpr ArchRange kSm70{70, INT_MAX, "needs compute capability 7.0 or newer"};
inline constexpr ArchRange kSm75{75, INT_MAX, "needs compute capability 7.5 or newer"};
inline constexpr ArchRange kSm80{80, INT_MAX, "needs compute capability 8.0 or newer"};
inline constexpr ArchRange kSm90a{90, 90, "needs compute capability 9.0"};
inline constexpr ArchRange kCpu{0, 0, "computes on the CPU"};

struct KernelEntry {
  const char* name;  // unique, e.g. "direct_fprop_128x128"
  Pass pass;
  const Family* family;
  unsigned dtypes;  // element types that it is compiled for
  ArchRange archs;
  TileShape tile;
  Opaque<64> config;           // the family's own
  int line = 0;                // of the family's .def; kernels of several passes share theirs
  bool any_size = false;       // takes tensors without elements, and any number of them
  bool gated = false;          // can be launched beside another, where numbers decide on the device which one computes
  bool multiply_adds = false;  // sums of float32 are rounded after each product
  int scaled_parts = 0;        // of fp16 that float32 is scaled to for it, by what is measured first; see scaled.h

  bool is_cuda() const { return archs.least > 0; }
};

std::span<const KernelEntry> kernel_table();
const KernelEntry* find_kernel(std::string_view name);  // null if there is none

}  // namespace fastconv
