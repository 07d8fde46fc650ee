#include "fastconv/families/implicit_gemm/mma_plan.h"

#include <algorithm>

#include "fastconv/core/integers.h"
#include "fastconv/families/implicit_gemm/config.h"
#include "fastconv/families/implicit_gemm/cost.h"
#include "fastconv/families/implicit_gemm/direct_plan.h"
#include "fastconv/families/implicit_gemm/mma_config.h"
#include "fastconv/planner/gpus.h"

namespace fastconv {
namespace {

MmaConfig config_of(const KernelEntry& entry) { return {entry.tile.m, entry.tile.n}; }

// Slices that are short enough for tensor cores.
int64_t least_split(const MmaConfig& config, const GemmExtents& gemm) {
  return std::max<int64_t>(1, ceil_div(gemm.depth, config.chain()));
}

Plan plan_of_split(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device, int64_t wanted) {
  const MmaConfig config = config_of(entry);
  const GemmExtents gemm = direct_extents(problem);
  const int64_t depth = config.depth();
  Plan plan;
  plan.kernel = &entry;
  plan.block_threads = kMmaThreads;
  plan.smem_bytes = config.smem_bytes(config.stages(device.smem_optin_bytes));
  plan.split = direct_split(problem, wanted, depth);
  plan.grid = direct_tiles(entry, gemm) * plan.split;
  plan.workspace_bytes = plan.split > 1 ? direct_slice_bytes(problem, gemm) * plan.split : 0;

  using namespace cost::mma;
  const double product_bytes = kProductBytes * product_rate(device.arch);
  const bool scalar = entry.config.as<GemmConfig>().reads == VectorReads::kScalar;
  const double copies = static_cast<double>(config.stage_bytes()) / (scalar ? 4 : kMmaChunkBytes) / kMmaThreads;
  const double clocks = !scalar ? kCopyClocks : direct_channels_inner(problem) ? kStrayClocks : kElementClocks;
  const double products = static_cast<double>(config.m) * config.n * kMmaElement * static_cast<double>(depth);
  const double step = clocks * copies + std::max(products / product_bytes, config.stage_bytes() / kL2Bytes);
  const auto steps = static_cast<double>(direct_slice_depth(problem, plan.split, depth) / depth);
  const auto waves = static_cast<double>(ceil_div(plan.grid, int64_t{device.sm_count}));
  // Memory is waited for by the last tile, too.
  plan.cost_us = time_us({.clocks = waves * (steps * step + kTileClocks) - kTileClocks,
                          .bytes = compulsory_bytes(problem) / kMemoryRate,
                          .us = kLaunchUs + compute_us(kTileClocks, device)},
                         device);
  if (plan.split > 1) {
    plan.cost_us += kLaunchUs + memory_us(2.0 * static_cast<double>(plan.workspace_bytes), device);
  }
  return plan;
}

const char* why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (problem.precision != Precision::kTf32) return "rounds to TF32";
  if (const char* why = direct_gemm_why_not(entry, problem)) return why;
  const Strides& gathered = problem.x_strides;
  const int64_t elements = kMmaChunkBytes / kMmaElement;
  if (entry.config.as<GemmConfig>().reads == VectorReads::kChannelVector &&
      (gathered.h % elements != 0 || gathered.w % elements != 0)) {
    return "copies 16 bytes at a time: also of rows and columns beyond an image of one, which are to be aligned";
  }
  const MmaConfig config = config_of(entry);
  const GemmExtents gemm = direct_extents(problem);
  const int64_t split = direct_split(problem, least_split(config, gemm), config.depth());
  if (direct_slice_depth(problem, split, config.depth()) > config.chain()) {
    return "adds up parts of long sums, which would need too much workspace";
  }
  return config.stages(device.smem_optin_bytes) < config.least_stages() ? "needs more shared memory" : nullptr;
}

}  // namespace

Offer plan_mma(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem, device)) return reason;
  const GemmExtents gemm = direct_extents(problem);
  const int64_t tiles = std::max<int64_t>(1, direct_tiles(entry, gemm));
  const int64_t least = least_split(config_of(entry), gemm);
  // A block has an SM to itself; blocks come in up to so many waves.
  constexpr int64_t kMostWaves = 4;
  Plan best = plan_of_split(entry, problem, device, least);
  for (int64_t waves = 1; waves <= kMostWaves; ++waves) {
    const int64_t wanted = waves * device.sm_count / tiles;
    if (wanted <= least) continue;
    Plan plan = plan_of_split(entry, problem, device, wanted);
    if (plan.cost_us < best.cost_us) best = plan;
  }
  return best;
}

}  // namespace fastconv
