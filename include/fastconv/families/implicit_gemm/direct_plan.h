// What the planner and the launcher of the direct kernels must agree on.
#pragma once

#include <cstdint>

#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

// The matrix product that a pass is, per batch (a group, and in dgrad a phase of the stride).
struct GemmExtents {
  int64_t m, n, depth;
  int64_t batches;
};
GemmExtents direct_extents(const ConvProblem& problem);

// Depth of one slice: a multiple of the tile's depth.
int64_t direct_slice_depth(const ConvProblem& problem, int64_t split, int64_t tile_depth);

// Tiles of one slice, and bytes of its sums.
int64_t direct_tiles(const KernelEntry& entry, const GemmExtents& gemm);
int64_t direct_slice_bytes(const ConvProblem& problem, const GemmExtents& gemm);

// So many slices as are wanted, or as there must and may be; all have some depth.
int64_t direct_split(const ConvProblem& problem, int64_t wanted, int64_t tile_depth);

// Whether taps run over channels fastest: where the gathered tensor's channels are closer together than its columns.
bool direct_channels_inner(const ConvProblem& problem);

// Shared memory of a block whose reduction is `depth` long.
int32_t direct_smem_bytes(const KernelEntry& entry, const ConvProblem& problem, int64_t depth);

// What kernels of direct.cuh refuse whatever they multiply with.
const char* direct_gemm_why_not(const KernelEntry& entry, const ConvProblem& problem);

Offer plan_direct(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

}  // namespace fastconv
