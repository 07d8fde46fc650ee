// What the sm_90a weight gradient computes for a convolution, and how its operands lie. Private to its planner.
#pragma once

#include <cstdint>

#include "fastconv/families/wgrad/params.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/fold.h"

namespace fastconv::wgrad {

inline constexpr int64_t kMaxStride = 8;  // of TMA
inline constexpr int64_t kFilters = 64;   // a block of M
inline constexpr int64_t kYRowBytes = kFilters * 2;

inline int32_t i32(int64_t v) { return static_cast<int32_t>(v); }

struct Axis {
  int runs = 0;
  Run run[kMaxStride];

  int64_t most() const { return run[0].count; }  // taps of a run
};

struct Work {
  Side x, y;            // as the products meet them
  int parts = 0;        // of float32 tensors, which pass through the workspace as such, see split.h
  Operand operand{};    // then
  bool floats = false;  // but for dy: WgradStaging::kFloats
  bool reorder_x = false, reorder_y = false;
  FoldedRows fold{};        // of x, if it has pixels
  Side x_planes, y_planes;  // as they are in memory
  Pair stride;
  int64_t groups;
  bool pointwise;
  Axis h, w;

  // Of the values of x and dy.
  int products() const { return parts > 0 ? split_products(parts) : 1; }
  // Of the reduction over all pixels.
  int passes() const { return floats ? 1 : products(); }
  // Of x, side by side in a stage.
  int stage_parts() const { return floats ? parts : 1; }
  // Whether operands pass through the workspace first.
  bool prepares() const { return parts > 0 || reorder_x || reorder_y || fold.pixels > 0; }
};

Work make_work(const ConvProblem& problem, const WgradConfig& config, bool fold);

// Whether TMA brings all of an operand.
struct Copied {
  bool x, y;
};

bool copyable(const Side& side, int64_t groups);
bool pixels_copyable(const Side& side, int64_t groups);
bool rows_copyable(const Side& y, int64_t groups);
Copied copied_operands(const Work& work, WgradStaging staging);

// How dy's rows of pixels lie to addresses that TMA takes.
struct RowPhases {
  int64_t rows, filters;
  int64_t lead;  // of the columns of the maps, the most
};
RowPhases row_phases_of_y(const Side& y);
// Columns that tiles begin before the image.
int64_t lead_of(const Work& work, WgradStaging staging);
// Blocks of filters; each is of one phase.
int64_t filter_blocks(const Work& work, WgradStaging staging);

// The workspace: operands as rows of pixels, counters of what is streamed, which depend on the plan, then partial sums.
struct Workspace {
  int64_t x, y, done;  // bytes

  int64_t y_offset() const { return x; }
  int64_t done_offset() const { return x + y; }
  int64_t partial_offset() const { return x + y + done; }
};
Workspace workspace_of(const Work& work);

}  // namespace fastconv::wgrad
