// How a weight gradient's taps are cut into units and boxes, and its pixels into tiles. Private to its planner.
#pragma once

#include <algorithm>

#include "fastconv/families/wgrad/work.h"

namespace fastconv::wgrad {

inline constexpr int64_t kAlignment = 1024;
// Full, empty, and one of dy's rows.
inline constexpr int64_t kBarrierBytes = 24 * kMaxWgradStages;
// Of shared memory, for what of x is written anew while products go on.
inline int64_t stream_bytes(const WgradTiling& tiling) { return tiling.streams ? kReorderStreamBytes : 0; }

struct Tap {
  int8_t h_run, w_run, i, j, c_block;
};

// One instruction's blocks: taps of one box at equal distances or, where each has its own, whole boxes in a row.
struct Unit {
  int count;
  Tap tap[kMaxWgradBlocks];
};

// The units of a job's taps, cut into tap groups of `room` units each.
struct Units {
  int count = 0, room = 0, c_blocks = 0;  // c_blocks of channels a job
  Unit unit[kMaxWgradUnits];
  bool fits = true;

  void add(const Unit& one) {
    if (count == kMaxWgradUnits) fits = false;
    if (fits) unit[count++] = one;
  }
  int groups() const { return (count + room - 1) / room; }
  int end(int group) const { return std::min(count, (group + 1) * room); }
};

void make_units(const Work& work, const WgradConfig& config, BoxTaps box_taps, int m_blocks, Units& units);

// A box of x and the taps it serves: (i, j) from the first to the last.
struct Part {
  Tap first, last;

  bool serves(const Tap& tap, BoxTaps box_taps) const {
    return first.h_run == tap.h_run && first.w_run == tap.w_run && first.c_block == tap.c_block &&
           (box_taps == BoxTaps::kAll || first.i == tap.i) && (box_taps != BoxTaps::kOne || first.j == tap.j);
  }
};

// The boxes that a tap group needs.
struct Parts {
  int count = 0;
  Part part[kMaxWgradParts];

  int find(const Tap& tap, BoxTaps box_taps) const {
    int i = 0;
    while (i < count && !part[i].serves(tap, box_taps)) ++i;
    return i;
  }
};

void make_parts(const Units& units, int group, BoxTaps box_taps, Parts& parts);
// Input of the part's first pixel, less stride times the tile's first output.
Pair offset_of(const Work& work, const Part& part);

// Of all parts of all tap groups.
struct Reach {
  int64_t most_parts = 0, all_parts = 0;
  int64_t extent_h = 0, extent_w = 0;  // positions beyond the outputs
  int64_t linear_h, linear_w;
};

Reach reach_of(const Work& work, const Units& units, BoxTaps box_taps);

// A tile in shared memory and in the image. Pixels, unless named bytes.
struct Tile {
  int64_t x_rows, x_pitch, y_rows, y_pitch;  // rows of one image
  int64_t steps;                             // of 16 pixels
  int64_t used;                              // positions that a step may read, from where it starts
  int64_t x_box_bytes, x_part_bytes, stage_part_bytes, y_box_bytes, y_block_bytes, stage_bytes;
  int64_t copies;  // of a block of dy's filters
  int64_t stages, count;
};

// WgradStaging::kFloats: a copy brings whole rows of the image, all that the tile has.
bool copies_whole_rows(const Work& work, const WgradTiling& tiling);

// False if it does not fit.
bool make_tile(const Work& work, const WgradConfig& config, const Reach& reach, const WgradTiling& tiling,
               int64_t smem_bytes, Tile& tile);

// Where a unit's blocks lie in a stage, bytes: block b at start + b * step.
struct Line {
  int64_t start, step;
};
Line line_of(const Work& work, const WgradConfig& config, BoxTaps box_taps, const Parts& parts, const Tile& tile,
             const Unit& unit);
// Blocks without a tap are computed all the same: what they read must lie in the stage.
bool spare_blocks_stay_inside(const Work& work, const WgradConfig& config, BoxTaps box_taps, const Units& units,
                              const Tile& tile);

WgradOperand x_operand(const Work& work, const WgradTiling& tiling, const Tile& tile);
WgradOperand y_operand(const Work& work, const WgradTiling& tiling, const Tile& tile);

}  // namespace fastconv::wgrad
