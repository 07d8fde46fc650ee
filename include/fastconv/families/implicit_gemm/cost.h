// How long a tiled multiply-add kernel takes, roughly.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastconv/families/implicit_gemm/config.h"
#include "fastconv/planner/cost_model.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

inline constexpr double kStepLatencyCycles = 700;  // a step cannot be shorter than its loads from device memory
inline constexpr double kTileCycles = 3000;        // first loads, tables and epilogue of a tile
inline constexpr double kUnseenF32 = 1.4;          // times what is counted: float32 took 1.3 to 1.8 on an H200

// Instructions per element that a thread moves into shared memory, counted in the compiled code: Coord, bounds,
// address, load, store.
inline constexpr double kGatherInstructions = 10;
inline constexpr double kPlainInstructions = 7;

struct TiledWork {
  int64_t tiles;  // blocks
  int64_t steps;  // of the tile's depth, per block
  double bytes;   // device memory traffic
};

inline double tiled_cost_us(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device,
                            const TiledWork& work) {
  const TileShape& tile = entry.tile;
  const GemmConfig& config = entry.config.as<GemmConfig>();
  const double threads = double(tile.m / config.thread_m) * (tile.n / config.thread_n);
  const double vector = 16.0 / static_cast<double>(element_size(problem.dtype));
  const bool vector_a = config.reads == VectorReads::kChannelVector;
  const bool vector_b = config.reads != VectorReads::kScalar;
  // Multiply-adds, four fragment elements a shared-memory read, and the operands' loads. A vector saves addresses but
  // is still stored element by element.
  const double a = tile.m / threads * (vector_a ? 1.5 + kGatherInstructions / vector : kGatherInstructions);
  const double b = tile.n / threads * (vector_b ? 1.5 + kPlainInstructions / vector : kPlainInstructions);
  const double per_depth = config.thread_m * config.thread_n + (config.thread_m + config.thread_n) / 4.0 + a + b;
  // 128 lanes; double arithmetic has half of them.
  const double lanes = problem.dtype == DType::kFloat64 ? 64 : 128;
  // 16-bit elements are converted on their way and written one by one: b1_l3 took 1.7 times what it would without.
  const double converted = element_size(problem.dtype) == 2 ? 1.6 : 1;
  const double step_cycles = threads * per_depth * tile.k / lanes * converted;
  const double tile_cycles = static_cast<double>(work.steps) * step_cycles + kTileCycles;
  // Blocks are dealt out as SMs finish; a lone block is bound by latency.
  const auto blocks_per_sm = static_cast<double>((work.tiles + device.sm_count - 1) / device.sm_count);
  const double lone = static_cast<double>(work.steps) * std::max(step_cycles, kStepLatencyCycles) + kTileCycles;
  const double unseen = problem.dtype == DType::kFloat32 ? kUnseenF32 : 1;
  const double compute = unseen * std::max(lone, blocks_per_sm * tile_cycles) / kCyclesPerUs;
  return kLaunchUs + std::max(compute, work.bytes / (kBytesPerUsPerSm * device.sm_count));
}

}  // namespace fastconv
