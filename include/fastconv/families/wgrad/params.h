// What the weight-gradient kernels for sm_90a are told. Plain data, filled by plan.cpp without a GPU.
//
// A job (see config.h) is m_blocks x 64 filters times some units, a unit being a few blocks of channels, each of
// one filter tap. Splits share out a job's pixels.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/operand_range.h"
#include "fastconv/families/wgrad/config.h"
#include "fastconv/tile/fold.h"
#include "fastconv/tile/reorder.h"
#include "fastconv/tile/split.h"
#include "fastconv/tile/tensor_map_spec.h"

namespace fastconv {

inline constexpr int kMaxWgradUnits = 64;
inline constexpr int kMaxWgradParts = 64;
inline constexpr int kMaxWgradTapGroups = 32;
inline constexpr int kMaxWgradBlocks = 4;
inline constexpr int kMaxWgradCluster = 4;
inline constexpr int kMaxWgradStages = 8;
inline constexpr int kMaxWgradSteps = 32;  // of 16 pixels a tile

// A box of x in the stage: channels from c_block on, first pixel stride * (first output pixel) + (dh, dw).
struct WgradPart {
  int32_t dh, dw;
  int32_t c_block;
};

// Block b of a unit lies at start + b * step in the stage, in units of 16 bytes; it holds filter tap (r, s)[b] of
// channels from c_block[b] on. c_block < 0: computed, but nobody's result.
struct WgradUnit {
  uint16_t start, step;
  int16_t r[kMaxWgradBlocks], s[kMaxWgradBlocks], c_block[kMaxWgradBlocks];
};

// Jobs of one tap group differ in their channels and filters only.
struct WgradTapGroup {
  int16_t part_begin, part_end, unit_begin, unit_end;
  int32_t last_dh, last_dw;  // the largest of its parts
};

// 16 pixels of a tile: where they start in a part of x and in dy, in units of 16 bytes; of WgradStaging::kFloats, y is
// (row << 8) + column.
struct WgradStep {
  uint16_t x, y;
};

// An operand that producer warps read, in boxes of rows x pitch pixels.
struct WgradOperand {
  const void* data;
  int64_t n_stride, c_stride, h_stride, w_stride;  // elements
  int32_t n, c, h, w;                              // c of a convolution group
  int32_t step_h, step_w;
  FastDivmod box_h;      // rows of a box in each image
  FastDivmod row_units;  // loads of a row
  int32_t box_rows, pitch;
  int32_t vector;  // pixels a load: 8, 4, 2 or 1
};

// How producer warps share out a box's loads of `vector` pixels x 8 channels, host and device alike. NOTES: lanes side
// by side take the chunks of one pixel where loads are whole sectors, else neighbouring pixels: either way eight lanes
// store to different banks.
inline constexpr int kWgradStagingWarps = 4;
struct WgradSharing {
  int batch;  // loads of a lane in flight together, what registers allow
  bool spread;
  int lane_units;

  constexpr WgradSharing(int vector, int chunks)
      : batch(vector == 8   ? 2
              : vector == 4 ? 3
                            : 6),
        spread(vector >= 4),
        lane_units(spread ? 32 / chunks : 32) {}
};

// WgradStaging::kTmaRows: dy's rows of pixels, which may begin 2 to 14 bytes after an address that TMA
// can take; that differs between the rows of a plane and between planes, with periods of 2^row_log2 rows and
// 2^filter_log2 filters. Each of those phases has a map of its own, of every so manieth row and filter, whose columns
// begin shift[phase] before the image's. A tile begins at the same column of all maps: its rows are so much further
// left in the image, and x is read accordingly. What lies before the image's first column is cleared in shared memory.
// A block of 64 filters is of one phase.
struct WgradRows {
  int32_t row_log2, filter_log2;
  int32_t shift[kMaxTensorMaps];  // phase = (filter phase << row_log2) + row phase
  bool shifted;                   // any of them is not 0

  // Of the rows of a tile, those of one phase are neighbours in shared memory.
  FASTCONV_HOST_DEVICE int32_t place(int32_t row, int32_t rows) const {
    return (row & ((1 << row_log2) - 1)) * (rows >> row_log2) + (row >> row_log2);
  }
  FASTCONV_HOST_DEVICE int32_t filter_phase(int32_t block) const { return block & ((1 << filter_log2) - 1); }
  // Filter number i of the block.
  FASTCONV_HOST_DEVICE int32_t filter(int32_t block, int32_t i) const {
    return (((block >> filter_log2) * 64 + i) << filter_log2) + filter_phase(block);
  }
};

// WgradStaging::kFloats: planes of dy as they lie, of 64 filters a copy. A copy begins at a multiple of 16 bytes, up to
// three pixels early. It brings a row of the tile or, where tiles have whole rows of the image, all of them.
struct WgradFloats {
  int32_t pitch;        // floats of a filter in a copy: an odd multiple of 8, for the banks when fragments are loaded
  int32_t width;        // of the image
  int32_t row_pitch;    // from one row's pixels to the next in shared memory, floats
  int32_t copy_pixels;  // from one copy to the next in the plane; 0: there is one
};

// How a block writes its part of dW, if no other block has sums of it.
enum class WgradStore : int8_t {
  kQuads,     // as the sums lie in registers, two channels of two filters at once: any strides
  kChannels,  // runs of channels, one a tap: they are contiguous
  kTaps,      // runs of channels and taps: a channel's taps are contiguous (KCRS), and the block has all of them
};
// Of 16 filters in shared memory, beside the sums: rows lie 16 bytes off a multiple of 128, for the banks' sake.
inline constexpr int kWgradStoreRows = 16;
constexpr int wgrad_store_pitch(int bytes) { return (bytes + 127) / 128 * 128 + 16; }

struct WgradParams {
  Reorder x_order, y_order;  // of NCHW operands, first of all, but for what is left of x
  FoldedRows x_fold;         // of x, likewise; without channels if it is not folded
  Split x_split, y_split;    // of float32 tensors, likewise; otherwise without parts
  WgradOperand x, y;
  WgradRows rows;
  WgradFloats floats;
  void* w;
  float* partial;
  RangeGate gate;  // float32

  // job = ((group * k_jobs + k) * c_jobs + c) * tap_groups + tap group. The blocks of a cluster are splits of one job
  // and add up what they have: block = (partial * jobs + job) * cluster + rank, split = partial * cluster + rank.
  int32_t first_block;  // of this launch
  FastDivmod jobs, tap_groups, c_jobs, k_jobs, cluster;
  int32_t splits;
  int32_t partials;  // splits / cluster; if 1, dW is written at once
  int32_t tiles;
  FastDivmod tiles_q, tiles_p;  // tile = (n * tiles_p + p) * tiles_q + q
  int32_t tile_n, tile_p, tile_q;
  int32_t stride_h, stride_w;
  // The reduction of float32 tensors goes over the tiles once for each product of parts, see split.h, or once in all if
  // x has all its parts in a stage. Part i of group g is group g + i * groups of the tensor maps. Of the largest
  // product, sums are promoted after so many step pairs.
  int32_t parts, products, groups, promotion;
  int32_t stage_parts, stage_part_bytes;  // of x

  int32_t m_blocks;              // of 64 filters
  FastDivmod units_per_m_block;  // slots of units; slot = m_block * units_per_m_block + unit
  int32_t c_blocks_per_job;
  int32_t stages, stage_bytes;
  int32_t data_bytes;  // of shared memory: the stages or, afterwards, all sums of the job and WgradStore's rows
  int32_t x_part_bytes, x_box_bytes;  // a part's room and what is copied into it; the rest stays zero
  int32_t y_block_bytes, y_box_bytes;
  int32_t y_offset;                      // of dy in a stage
  int32_t x_group_pitch, y_group_pitch;  // bytes between the groups of 8 rows of an operand
  int32_t step_pairs;
  int32_t stream_offset;    // of what ReorderStream needs of shared memory
  bool x_copied, y_copied;  // by TMA; otherwise by producer warps

  int32_t c, k;                         // of a convolution group
  int64_t w_k, w_c, w_r, w_s, w_group;  // strides, elements
  WgradStore store;
  int32_t store_pitch;  // bytes; of kChannels and kTaps
  int32_t taps, filter_w;
  bool w_pairs;  // kQuads: two neighbouring channels can be stored at once

  WgradStep step[kMaxWgradSteps];
  WgradTapGroup tap_group[kMaxWgradTapGroups];
  WgradPart part[kMaxWgradParts];
  WgradUnit unit[kMaxWgradUnits];
};
// Beside them a kernel has one tensor map an operand or, of rows of dy, kMaxTensorMaps. From sm_70 and
// CUDA 12.1 on, parameters have 32764 bytes.
static_assert(sizeof(WgradParams) <= 5120, "kernel parameters");

}  // namespace fastconv
