// What the halo engine computes for a convolution, freed of its pass, and how operands can reach it. Private to the
// engine's planner.
#pragma once

#include <cstdint>
#include <numeric>

#include "fastconv/families/halo/params.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/fold.h"
#include "fastconv/tile/plan_split.h"

namespace fastconv::halo {

inline constexpr int64_t kBlock = 64;  // pixels of an M-block

// The runs of each output phase along one dimension.
struct Axis {
  int phases;
  int end[kMaxPhases];
  Run run[kMaxTapGroups];

  int begin(int phase) const { return phase == 0 ? 0 : end[phase - 1]; }
  int runs() const { return end[phases - 1]; }
  int64_t taps() const {
    return std::accumulate(run, run + runs(), int64_t{0}, [](int64_t sum, const Run& r) { return sum + r.count; });
  }
};

// Which tensors pass through the workspace.
struct Reordering {
  bool in = false, out = false;
};

// float32 as operands, see split.h: how many parts, and what has to be written anew.
struct Splitting {
  int parts = 1;
  bool in = false, filter = false;
};

// What is computed, freed of its pass.
struct Work {
  Side in, out;  // as the products meet them
  Reordering reordering;
  Side in_planes, out_planes;  // as they are in memory
  OperandForm operands;
  Splitting splitting;
  Fold fold;  // of the input, for HaloStaging::kFolded
  Pair in_step, out_step;
  int64_t groups;
  int32_t element_bytes;  // of the tensors
  Axis h, w;
  int64_t taps;        // of all phases
  int64_t rows, cols;  // of the largest phase

  int phases() const { return h.phases * w.phases; }
  // Channels of a group of the input as TMA meets it.
  int64_t in_channels() const { return splitting.in ? split_channels(in.c, operand_of(operands)) : in.c; }
};

// The tensors as the engine meets them; not yet flattened, reordered or folded.
void sides(const ConvProblem& problem, Side& in, Side& out);
// False if there are more phases or planes than the kernels' tables have room for.
bool make_work(const ConvProblem& problem, const HaloConfig& config, Reordering reordering, Work& work);

// Whether two columns of the output that lie side by side can be computed and stored together, FilterTile::kPairs.
bool stores_pairs(const ConvProblem& problem);
// Whether every run of filter columns can be multiplied side by side.
bool takes_columns(const Work& work, const HaloConfig& config);
// Strides that a dimension of one element never uses need not be multiples of anything.
bool pixels_divisible(const Side& side, int64_t by);
bool planes_divisible(const Side& side, int64_t groups, int64_t by);
// A filter with contiguous channels needs no packing.
bool tma_can_load_filter(const ConvProblem& problem);
Splitting splitting_of(const HaloConfig& config, const ConvProblem& problem);
// Channels whose planes begin alike, to addresses that TMA takes.
int64_t plane_phases(const Side& in, int64_t groups, int64_t bytes);
// HaloStaging::kTransposed: contiguous images.
bool planes_can_stage(const Side& in, int64_t groups, Pair in_step, int64_t bytes);
Pair in_step_of(const ConvProblem& problem);
HaloStaging best_staging(const ConvProblem& problem, const Side& in, Pair in_step);
// Kernels for contiguous channels write an NCHW input anew as such, and may do so with their output in reverse.
bool reorders_input(const HaloConfig& config, const ConvProblem& problem);
bool can_reorder_output(const HaloConfig& config, const ConvProblem& problem);

// Along one dimension, under a split of its taps.
struct Reach {
  int64_t groups;  // over all phases
  int64_t extent;  // positions that a halo has beyond the outputs
  int64_t linear;  // positions a row or image must have, see linear_size
};

struct Reaches {
  Reach h, w;
  bool aligned, even;  // halos begin at columns that are multiples of 8, or 2, if tiles do
  int64_t groups() const { return h.groups * w.groups; }
};

Reaches reaches(const Work& work, TapSplit split);

}  // namespace fastconv::halo
