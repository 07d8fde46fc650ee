#include "fastconv/norm/walk.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "fastconv/core/integers.h"
#include "fastconv/planner/cost.h"

namespace fastconv {
namespace {

constexpr int kMostWaves = 4;
constexpr int64_t kLeastItems = 4;  // of a block, unless there are fewer

int64_t elements_at_once(const NormProblem& problem) { return kNormVectorBytes / element_size(problem.dtype); }

// So many channels of an image begin and end with a vector.
int64_t whole_channels(const NormProblem& problem, int64_t vector) { return vector / std::gcd(vector, problem.pixels); }

void walk_pixels(NormWalk& walk, int64_t vector) {
  const int64_t period = std::lcm(walk.channels, vector), vectors = period / vector;
  walk.run = FastDivmod(walk.channels), walk.step_c = 1;
  if (vectors <= kNormThreads) {
    const int64_t periods = std::min(kNormThreads / vectors, ceil_div(walk.total, period));
    walk.threads = static_cast<int32_t>(periods * vectors);
    walk.row_stride = walk.row_extent = walk.group_extent = periods * period;
    walk.tile_channels = FastDivmod(walk.channels), walk.step = static_cast<int32_t>(walk.channels);
    walk.fold = static_cast<int32_t>(walk.row_extent / walk.channels);
  } else {
    walk.threads = kNormThreads;
    walk.row_stride = walk.row_extent = period;
    walk.group_stride = walk.group_extent = kNormThreads * vector;
    walk.groups = static_cast<int32_t>(ceil_div(vectors, kNormThreads));
    walk.tile_channels = FastDivmod(walk.group_extent), walk.fold = 1;
    walk.row_parts = static_cast<int32_t>(period / walk.channels);
  }
  walk.apart_in_rows = true, walk.apart = walk.row_extent;
}

void walk_images(NormWalk& walk, const NormProblem& problem, int64_t vector) {
  // As many elements of a channel as a thread reads at once are of one image where they fill half a tile, or of many.
  const bool apart_in_image = vector == 1 && 2 * problem.pixels > kNormThreads * elements_at_once(problem);
  const int64_t of_thread = apart_in_image ? elements_at_once(problem) : vector, tile = kNormThreads * of_thread;
  // Elements of a sum that a block gets of a thread: of a vector of one channel, or of elements that lie apart.
  const int64_t of_sum = problem.pixels % vector == 0 ? vector : 1;
  const int64_t whole = whole_channels(problem, vector);
  // Of places in a tile, none of which is as large as a large image.
  walk.run = FastDivmod(std::min<int64_t>(problem.pixels, INT32_MAX)), walk.step = 1;
  walk.row_stride = walk.row_extent = problem.c * problem.pixels;
  int64_t tiles = 1;
  if (whole * problem.pixels <= kNormThreads * vector) {
    const int64_t channels = std::min(problem.c, tile / (whole * problem.pixels) * whole);
    walk.threads = static_cast<int32_t>(channels * problem.pixels / vector);
    walk.group_stride = walk.group_extent = channels * problem.pixels;
    walk.tile_channels = FastDivmod(channels);
    walk.step_c = walk.fold = static_cast<int32_t>(problem.pixels / of_sum);
  } else {
    tiles = ceil_div(problem.pixels, tile);
    walk.threads = static_cast<int32_t>(ceil_div(problem.pixels, tiles * of_thread));
    walk.tile_stride = walk.threads * of_thread;
    walk.group_stride = walk.group_extent = problem.pixels;
    walk.tile_channels = FastDivmod(1), walk.step_c = walk.fold = walk.threads;
  }
  walk.groups = static_cast<int32_t>(ceil_div(walk.row_extent, walk.group_stride));
  walk.tiles = FastDivmod(tiles);
  walk.apart_in_rows = !apart_in_image, walk.apart = apart_in_image ? walk.threads : walk.row_extent;
}

// That run at once. Blocks that wait for each other would wait for a collective in another stream too, if it had taken
// a place that they need; and that may wait for what comes after them. So a place of each multiprocessor is left free.
int64_t blocks_per_sm(const DeviceSpec& device) {
  constexpr int64_t kRingBytes = kNormRingVectors * kNormThreads * kNormVectorBytes;
  return std::max<int64_t>(resident_blocks(kRingBytes, device, kNormBlocks) - 1, 1);
}

// How many blocks share a group: as few as keep the GPU busy, where `room` blocks run at once, one wave after another.
int64_t slices_of(const NormWalk& walk, int64_t room, int64_t rows_of_item) {
  const int64_t most = ceil_div(walk.items * rows_of_item, kLeastItems);
  int64_t best = 1;
  double best_busy = 0;
  for (int waves = 1; waves <= kMostWaves; ++waves) {
    const int64_t slices = std::clamp<int64_t>(waves * room / walk.groups, 1, std::min<int64_t>(most, walk.items)),
                  blocks = slices * walk.groups;
    const double busy = static_cast<double>(blocks) / static_cast<double>(ceil_div(blocks, room) * room);
    if (busy > best_busy + 0.05) best = slices, best_busy = busy;
  }
  return best;
}

}  // namespace

int norm_vector(const NormProblem& problem) {
  const int64_t vector = elements_at_once(problem);
  if (problem.elements() % vector != 0) return 1;
  if (problem.channels_last || problem.pixels % vector == 0) return static_cast<int>(vector);
  const bool in_a_tile = whole_channels(problem, vector) * problem.pixels <= kNormThreads * vector;
  return problem.c * problem.pixels % vector == 0 && in_a_tile ? static_cast<int>(vector) : 1;
}

NormPlan plan_norm(const NormProblem& problem, const DeviceSpec& device) {
  NormPlan plan{};
  const int vector = norm_vector(problem);
  plan.reads = vector == 1                                             ? NormReads::kApart
               : problem.channels_last || problem.pixels % vector != 0 ? NormReads::kChannels
                                                                       : NormReads::kChannel;
  NormWalk& walk = plan.walk;
  walk.total = problem.elements(), walk.channels = problem.c;
  walk.groups = walk.row_parts = 1, walk.channels_last = problem.channels_last;
  if (problem.channels_last) {
    walk_pixels(walk, vector);
  } else {
    walk_images(walk, problem, vector);
  }
  const int64_t rows_of_item = plan.reads == NormReads::kApart && walk.apart_in_rows ? elements_at_once(problem) : 1;
  walk.row_stride *= rows_of_item;
  walk.items = static_cast<int32_t>(ceil_div(walk.total, walk.row_stride) * walk.tiles.divisor);
  plan.room = device.sm_count * blocks_per_sm(device);
  walk.slices = static_cast<int32_t>(slices_of(walk, plan.room, rows_of_item));
  return plan;
}

}  // namespace fastconv
