// What a tiling of the halo engine comes to for a problem: tiles, stages, stores, workspace. Private to the engine's
// planner.
#pragma once

#include <limits>

#include "fastconv/core/integers.h"
#include "fastconv/families/halo/work.h"

namespace fastconv::halo {

inline constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

struct Store {
  StoreMode mode;
  int pixel_vector;
};

Store store_mode(const Work& work, const HaloConfig& config, bool linear);
// Whether rows of pixels do not begin with a sector: they then share one with the row's next tile, or the next row.
bool stores_pieces(const Work& work, Store store);
// Rows of whole, aligned words that follow each other without a gap, of all columns of the input. A row's first tile is
// whole: it ends the line in which it begins.
bool lines_can_store(const Work& work, const HaloConfig& config);

// A tiling's consequences for a problem.
struct Tiles {
  int64_t pixels;      // of a tile
  int64_t per_filter;  // tiles of one phase, group and filter tile
  int64_t filters;     // filter tiles of a group
  int64_t count;
  int64_t linear_h, linear_w;
  int64_t halo_rows, halo_pitch;
  int64_t c_blocks;
  int64_t steps;  // of all phases: a step is one tap, or a row of them on N, of one channel block
  int64_t pixel_bytes, step_bytes, part_bytes, halo_bytes, halo_stage_bytes;
  int64_t row_step, col_step;  // from a halo row, or pixel, to the next, as TapGroup counts
  RawPlanes raw;

  int64_t raw_bytes() const { return int64_t{raw.stages} * raw.stage_bytes; }
};

struct CopyWarps {
  int32_t count;
  double clocks;  // until all of a halo's copies are started and moved
};

// False if something is too large for the kernel's counters or TMA.
bool make_tiles(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Reaches& reaches,
                Tiles& out);
// False if no stages fit.
bool choose_stages(const Work& work, const HaloConfig& config, const Tiles& tiles, int64_t smem_bytes,
                   HaloTiling& tiling);
// Of all images, when runs of `run_rows` are handed out to the consumer warpgroups of all blocks.
int64_t rows_of_busiest(const Work& work, int64_t run_rows, int sm_count);
// Even shares, few lines that runs share.
int8_t choose_run_rows(const Work& work, int sm_count);
// HaloStaging::kTma: the producer warps that start the copies of a halo; the others bring the filter.
CopyWarps copy_warps(const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles, const Reaches& reaches);
// Whether many filters come from L2 for each of the tiles that two warpgroups take in turns.
bool loads_filters_twice(const HaloConfig& config, const HaloTiling& tiling);
// Whether the ring of filter stages is too short to cover the latency of L2 at all times.
bool short_of_filters(const HaloTiling& tiling, const Tiles& tiles);

// The workspace: the packed filter, then tensors as rows of pixels, then sums of shares.
struct Workspace {
  int64_t packed, in, out, sums;  // bytes

  int64_t in_offset() const { return round_up(packed, 128); }
  int64_t out_offset() const { return in_offset() + in; }
  int64_t sums_offset() const { return round_up(out_offset() + out, 16); }
  int64_t bytes() const { return sums > 0 ? sums_offset() + sums : out_offset() + out; }
};

// Of all filter tiles.
int64_t pack_rows(const Work& work, const HaloConfig& config, const Tiles& tiles);
// As it is, and so with channels in their order.
bool reads_filter_directly(const Work& work, const HaloConfig& config, const ConvProblem& problem);
Workspace workspace_of(const Work& work, const HaloConfig& config, const ConvProblem& problem, const HaloTiling& tiling,
                       const Tiles& tiles);
// Whether so many blocks can share each tile, and are at work together.
bool can_share(const Work& work, const HaloConfig& config, const HaloTiling& tiling, const Tiles& tiles, int sm_count);

}  // namespace fastconv::halo
