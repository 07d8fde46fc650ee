// How long a tiled multiply-add kernel takes, roughly. Only compared between kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "fastconv/planner/registry.h"

namespace fastconv {

inline constexpr double kCyclesPerUs = 1600;         // an H200's clock under load, 1.98 GHz at most; others are near
inline constexpr double kTensorCyclesPerUs = 1755;   // its clock as the tensor-core families count
inline constexpr double kBytesPerUsPerSm = 25e3;     // 3.3 TB/s over 132, reached by mixed reads and writes
inline constexpr double kLaunchUs = 4;               // a kernel's start and drain on an idle stream
inline constexpr double kBoxedLaunchUs = 2.5;        // the same where the copy engine brings boxes of pixels
inline constexpr int32_t kReservedSmemBytes = 1024;  // of a multiprocessor, a block, besides what it asks for
inline constexpr double kStepLatencyCycles = 700;    // a step cannot be shorter than its loads from device memory
inline constexpr double kTileCycles = 3000;          // first loads, tables and epilogue of a tile
inline constexpr double kUnseenF32 = 1.4;            // times what is counted: float32 took 1.3 to 1.8 on an H200
inline constexpr double kStoredShare = 1.12;         // where most is stored: of that the second-level cache keeps some
// Tensor cores, times what is expected: of one channel, depthwise filters take as long, and do not round; what they are
// expected to take is more.
inline constexpr double kOneChannel = 1.2;

// Instructions per element that a thread moves into shared memory, counted in the compiled code: Coord, bounds,
// address, load, store.
inline constexpr double kGatherInstructions = 10;
inline constexpr double kPlainInstructions = 7;

// Blocks of a multiprocessor.
inline int64_t resident_blocks(int64_t smem, const DeviceSpec& device, int64_t at_most) {
  return std::min((device.smem_optin_bytes + kReservedSmemBytes) / (smem + kReservedSmemBytes), at_most);
}

struct TiledWork {
  int64_t tiles;  // blocks
  int64_t steps;  // of the tile's depth, per block
  double bytes;   // device memory traffic
};

// Of two that go on at the same time: where both take as long, neither hides all of the other. NOTES: by roots, since
// pow is another one since glibc 2.29.
inline double together_us(double a, double b) { return std::sqrt(std::sqrt(a * a * a * a + b * b * b * b)); }

inline double tiled_cost_us(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device,
                            const TiledWork& work) {
  const TileShape& tile = entry.tile;
  const double threads = double(tile.m / entry.thread_m) * (tile.n / entry.thread_n);
  const double vector = 16.0 / static_cast<double>(element_size(problem.dtype));
  const bool vector_a = entry.reads == VectorReads::kChannelVector;
  const bool vector_b = entry.reads != VectorReads::kScalar;
  // Multiply-adds, four fragment elements a shared-memory read, and the operands' loads. A vector saves addresses but
  // is still stored element by element.
  const double a = tile.m / threads * (vector_a ? 1.5 + kGatherInstructions / vector : kGatherInstructions);
  const double b = tile.n / threads * (vector_b ? 1.5 + kPlainInstructions / vector : kPlainInstructions);
  const double per_depth = entry.thread_m * entry.thread_n + (entry.thread_m + entry.thread_n) / 4.0 + a + b;
  // 128 lanes; double arithmetic has half of them.
  const double lanes = problem.dtype == DType::kFloat64 ? 64 : 128;
  // 16-bit elements are converted on their way and written one by one: b1_l3 took 1.7 times what it would without.
  const double converted = element_size(problem.dtype) == 2 ? 1.6 : 1;
  const double step_cycles = threads * per_depth * tile.k / lanes * converted;
  const double tile_cycles = static_cast<double>(work.steps) * step_cycles + kTileCycles;
  // Blocks are dealt out as multiprocessors finish; a lone block is bound by latency.
  const auto blocks_per_sm = static_cast<double>((work.tiles + device.sm_count - 1) / device.sm_count);
  const double lone = static_cast<double>(work.steps) * std::max(step_cycles, kStepLatencyCycles) + kTileCycles;
  const double unseen = problem.dtype == DType::kFloat32 ? kUnseenF32 : 1;
  const double compute = unseen * std::max(lone, blocks_per_sm * tile_cycles) / kCyclesPerUs;
  return kLaunchUs + std::max(compute, work.bytes / (kBytesPerUsPerSm * device.sm_count));
}

}  // namespace fastconv
