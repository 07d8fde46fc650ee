// Weight gradient of narrow groups: what a block stages, multiplies and adds up. Plain data and its index maths; the
// tests run them against brute force.
//
// A block has the tiles of pixels of one part of all of them, one after the other, and some units of some groups: a
// unit is a set of filters and some rows of the filter (walk.cuh), each a tap of a chunk of channels. It stages
// the input as the forward pass does, and the gradient of the output in the same way, without a halo. The pixels of a
// tile are dealt out to slices of the block's threads, which have a set of sums each. These are added, slice by slice,
// and the parts by a second kernel.
#pragma once

#include <cstdint>

#include "fastconv/families/grouped/walk.cuh"

namespace fastconv {

struct GroupedWgradParams : GroupedWalk {
  GroupedRows y_rows;
  int32_t reduction;           // rows of a group's filters
  int32_t units, block_units;  // of a group: all; that a block has
  int32_t slices;
  int32_t tiles, part_tiles;  // of pixels: all; of a part
  int32_t parts;
  int32_t job_quads;  // of sums
  FastDivmod by_jobs, by_block_units, by_sets, by_slices;
  FastDivmod by_job_quads, by_job_threads;  // threads that share a slice
  // Shared memory, bytes: a row of zeros; from there on two stages, gradients after input, and at the end the sums.
  int32_t y_at, stage_bytes;
};

// What a block adds up.
struct GroupedJob {
  int32_t index, part;
  int32_t group_block, first_unit;  // of each group
  int32_t tile, end;                // tiles of pixels

  FASTCONV_HOST_DEVICE GroupedJob(const GroupedWgradParams& params, int32_t block) {
    params.by_jobs.divmod(block, part, index);
    params.by_group_blocks.divmod(index, first_unit, group_block);
    first_unit *= params.block_units;
    tile = part * params.part_tiles;
    end = tile + params.part_tiles < params.tiles ? tile + params.part_tiles : params.tiles;
  }

  FASTCONV_HOST_DEVICE GroupedTile pixels(const GroupedWgradParams& params, int32_t tile) const {
    return {params, tile * static_cast<int32_t>(params.by_group_blocks.divisor) + group_block};
  }
};

// One of a job's units.
struct GroupedWgradUnit {
  bool exists;
  int32_t group;  // of the job
  int32_t first_row, first_filter;

  FASTCONV_HOST_DEVICE GroupedWgradUnit(const GroupedWgradParams& params, const GroupedConfig& config,
                                        const GroupedJob& job, int32_t unit) {
    int32_t run, set;
    params.by_block_units.divmod(unit, group, unit);
    unit += job.first_unit;
    exists = group < params.tile_g && job.group_block * params.tile_g + group < params.groups && unit < params.units;
    params.by_sets.divmod(unit, run, set);
    first_row = run * config.unit_rows(), first_filter = set * config.filters;
  }
};

// Where a pixel of a tile has its first row of input, bytes, if it exists.
struct GroupedWgradPixel {
  bool exists;
  int32_t row;

  FASTCONV_HOST_DEVICE GroupedWgradPixel(const GroupedWgradParams& params, const GroupedTile& tile, int32_t pixel) {
    int32_t line, column;
    params.named.find(pixel, line, column);
    exists = line < tile.rows && column < tile.columns;
    row = line * params.row_bytes + column * params.column_bytes;
  }
};

// Of a unit, one of the four sums of a thread's quad. On tensor cores as products leave them (ptx/mma.cuh), 16 channels
// by 8 filters a quad; otherwise the four channels of a row.
struct GroupedSum {
  int32_t row, channel, filter;

  FASTCONV_HOST_DEVICE GroupedSum(const GroupedConfig& config, int32_t thread, int32_t quad, int32_t value) {
    if (config.operands == GroupedOperands::kFloat) {
      row = quad / config.filters, channel = value, filter = quad % config.filters;
    } else {
      const int32_t tiles = config.filters / 8;
      const int32_t at = quad / tiles * 16 + thread / 4 + value / 2 * 8;
      row = at / config.chunk(), channel = at % config.chunk();
      filter = quad % tiles * 8 + thread % 4 * 2 + value % 2;
    }
  }

  // Its element of dW, from the first one of the job's groups on; negative if there is none.
  FASTCONV_HOST_DEVICE int64_t element(const GroupedWgradParams& params, const GroupedTile& tile,
                                       const GroupedWgradUnit& unit) const {
    const int32_t at = unit.first_row + row, k = unit.first_filter + filter;
    if (!unit.exists || at >= params.reduction || k >= params.filters) return -1;
    const GroupedTap tap = tile.tap(params, at);
    if (channel >= tap.channels) return -1;
    return unit.group * params.filter_group + k * params.filter.n + tap.filter + channel * params.filter.c;
  }
};

}  // namespace fastconv
