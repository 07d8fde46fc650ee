// How long a tiled multiply-add kernel takes, roughly.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastconv/families/implicit_gemm/config.h"
#include "fastconv/planner/cost.h"
#include "fastconv/planner/gpus.h"
#include "fastconv/planner/registry.h"

namespace fastconv::cost {
#include "fastconv/families/implicit_gemm/costs.def"
}

namespace fastconv {

struct TiledWork {
  int64_t tiles;  // blocks
  int64_t steps;  // of the tile's depth, per block
  double bytes;   // device memory traffic
};

inline double tiled_cost_us(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device,
                            const TiledWork& work) {
  using namespace cost::multiply_adds;
  const TileShape& tile = entry.tile;
  const GemmConfig& config = entry.config.as<GemmConfig>();
  const double threads = double(tile.m / config.thread_m) * (tile.n / config.thread_n);
  const double vector = 16.0 / static_cast<double>(element_size(problem.dtype));
  const bool vector_a = config.reads == VectorReads::kChannelVector;
  const bool vector_b = config.reads != VectorReads::kScalar;
  // Multiply-adds, four fragment elements a shared-memory read, and the operands' loads.
  const double a = tile.m / threads * (vector_a ? kVectorElement + kGather / vector : kGather);
  const double b = tile.n / threads * (vector_b ? kVectorElement + kPlain / vector : kPlain);
  const double per_depth = config.thread_m * config.thread_n + (config.thread_m + config.thread_n) / 4.0 + a + b;
  // Double arithmetic has half the lanes.
  const double lanes = sm_rates(device.arch).multiply_adds / (problem.dtype == DType::kFloat64 ? 2 : 1);
  const double converted = element_size(problem.dtype) == 2 ? kConverted : 1;
  const double step = kInstruction * threads * per_depth * tile.k / lanes * converted;
  const double block = static_cast<double>(work.steps) * step + kTileClocks;
  // Blocks are dealt out as SMs finish; a lone block is bound by latency.
  const auto blocks_per_sm = static_cast<double>((work.tiles + device.sm_count - 1) / device.sm_count);
  const double lone = static_cast<double>(work.steps) * std::max<double>(step, kStepClocks) + kTileClocks;
  const double unseen = problem.dtype == DType::kFloat32 ? kUnseenF32 : 1;
  return time_us({.clocks = unseen * std::max(lone, blocks_per_sm * block), .bytes = work.bytes, .us = kLaunchUs},
                 device);
}

}  // namespace fastconv
