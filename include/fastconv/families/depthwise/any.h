// What the depthwise kernels for any filter compute, and what lies where. All three passes are one operation:
//   target[i] = sum over j of source[stride * i + j] * taps[j],
// where "taps" are the filter's, or for the weight gradient the pixels of dy, and targets then are the filter's taps.
// Plain C++ as well as CUDA: the tests run it against loops by definition.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"
#include "fastconv/tile/conv_coords.cuh"
#include "fastconv/tile/epilogue.h"

namespace fastconv {

// Targets of a thread.
struct DepthwiseAnyConfig {
  int32_t rows, columns;
};

inline constexpr int kDepthwiseAnyThreads = 128;  // of a block, at most
// Columns of taps that a thread multiplies at once. It reads this many values more than lie in its last row.
inline constexpr int kDepthwiseAnyChunk = 8;
inline constexpr int kDepthwiseAnyRead = 4;   // floats of an access of shared memory
inline constexpr int kDepthwiseAnyBatch = 4;  // copies that a thread has on their way at once
// Rows of the source that a thread multiplies at once, by so many columns of taps: as many as registers hold. A target
// has no more products than that in one chain.
FASTCONV_HOST_DEVICE constexpr int depthwise_any_at_once(int taps) { return taps <= 6 ? 3 : 2; }
// Weight gradient: products that a thread adds up before it puts the sum aside, which bounds rounding errors.
inline constexpr int kDepthwiseAnyChain = 64;

struct DepthwiseAnyTiling {
  int32_t lanes_h, lanes_w;  // threads of a plane's tile
  int32_t channels, images;  // whose planes a block has
  int32_t parts;             // rows of taps are dealt out to so many times the threads
  int32_t taps_h, taps_w;    // that are staged at once
  int32_t buffers;           // 2: what is needed next is on its way while this is multiplied
};

// The rows n of a strand are first + step * n; those from `low` to before `high` exist.
struct DepthwiseAnySpan {
  int32_t first, step, low, high;
};

// Targets and taps of which any two meet, and meet at row stride * i + j, without gaps. A stride that divides the
// dilation, the phases of a strided gradient: each makes several of one convolution.
struct DepthwiseAnyStrand {
  int32_t targets, target, target_step;  // how many, the first one, and from one to the next
  int32_t taps, tap, tap_step;
  int32_t source;  // of the first target and the first tap
};

// Rows or columns.
struct DepthwiseAnyAxis {
  Axis axis;
  FastDivmod strands;      // of a phase
  FastDivmod source_step;  // from a row of a strand to the next one
  FastDivmod stride;       // in rows of a strand
  int32_t tile;            // targets of a block
  int32_t taps;            // staged at once, at most

  FASTCONV_HOST_DEVICE int32_t all_strands() const { return axis.phases * static_cast<int32_t>(strands.divisor); }
  // From a target of a strand to the next one: the targets of all strands lie between.
  FASTCONV_HOST_DEVICE int32_t target_step() const { return axis.target_step * static_cast<int32_t>(strands.divisor); }
  FASTCONV_HOST_DEVICE DepthwiseAnyStrand strand(int32_t index) const {
    int32_t phase_index, i;
    strands.divmod(index, phase_index, i);
    const AxisPhase phase = axis.phase(phase_index);
    DepthwiseAnyStrand strand{};
    strand.target = phase.index + axis.target_step * i;
    strand.target_step = target_step();
    if (strand.target < axis.target_extent) {
      strand.targets = (axis.target_extent - strand.target - 1) / strand.target_step + 1;
    }
    strand.taps = phase.taps, strand.tap = phase.first_tap, strand.tap_step = axis.tap_step;
    strand.source = phase.offset + axis.source_step * i;
    // A gradient meets its taps backwards.
    if (axis.tap_source_step < 0) {
      strand.source += axis.tap_source_step * (phase.taps - 1);
      strand.tap += axis.tap_step * (phase.taps - 1);
      strand.tap_step = -axis.tap_step;
    }
    return strand;
  }

  // A stride makes classes of rows: target i and tap j meet at row i + j / stride of class j % stride. So they lie,
  // class by class, in shared memory.
  FASTCONV_HOST_DEVICE int32_t classes() const {
    const auto all = static_cast<int32_t>(stride.divisor);
    return all < taps ? all : taps;
  }
  FASTCONV_HOST_DEVICE int32_t tap_slots() const { return taps == 0 ? 0 : stride.div(taps - 1) + 1; }
  FASTCONV_HOST_DEVICE int32_t source_slots() const { return tile + tap_slots() - 1; }
  FASTCONV_HOST_DEVICE int32_t row(int32_t slot, int32_t of_class) const {
    return slot * static_cast<int32_t>(stride.divisor) + of_class;
  }
  // Of a class, taps among the first `count`; and the first slot whose row is `row` or a later one.
  FASTCONV_HOST_DEVICE int32_t slots_before(int32_t row, int32_t of_class) const {
    return row <= of_class ? 0 : stride.div(row - of_class - 1) + 1;
  }

  // Rows as targets from `target` on and taps from `tap` on see them.
  FASTCONV_HOST_DEVICE DepthwiseAnySpan source_span(const DepthwiseAnyStrand& strand, int32_t target,
                                                    int32_t first_tap) const {
    const auto step = static_cast<int32_t>(source_step.divisor);
    const int32_t first = strand.source + step * (static_cast<int32_t>(stride.divisor) * target + first_tap);
    const int32_t after = axis.source_extent - first;  // rows of the tensor, from the first on
    return {first, step, first >= 0 ? 0 : source_step.div(step - 1 - first),
            after <= 0 ? 0 : source_step.div(after - 1) + 1};
  }
  FASTCONV_HOST_DEVICE DepthwiseAnySpan tap_span(const DepthwiseAnyStrand& strand, int32_t first_tap) const {
    const int32_t left = strand.taps - first_tap;
    return {strand.tap + strand.tap_step * first_tap, strand.tap_step, 0, left < taps ? left : taps};
  }
};

// One tensor's planes in shared memory, as floats: [plane][class of rows][row][class of columns][column]. Planes are
// [channel][image].
struct DepthwiseAnyPlanes {
  Strides strides;
  int32_t slots_w, slots_h, classes_w, rows;
  int32_t class_pitch, row_pitch, plane_pitch;  // floats
  int32_t channels, images;
  int32_t lanes_log2;  // threads that share a run, which is of columns of a row or of channels of a pixel
  int32_t piece;       // elements of an access: 1, 2 or 4 that lie side by side, aligned, and exist all or none
  bool channels_inner;
  FastDivmod by_slots_w, by_slots_h, by_classes_w, by_rows, by_images;

  FASTCONV_HOST_DEVICE int32_t planes() const { return channels * images; }
  FASTCONV_HOST_DEVICE int32_t floats() const { return planes() * plane_pitch; }
};

struct DepthwiseAnyParams {
  const void* source;
  const void* taps;
  EpilogueParams epilogue;
  void* target;
  float* sums;  // wgrad: [slice][filter][tap], or null where a block writes `target` itself
  bool wgrad;
  DepthwiseAnyAxis h, w;
  DepthwiseAnyTiling tiling;
  DepthwiseAnyPlanes source_planes, tap_planes, target_planes;
  int32_t channels, images;    // of the target; of the source
  int32_t sources;             // dgrad: channels of dy for one of dx; otherwise 1
  FastDivmod by_filters;       // otherwise target channels to a source channel
  int32_t part_rows;           // rows of a class of taps that a thread takes
  int32_t run_rows;            // of the source that are multiplied at once; wgrad: then sums are put aside
  int32_t steps, slice_steps;  // of a strand, see DepthwiseAnyStep; wgrad: how many of them a slice has
  int64_t slice_sums;          // of a slice
  bool skips_rows;             // rows of padding are left out where the taps are finite
  // Of a block's number, fastest first.
  FastDivmod by_strands_h, by_tiles_w, by_tiles_h, by_channels;
  FastDivmod by_lanes_w, by_planes, by_lanes_h;
  FastDivmod by_tap_tiles_w, by_tap_tiles_h;
  // Floats of a buffer, before the taps in it, and before the sums: these lie where taps and source were if they come
  // last.
  int32_t buffer_pitch, tap_at, sum_at;

  FASTCONV_HOST_DEVICE int32_t source_channel(int32_t channel, int32_t source_index) const {
    return by_filters.div(channel) * sources + source_index;
  }
  FASTCONV_HOST_DEVICE int32_t tap_channel(int32_t channel, int32_t source_index) const {
    return channel * sources + source_index;
  }
};

// The targets of a block: of one strand of rows, and of all strands of columns, one after the other, so that it stores
// columns which lie side by side.
struct DepthwiseAnyTile {
  DepthwiseAnyStrand h;
  int32_t row, column;  // of the strands' targets, the first ones
  int32_t channel;      // the first one
  int32_t group;        // of images; wgrad: the slice
  int32_t begin, end;   // steps

  FASTCONV_HOST_DEVICE DepthwiseAnyTile(const DepthwiseAnyParams& params, int32_t block) {
    int32_t strand_h;
    params.by_strands_h.divmod(block, block, strand_h);
    params.by_tiles_w.divmod(block, block, column);
    params.by_tiles_h.divmod(block, block, row);
    params.by_channels.divmod(block, group, channel);
    h = params.h.strand(strand_h);
    row *= params.h.tile, column *= params.w.tile;
    channel *= params.tiling.channels;
    begin = params.wgrad ? group * params.slice_steps : 0;
    end = params.steps - begin < params.slice_steps ? params.steps : begin + params.slice_steps;
  }
  FASTCONV_HOST_DEVICE bool exists() const { return row < h.targets; }
};

// What a block stages at once. Its steps are all that is reduced: taps that do not fit shared memory together, and
// besides wgrad, images; dgrad, the filters of a channel.
struct DepthwiseAnyStep {
  int32_t source_index;
  int32_t first_image, images;
  int32_t tap_h, tap_w;  // of the strands' taps, the first ones; there may be none

  FASTCONV_HOST_DEVICE DepthwiseAnyStep(const DepthwiseAnyParams& params, const DepthwiseAnyTile& tile,
                                        int32_t number) {
    int32_t item;
    params.by_tap_tiles_w.divmod(number, item, tap_w);
    params.by_tap_tiles_h.divmod(item, item, tap_h);
    tap_h *= params.h.taps, tap_w *= params.w.taps;
    source_index = params.wgrad ? 0 : item;
    first_image = (params.wgrad ? item : tile.group) * params.tiling.images;
    const int32_t left = params.images - first_image;
    images = left < params.tiling.images ? left : params.tiling.images;
  }
};

// The targets of a thread, and which rows of taps it multiplies by.
struct DepthwiseAnyPlace {
  int32_t column, row;     // of the tile
  int32_t plane, channel;  // of the block's planes
  int32_t share;           // results of so many threads (wgrad: and images) are added up: this one's number
  int32_t first_tap_row;
  bool exists;

  FASTCONV_HOST_DEVICE DepthwiseAnyPlace(const DepthwiseAnyParams& params, const DepthwiseAnyConfig& config,
                                         int32_t thread) {
    int32_t lane_w, lane_h, part, image;
    params.by_lanes_w.divmod(thread, thread, lane_w);
    params.by_planes.divmod(thread, thread, plane);
    params.by_lanes_h.divmod(thread, part, lane_h);
    params.source_planes.by_images.divmod(plane, channel, image);
    exists = part < params.tiling.parts;
    column = lane_w * config.columns, row = lane_h * config.rows;
    first_tap_row = part * params.part_rows;
    share = params.wgrad ? part * params.tiling.images + image : part;
  }
};

}  // namespace fastconv
