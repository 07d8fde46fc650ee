// Weight gradient of images of one to four channels, of 16 bits: what blocks stage, multiply and store. A product sums
// up 16 pixels of a row; filters are its rows and taps its columns, of one channel, so that a lane that reads the quads
// of four pixels at its tap (families/few_channels/quads.h) has its share of as many products as there are channels.
//
// A block goes through tiles of pixels for a job: 64 filters and some units of taps. Each of its warps has a unit;
// those that have the same share the steps of a tile. Sums remain in registers; those of a block's warps and then of
// all blocks are added in order.
#pragma once

#include <cstdint>

#include "fastconv/families/few_channels/quads.h"
#include "fastconv/families/few_channels/quads_wgrad_config.h"

namespace fastconv {

struct QuadsWgradParams : QuadsParams {
  int32_t tap_units, slices;           // of a block: of taps, and of steps
  int32_t pitch;                       // of dy in shared memory, bytes: from a pixel, or filter, to the next
  int32_t y_at, y_bytes;               // of its first stage; of each
  FastDivmod by_jobs, by_unit_blocks;  // of blocks, of jobs
  FastDivmod by_slices, by_row_steps;
  FastDivmod by_inner, by_middle;               // of a chunk's index
  int32_t inner_step, middle_step, outer_step;  // of dy, elements
  int32_t middle_bytes, outer_bytes;            // in shared memory, the former beyond the chunks themselves
  int32_t next_inner, next_middle, next_outer, next_offset, next_place;  // from one of a thread's chunks to its next
};

struct QuadsWgradJob {
  int32_t walker, first_filter, first_unit;

  FASTCONV_HOST_DEVICE QuadsWgradJob(const QuadsWgradParams& params, int32_t block) {
    int32_t job;
    params.by_jobs.divmod(block, walker, job);
    params.by_unit_blocks.divmod(job, first_filter, first_unit);
    first_filter *= kQuadsWgradFilters, first_unit *= params.tap_units;
  }
};

// Eight neighbours of dy that are copied at once, of a pixel's filters or of a filter's pixels: by filters, columns and
// rows of the tile, or by columns, rows and filters, the fastest first. A thread has every kQuadsWgradThreads-th.
struct QuadsWgradChunk {
  int32_t inner, middle, outer;
  int32_t offset;  // of dy, elements from the first one of the tile and the job
  int32_t place;   // in shared memory, bytes

  FASTCONV_HOST_DEVICE QuadsWgradChunk(const QuadsWgradParams& params, int32_t index) {
    params.by_inner.divmod(index, middle, inner);
    params.by_middle.divmod(middle, outer, middle);
    offset = outer * params.outer_step + middle * params.middle_step + inner * params.inner_step;
    place = outer * params.outer_bytes + (middle * static_cast<int32_t>(params.by_inner.divisor) + inner) * 16 +
            middle * params.middle_bytes;
  }
  // NOTES: without branches, which lanes would take one by one.
  FASTCONV_HOST_DEVICE void next(const QuadsWgradParams& params, bool channels_inner) {
    const auto inners = static_cast<int32_t>(params.by_inner.divisor);
    const auto middles = static_cast<int32_t>(params.by_middle.divisor);
    middle += params.next_middle, outer += params.next_outer;
    offset += params.next_offset, place += params.next_place;
    if (!channels_inner) {  // of filters a thread has the same eight
      inner += params.next_inner;
      const bool ends = inner >= inners;
      inner -= ends ? inners : 0, middle += ends;
      offset += ends ? params.middle_step - inners * params.inner_step : 0;
    }
    const bool ends = middle >= middles;
    middle -= ends ? middles : 0, outer += ends;
    offset += ends ? params.outer_step - middles * params.middle_step : 0;
    place += ends ? params.outer_bytes - middles * (inners * 16 + params.middle_bytes) : 0;
  }

  FASTCONV_HOST_DEVICE int32_t row(bool channels_inner) const { return channels_inner ? outer : middle; }
  FASTCONV_HOST_DEVICE int32_t column(bool channels_inner) const { return channels_inner ? middle : inner * 8; }
  FASTCONV_HOST_DEVICE int32_t filter(bool channels_inner) const { return channels_inner ? inner * 8 : outer; }
};
static_assert(kQuadsWgradThreads % (kQuadsWgradFilters / 8) == 0);
FASTCONV_HOST_DEVICE int32_t quads_wgrad_chunks(const QuadsWgradParams& params) {
  return params.tile_p * params.tile_q * (kQuadsWgradFilters / 8);
}

// Where a step's first pixel is staged.
FASTCONV_HOST_DEVICE int32_t quads_wgrad_place(const QuadsWgradParams& params, int32_t step) {
  int32_t row, column;
  params.by_row_steps.divmod(step, row, column);
  return params.place(row * params.h.source_step, column * kQuadsWgradStep * params.w.source_step);
}
// A lane's pixels of a step, as products have them, without its first one's, which is 2 * (lane % 4).
FASTCONV_HOST_DEVICE constexpr int32_t quads_wgrad_pixel(int32_t index) { return index % 2 + index / 2 * 8; }
// The tap that is a column of a group of eight.
FASTCONV_HOST_DEVICE constexpr int32_t quads_wgrad_tap(const QuadsWgradConfig& config, int32_t unit, int32_t group,
                                                       int32_t column) {
  return (unit * config.groups() + group) * 8 + column;
}

// The element of dW, [filter][channel][tap], that is sum number `value` of a lane's quad, of a block of 16 filters and
// a product's columns; -1 if there is none.
FASTCONV_HOST_DEVICE int32_t quads_wgrad_element(const QuadsWgradConfig& config, const QuadsWgradParams& params,
                                                 const QuadsWgradJob& job, int32_t unit, int32_t lane, int32_t quad,
                                                 int32_t value) {
  const int32_t tile = quad % config.tiles(), channel = tile % config.channels;
  const int32_t filter = job.first_filter + quad / config.tiles() * 16 + value / 2 * 8 + lane / 4;
  const int32_t tap = quads_wgrad_tap(config, job.first_unit + unit, tile / config.channels, lane % 4 * 2 + value % 2);
  const bool exists = filter < params.filters && channel < params.channels && tap < params.taps;
  return exists ? (filter * params.channels + channel) * params.taps + tap : -1;
}

}  // namespace fastconv
