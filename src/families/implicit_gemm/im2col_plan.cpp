#include "fastconv/families/implicit_gemm/im2col_plan.h"

#include <algorithm>
#include <ostream>

#include "fastconv/core/integers.h"
#include "fastconv/families/implicit_gemm/cost.h"
#include "fastconv/families/implicit_gemm/direct_plan.h"
#include "fastconv/families/implicit_gemm/tile_config.h"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {
namespace {

// wgrad has few outputs, so its reduction is sliced until a product has as many blocks as a large GPU runs at a time;
// shorter slices than these would not pay for their sums' way through memory.
constexpr int64_t kEnoughBlocks = 256;
constexpr int64_t kMinSlicePixels = 1024;

// Of a block, at most.
int64_t grid_of(const KernelEntry& entry, const ConvProblem& problem, const Im2colBlocks& blocks) {
  const int64_t m = problem.pass == Pass::kWgrad ? blocks.taps : blocks.pixels;
  return ceil_div(m, entry.tile.m) * ceil_div(make_columns(problem).filters, entry.tile.n) * blocks.groups *
         blocks.slices;
}

}  // namespace

Im2colBlocks im2col_blocks(const KernelEntry& entry, const ConvProblem& problem) {
  Columns columns = make_columns(problem);
  columns.filters = std::max<int64_t>(1, columns.filters);
  const int64_t size = element_size(problem.dtype);
  const bool wgrad = problem.pass == Pass::kWgrad;
  // Half of the workspace each for columns and sums, so that neither depends on the other.
  const int64_t elements = kMaxWorkspaceBytes / 2 / size;
  const int64_t sum_size = problem.dtype == DType::kFloat64 ? 8 : 4;
  const int64_t sums = kMaxWorkspaceBytes / 2 / sum_size;
  const int64_t all_taps = std::max<int64_t>(1, columns.taps()), all_pixels = std::max<int64_t>(1, columns.pixels());

  Im2colBlocks blocks{};
  // Long blocks of the reduction (taps; pixels for wgrad) mean few additions in memory, so it is cut last. 64 of the
  // other axis fill a tile.
  const int64_t reduction = wgrad ? all_pixels : all_taps;
  const int64_t outputs = wgrad ? all_taps : all_pixels;
  int64_t output_block = std::min(outputs, std::max<int64_t>(64, elements / reduction));
  int64_t reduction_block = std::min(reduction, std::max<int64_t>(1, elements / output_block));
  blocks.keep_sums = reduction_block < reduction && size == 2;
  if (blocks.keep_sums) output_block = std::clamp<int64_t>(sums / columns.filters, 1, output_block);
  blocks.groups = std::clamp<int64_t>(elements / (output_block * reduction_block), 1, problem.groups);
  if (blocks.keep_sums) {
    blocks.groups = std::clamp<int64_t>(sums / (output_block * columns.filters), 1, blocks.groups);
  }
  blocks.taps = wgrad ? output_block : reduction_block;
  blocks.pixels = wgrad ? reduction_block : output_block;
  blocks.slices = 1;
  const int64_t block_sums = blocks.groups * output_block * columns.filters;
  if (wgrad) {
    const int64_t tiles =
        ceil_div(output_block, entry.tile.m) * ceil_div(columns.filters, entry.tile.n) * blocks.groups;
    const int64_t most = std::min(reduction_block / kMinSlicePixels, sums / block_sums);
    blocks.slices = std::clamp<int64_t>(kEnoughBlocks / tiles, 1, std::max<int64_t>(1, most));
    blocks.keep_sums |= blocks.slices > 1;
  }
  blocks.column_bytes = (blocks.groups * blocks.taps * blocks.pixels * size + 255) / 256 * 256;
  const int64_t sum_bytes = blocks.keep_sums ? blocks.slices * block_sums * sum_size : 0;
  blocks.workspace_bytes = blocks.column_bytes + sum_bytes;
  blocks.launches = static_cast<double>(ceil_div(problem.groups, blocks.groups)) *
                    static_cast<double>(ceil_div(all_taps, blocks.taps)) *
                    static_cast<double>(ceil_div(all_pixels, blocks.pixels));
  return blocks;
}

Offer plan_im2col(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const GemmConfig& config = entry.config.as<GemmConfig>();
  const Columns columns = make_columns(problem);
  const Im2colBlocks blocks = im2col_blocks(entry, problem);
  const int64_t grid = grid_of(entry, problem, blocks);
  if (grid > INT32_MAX) return "would need more blocks than a grid has, for so many filters";
  const int64_t depth = problem.pass == Pass::kWgrad ? blocks.pixels : blocks.taps;
  Plan plan;
  plan.kernel = &entry;
  plan.block_threads = tile_threads(entry.tile.m, entry.tile.n, config.thread_m, config.thread_n);
  plan.grid = grid;
  plan.split = blocks.slices;
  plan.smem_bytes = direct_smem_bytes(entry, problem, depth);
  plan.tiling = Im2colTiling{blocks.pixels};
  plan.workspace_bytes = blocks.workspace_bytes;
  // Columns are written, then read once for each tile of filters.
  const double column_traffic =
      static_cast<double>(blocks.column_bytes) * static_cast<double>(1 + ceil_div(columns.filters, entry.tile.n));
  const double block_us =
      tiled_cost_us(entry, problem, device, {plan.grid, ceil_div(depth, blocks.slices * kTileDepth), column_traffic}) +
      kLaunchUs + memory_us(column_traffic, device);
  plan.cost_us = blocks.launches * block_us;
  return plan;
}

void describe_im2col(std::ostream& out, const Plan& plan) { out << " chunk " << plan.tiling.as<Im2colTiling>().pixels; }

}  // namespace fastconv
