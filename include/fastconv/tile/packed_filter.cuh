// The filter as the halo engine wants it: for each filter tile one [block_k][channels] operand a step (tap of a channel
// block), in the order of use, swizzled, zero where K or C end. Index maths of the kernel that packs it, plain C++ as
// well as CUDA: the tests run it against brute force.
//
// A block of the grid packs some rows of a channel block. It reads segments that are as contiguous as the filter is:
// one an output channel, of its input channels and their taps, or for dgrad one an input channel. Shared memory holds
// segments as they come.
#pragma once

#include "fastconv/tile/fold.h"
#include "fastconv/tile/halo_params.h"

namespace fastconv {

inline constexpr int kPackThreads = 256;
inline constexpr int kPackTaps = 256;     // of a block
inline constexpr int kPackBytes = 46080;  // of shared memory, which holds the table of taps besides

struct PackParams {
  const void* filter;
  void* packed;
  int64_t outer, inner, r, s;  // strides, elements: from segment to segment, and in one from channel to channel
  int64_t group;               // elements between the filters of two convolution groups
  int32_t rows, cols;          // per convolution group: a row is an output channel of the engine, a column an input's
  int32_t taps, block_k;
  FastDivmod filter_w;
  // A block of the grid: block_rows rows of `channels` columns and `slab` taps.
  int32_t block_rows, channels;
  int32_t chunks_log2;          // of a row: 8 channels each
  int32_t channel_phases_log2;  // see staged_channel
  FastDivmod slab, slabs, c_blocks, row_blocks;
  bool along_cols;     // a segment goes through the columns of one row; otherwise through the rows of one column
  int32_t inner_log2;  // channels of a segment
  bool whole;          // segments are contiguous, and so are their chunks of 16 bytes
  bool taps_fastest;   // otherwise neighbouring channels lie closer than taps
  FastDivmod units;    // of a segment, one a load
  int32_t pitch;       // of segments in shared memory, elements
  int64_t blocks;      // of the grid
};

inline int32_t pack_segments(const PackParams& pack) { return pack.along_cols ? pack.block_rows : pack.channels; }
inline int32_t pack_bytes(const PackParams& pack) {
  return 2 * (pack_segments(pack) * pack.pitch + (pack.along_cols ? 0 : pack.channels));
}

struct PackBlock {
  int32_t filter_tile, group, tile_row, c_block, first_tap;
  int32_t outers, inners, count;  // segments, their channels and taps that exist
  int64_t source;                 // first element

  FASTCONV_HOST_DEVICE PackBlock(const HaloParams& params, const PackParams& pack, int32_t index) {
    int32_t k_tile;
    pack.slabs.divmod(index, index, first_tap);
    pack.c_blocks.divmod(index, index, c_block);
    pack.row_blocks.divmod(index, filter_tile, tile_row);
    params.k_tiles.divmod(filter_tile, group, k_tile);
    first_tap *= static_cast<int32_t>(pack.slab.divisor), tile_row *= pack.block_rows;
    const int32_t row = k_tile * pack.block_k + tile_row, col = c_block * pack.channels;
    const int32_t outer = pack.along_cols ? row : col, inner = pack.along_cols ? col : row;
    outers = (pack.along_cols ? pack.rows : pack.cols) - outer,
    inners = (pack.along_cols ? pack.cols : pack.rows) - inner;
    source = group * pack.group + outer * pack.outer + inner * pack.inner;
    const int32_t left = pack.taps - first_tap, slab = static_cast<int32_t>(pack.slab.divisor);
    count = left < slab ? left : slab;
  }
};

// Unit `index` of a block's loads: 8 elements where segments are whole, else one.
struct PackUnit {
  int32_t outer, at;  // segment; place in it, which is inner * slab + tap
  int32_t exist;      // elements of the unit

  FASTCONV_HOST_DEVICE PackUnit(const PackParams& pack, const PackBlock& block, int32_t index) {
    const int32_t inner_size = 1 << pack.inner_log2;
    const auto slab = static_cast<int32_t>(pack.slab.divisor);
    pack.units.divmod(index, outer, at);
    if (pack.whole) {
      at *= 8;
      const int32_t all = block.inners < inner_size ? block.inners : inner_size, left = all * slab - at;
      exist = left < 0 ? 0 : left < 8 ? left : 8;
    } else {
      int32_t inner, tap;
      if (pack.taps_fastest) {
        pack.slab.divmod(at, inner, tap);
      } else {
        tap = at >> pack.inner_log2, inner = at & (inner_size - 1);
        at = inner * slab + tap;
      }
      exist = inner < block.inners && tap < block.count;
    }
    if (outer >= block.outers) exist = 0;
  }
};

// Element of the filter.
FASTCONV_HOST_DEVICE int64_t pack_source(const PackParams& pack, const PackBlock& block, int32_t outer, int32_t at) {
  const int64_t first = block.source + outer * pack.outer;
  if (pack.whole) return first + at;
  int32_t inner, tap, r, s;
  pack.slab.divmod(at, inner, tap);
  pack.filter_w.divmod(block.first_tap + tap, r, s);
  return first + inner * pack.inner + r * pack.r + s * pack.s;
}

// Its place in shared memory. Segments of columns: eight of them further apart by 16 bytes, so that lanes that read the
// chunks of a row meet different banks.
FASTCONV_HOST_DEVICE int32_t pack_slot(const PackParams& pack, int32_t outer, int32_t at) {
  return outer * pack.pitch + at + (pack.along_cols ? 0 : outer / 8 * 8);
}

// Chunk `index` of what a block writes: 8 channels of a row and tap. Lanes side by side take a row's chunks, then taps.
struct PackChunk {
  int32_t row, tap, chunk;  // tap of the slab
  int32_t at;               // elements from the start of the packed step

  FASTCONV_HOST_DEVICE PackChunk(const PackParams& pack, const PackBlock& block, int32_t index) {
    const int32_t chunks = 1 << pack.chunks_log2;
    chunk = index & (chunks - 1);
    pack.slab.divmod(index >> pack.chunks_log2, row, tap);
    const int32_t bytes = (((block.tile_row + row) << pack.chunks_log2) + chunk) * 16;
    at = (bytes ^ (((bytes >> 7) & (chunks - 1)) << 4)) / 2;
  }

  // Where element i of the chunk lies in shared memory.
  FASTCONV_HOST_DEVICE int32_t slot(const PackParams& pack, int32_t i) const {
    const int32_t channel = staged_channel(pack.channel_phases_log2, pack.chunks_log2 + 3, chunk * 8 + i);
    const auto slab = static_cast<int32_t>(pack.slab.divisor);
    return pack.along_cols ? pack_slot(pack, row, channel * slab + tap) : pack_slot(pack, channel, row * slab + tap);
  }
};

// Where the input is folded: chunk `index` of all that is packed, straight from the filter. Of PackParams, only
// `outer`, `inner`, `r`, `s`, `rows`, `block_k`, `chunks_log2` and `blocks` count.
struct FoldedPackChunk {
  int32_t row, r, s, c0;  // row of the filter; folded tap; first of the folded channels
  int64_t at;             // elements from the start of the packed filter

  FASTCONV_HOST_DEVICE FoldedPackChunk(const HaloParams& params, const PackParams& pack, int32_t index) {
    const int32_t chunk = index & ((1 << pack.chunks_log2) - 1), tile_row = (index >> pack.chunks_log2) % pack.block_k;
    const int32_t all_steps = (index >> pack.chunks_log2) / pack.block_k;
    const int32_t k_tile = all_steps / params.steps_per_filter_tile, taps = params.phase[0].taps;
    const int32_t step = all_steps - k_tile * params.steps_per_filter_tile, c_block = step / taps;
    int32_t tap = step - c_block * taps;
    const TapGroup* group = params.group;
    for (; tap >= group->rows * group->cols; ++group) tap -= group->rows * group->cols;
    r = group->r0 + tap / group->cols * group->dr, s = group->s0 + tap % group->cols * group->ds;
    row = k_tile * pack.block_k + tile_row;
    c0 = ((c_block << pack.chunks_log2) + chunk) * 8;
    const int32_t bytes = ((tile_row << pack.chunks_log2) + chunk) * 16;
    const int64_t step_bytes = int64_t{pack.block_k} << (pack.chunks_log2 + 4);
    at = (all_steps * step_bytes + (bytes ^ (((bytes >> 7) & ((1 << pack.chunks_log2) - 1)) << 4))) / 2;
  }

  // Element of the filter that is channel i of the chunk, or -1.
  FASTCONV_HOST_DEVICE int64_t source(const PackParams& pack, const Fold& fold, int32_t i) const {
    if (row >= pack.rows || c0 + i >= fold.channels) return -1;
    const FoldedChannel& channel = fold.channel[c0 + i];
    const int32_t h = fold.h.tap(r, channel.h), w = fold.w.tap(s, channel.w);
    if (!fold.h.has_tap(h) || !fold.w.has_tap(w)) return -1;
    return row * pack.outer + channel.c * pack.inner + h * pack.r + w * pack.s;
  }
};

}  // namespace fastconv
