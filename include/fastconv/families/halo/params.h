// What the halo engine's kernels are told. Plain data, filled by plan.cpp without a GPU; forward and input
// gradient are the same computation by the time they are written here: "in" is x or dy, "out" is y or dx.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/operand_range.h"
#include "fastconv/families/halo/config.h"
#include "fastconv/families/halo/packed_filter.h"
#include "fastconv/tile/epilogue.h"
#include "fastconv/tile/raw_planes.h"
#include "fastconv/tile/reorder.h"
#include "fastconv/tile/split.h"

namespace fastconv {

inline constexpr int kMaxTapGroups = 64;
inline constexpr int kMaxPhases = 16;

// Taps that are served from one staged halo: tap (i, j) is the halo shifted by i * row_step + j * col_step bytes, of
// HaloStaging::kFloats rows and pixels.
struct TapGroup {
  int32_t dh, dw;      // input pixel of the halo's first pixel, minus in_step times the tile's first output pixel
  int32_t rows, cols;  // taps
  int32_t row_step, col_step;
  int32_t r0, s0, dr, ds;  // tap (i, j) is filter element (r0 + i * dr, s0 + j * ds)
};

// Outputs (h + i * out_step_h, w + j * out_step_w) with i < p, j < q. Forward has one phase, dgrad one per stride
// offset.
struct OutputPhase {
  int64_t offset;  // of its first pixel, elements
  int32_t group_begin, group_end;
  int32_t p, q;
  int32_t taps;
  int32_t first_step;  // of this phase in a packed filter tile; a step is one tap of one channel block
};

// A block: producer warps, one warpgroup or two of them, and two consumer warpgroups.
constexpr int halo_threads(HaloStaging staging) { return staged_by_warps(staging) ? 512 : 384; }
inline constexpr int kProducerWarps = 4;  // of a block for which no warps stage

// Of a block: they share the filter alone. Where lines are stored, each consumer warpgroup has tiles of its own, and
// half of all other warps and stages.
constexpr int halo_pipelines(bool lines) { return lines ? 2 : 1; }

inline constexpr int kLineBytes = 128;  // of memory

// Outputs in lines: so many filters of a tile pass through shared memory at once. What there is of each, from a line's
// begin on, and what keeps filters in different banks, see stream_pitch().
inline constexpr int kLineFilters = 16;
FASTCONV_HOST_DEVICE constexpr int line_pitch(int m_blocks, int element_bytes) {
  return m_blocks * 64 * element_bytes + kLineBytes + 16;
}

// Shared memory: stages of the halo, of the filter and of raw rows, then the epilogue's buffer for each consumer
// warpgroup. What prepares operands has those of the filter if nothing else waits for it, otherwise all of that. Then
// the barriers and 16 bytes that take what nobody wants; all from an address that swizzling needs.
inline constexpr int kHaloAlignment = 1024;
inline constexpr int kMaxHaloStages = 79;    // of all three: two barriers of 8 bytes each
inline constexpr int kEpilogueBytes = 8192;  // of one warpgroup, unless it stores lines
FASTCONV_HOST_DEVICE constexpr int epilogue_bytes(bool lines, int block_k, int m_blocks, int element_bytes) {
  return lines ? block_k * kLineBytes + kLineFilters * line_pitch(m_blocks, element_bytes) : kEpilogueBytes;
}
inline constexpr int kHaloBarrierBytes = 16 * (kMaxHaloStages + 1);
constexpr int halo_fixed_bytes(const HaloConfig& config, int out_bytes) {
  return kHaloAlignment + 2 * epilogue_bytes(config.lines, config.block_k, config.m_blocks, out_bytes) +
         kHaloBarrierBytes;
}

// How a warp's results reach memory.
enum class StoreMode : int32_t {
  kChannels,  // 16-byte runs of channels
  kPixels,    // runs of pixels, one channel at a time
  kPairs,     // two pixels of a channel that a thread has, FilterTile::kPairs
  kElements   // any strides
};

// Which operands are written to the workspace before the products.
enum class Prepare : int32_t {
  kNothing,
  kFilter,  // while the first halos are staged: only who brings the filter waits for it
  kInput  // and the filter, if that cannot be read as it is; everything waits for both. Or the filter alone, where the
          // output passes through the workspace too, or the filter's stages have no room for what packs it
};

struct HaloParams {
  const void* in;
  void* packed_filter;
  void* out;
  EpilogueParams epilogue;
  RangeGate gate;  // float32

  int64_t in_n, in_c, in_h, in_w;      // strides, elements
  int64_t out_n, out_k, out_h, out_w;  // out_h and out_w include the phase step
  int32_t n, c, k, height, width;      // c and k per convolution group; height, width of the input
  int32_t in_step_h, in_step_w;

  int32_t tiles;      // shares of them, if blocks share tiles
  FastDivmod shares;  // of a tile: blocks of a cluster, each with some channels of the reduction
  float* share_sums;  // what they leave for each other
  // A phase's tiles are counted as ((group * n + ..) .. * k_tiles + k_tile) * shares + share. A round of the grid takes
  // as many of one phase, then those of the next: phases share inputs, and sectors of the output.
  FastDivmod k_tiles, tiles_q, tiles_pq, tiles_npq;
  FastDivmod round, last_round;  // tiles of a phase
  FastDivmod phase_rounds;       // tiles of all phases of a round
  int32_t last_round_at;         // tile index
  int32_t tile_p, tile_q;        // rectangular tiles
  int32_t blocks_q_log2;         // M-blocks side by side in a tile, rounded up
  int32_t block_p, block_q;      // output rows and columns from an M-block to those below it and beside it
  int32_t group_p, group_q;      // and between its groups of 8 pixels
  int32_t strip;                 // columns of a group, over M-blocks side by side, that are outputs
  int32_t column_step;           // filter columns side by side on N: input pixels between them
  bool linear;                   // tiles are runs of the padded pixel order instead, see config.h
  FastDivmod linear_w, linear_h;
  int32_t tile_pixels;
  int32_t warpgroups_per_tile;  // 2: both consumer warpgroups share a tile; 1: they take turns
  int32_t run_tiles;            // that a pipeline takes one after the other

  int32_t halo_rows, halo_pitch;  // pixels
  int32_t loads, load_rows;       // copies per halo and rows in each
  int32_t copy_warps;             // HaloStaging::kTma: producer warps that start them, each at least one
  int32_t group_pitch;            // bytes between the 8-pixel groups of an M-block
  int32_t c_blocks;               // of channels, of a share, over all products of parts
  int32_t parts, groups;          // of each operand, see split.h; of the convolution
  int32_t part_bytes;             // from a part of the halo to the next, where a stage has several; `parts` is then 1
  FastDivmod part_blocks;         // those of a product of parts
  int32_t promote_from;           // c_block from which sums are promoted, see mainloop.cuh
  int32_t promote_steps;          // and after how many filter steps
  int32_t shrink_at[2];           // c_blocks before which sums of small products shrink by `shrink`, see split_scale()
  float shrink;
  RawPlanes raw;  // HaloStaging::kTransposed, kShifted; kFloats: box_w and as many stages as the halo; kTma, large
                  // tiles: box_w and advance of a copy
  FastDivmod by_halo_pitch;  // staging by threads

  int32_t data_bytes;  // of shared memory, before the barriers
  int32_t a_stages, a_stage_bytes, b_stages, steps_per_filter_tile;
  FastDivmod a_rounds, b_rounds;  // of as many stages
  bool filter_resident;
  bool filter_direct;  // filter tiles come from the filter itself, by its own tensor map; nothing is packed

  Prepare prepare;
  int32_t prepare_warps, prepare_buffer;  // that write the filter, the last of a block; their shared memory
  PackParams pack;
  Reorder in_order, out_order;   // of NCHW tensors, before the products and after them; "in" and "out" are then rows
  Split in_split, filter_split;  // of float32 operands, before the products; without parts: read as they are

  StoreMode store;
  int32_t pixel_vector;  // StoreMode::kPixels: pixels a store

  int32_t phase_count;
  OutputPhase phase[kMaxPhases];
  TapGroup group[kMaxTapGroups];
};

}  // namespace fastconv
