// What the kernels for narrow groups have in common for all passes, as the planner sees it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fastconv/core/integers.h"
#include "fastconv/families/grouped/walk.cuh"
#include "fastconv/planner/registry.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/extent.h"

namespace fastconv::grouped {

// Sets of filters of a group.
inline int64_t sets_of(const GroupedConfig& config, int64_t filters) { return ceil_div(filters, config.filters); }
// Pixels of a tensor as a block stages them.
GroupedRows make_rows(const ConvProblem& problem, const GroupedConfig& config, const Side& side, int64_t tile_h,
                      int64_t tile_w, int64_t tile_g);
// What a kernel walks over, by a tiling.
void set_walk(const ConvProblem& problem, const GroupedConfig& config, const GroupedTiling& tiling, GroupedWalk& walk);

// Why the kernel cannot run the problem, whatever the tiling; null if it can.
const char* grouped_why_not(const KernelEntry& entry, const ConvProblem& problem);

// f(tiling), `run` apart: those that come into question.
template <typename F>
void for_tilings(const ConvProblem& problem, const ConvMap& map, F&& f) {
  // Tiles of halved width are whole vectors of pixels.
  auto narrower = [](int64_t tile) { return tile > 16 ? std::min(tile, round_up(ceil_div(tile, 2), 8)) : 0; };
  auto lower = [](int64_t tile) { return tile > 1 ? ceil_div(tile, 2) : 0; };
  for (int64_t tile_g = 1; tile_g < 2 * problem.groups && tile_g <= 64; tile_g *= 2) {
    for (int64_t tile_q = map.w.rows; tile_q > 0; tile_q = narrower(tile_q)) {
      for (int64_t tile_p = map.h.rows; tile_p > 0; tile_p = lower(tile_p)) {
        f(GroupedTiling{static_cast<int32_t>(tile_p), static_cast<int32_t>(tile_q),
                        static_cast<int32_t>(std::min(tile_g, problem.groups)), 1});
      }
    }
  }
}

// Clocks of an SM to stage rows of a tile.
double stage_clocks(const GroupedRows& rows, int32_t tile_g);

// Bytes of a tile in whole sectors; `inner`: channels lie side by side.
double tile_bytes(const ConvProblem& problem, double pixels, int32_t tile_g, int32_t channels, bool inner);
double tile_bytes(const ConvProblem& problem, const GroupedRows& rows, int32_t tile_g);

// Blocks, how many of them an SM runs at a time, and how many tiles each goes through.
struct Blocks {
  double count, resident, tiles;
  double clocks;  // of a block, if others hide its latencies
  double bytes;   // of all, some of which are moved several times
};
double blocks_us(const ConvProblem& problem, const DeviceSpec& device, const Blocks& blocks);

}  // namespace fastconv::grouped
