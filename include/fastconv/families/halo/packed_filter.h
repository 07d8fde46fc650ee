// The filter as the halo engine wants it: for each filter tile one [block_k][channels] operand a step (tap of a channel
// block), in the order of use, swizzled, zero where K or C end. Plain data and the index maths of packing it: the tests
// run them against brute force; see pack_filter.cuh.
//
// It is packed by pieces: some rows of a channel block. A piece is read as segments that are as contiguous as the
// filter is, one an output channel, of its input channels and their taps, or for dgrad one an input channel. Shared
// memory holds them as they come.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/tile/raw_planes.h"

namespace fastconv {

inline constexpr int kPackers = 8;        // warps, the last of a block, if they have nothing else to do
inline constexpr int kPackCopies = 4;     // of segments, a thread, for the pieces that are packed at once
inline constexpr int kMaxPackTaps = 720;  // so that a row of 64 channels fits
// Of shared memory: what packing needs beside pieces for so many taps, a barrier too; and with them where there is
// room.
FASTCONV_HOST_DEVICE constexpr int pack_table_bytes(int taps) { return (8 * taps + 8 + 15) / 16 * 16; }
inline constexpr int kPackBytes = 94208 + pack_table_bytes(kMaxPackTaps);

struct PackParams {
  const void* filter;
  int64_t row, col, r, s;  // strides, elements: a row is an output channel of the engine, a column an input channel
  int64_t group;           // elements between the filters of two convolution groups
  int32_t rows, cols;      // per convolution group
  int32_t block_k_log2, channels_log2, piece_rows_log2;
  int32_t filters_log2;         // of a tile: rows of an operand, or pairs of them (FilterTile::kPairs)
  int32_t channel_phases_log2;  // see staged_channel
  FastDivmod taps, filter_w, c_blocks, k_tiles;
  // Taps that steps are for, row by row of `step_w` from column `first_s` on; of pairs some are not in the filter.
  FastDivmod step_taps;
  int32_t step_w, first_s;
  bool along_cols;      // a segment goes through the columns of one row; otherwise through the rows of one column
  bool copied;          // segments are contiguous, and multiples of 16 bytes
  FastDivmod segment;   // elements
  FastDivmod segments;  // of a piece
  FastDivmod chunks;    // of a piece: 8 channels of a row and tap, 16 bytes
  // Places in shared memory, elements. Columns of the same row: eight of them further apart by 16 bytes where `spread`
  // is -8 and not 0, so that lanes that read the chunks of a row meet different banks.
  int32_t row_pitch, col_pitch, spread;
  int32_t piece_bytes;
  // Pieces: they fit their shared memory, behind the table, and kPackCopies copies a thread bring them.
  int32_t at_once;
  int32_t pieces;  // 0: the filter is not packed
};

struct PackPiece {
  int32_t filter_tile, c_block, tile_row;
  int32_t rows, cols;  // that exist from its first on
  int64_t source;      // first element

  FASTCONV_HOST_DEVICE PackPiece(const PackParams& pack, int32_t index) {
    int32_t rest, group, k_tile;
    pack.c_blocks.divmod(index, rest, c_block);
    const int32_t pieces_log2 = pack.filters_log2 - pack.piece_rows_log2;
    filter_tile = rest >> pieces_log2;
    tile_row = (rest & ((1 << pieces_log2) - 1)) << pack.piece_rows_log2;
    pack.k_tiles.divmod(filter_tile, group, k_tile);
    const int32_t row = (k_tile << pack.filters_log2) + tile_row, col = c_block << pack.channels_log2;
    rows = pack.rows - row, cols = pack.cols - col;
    source = group * pack.group + row * pack.row + col * pack.col;
  }

  // Elements of segment `outer` that exist, and the first of them.
  FASTCONV_HOST_DEVICE int32_t segment_size(const PackParams& pack, int32_t outer) const {
    const int32_t taps = static_cast<int32_t>(pack.taps.divisor), all = static_cast<int32_t>(pack.segment.divisor);
    if (outer >= (pack.along_cols ? rows : cols)) return 0;
    const int32_t inner = pack.along_cols ? cols : rows;
    return inner <= 0 ? 0 : inner < all / taps ? inner * taps : all;
  }
  FASTCONV_HOST_DEVICE int64_t segment_source(const PackParams& pack, int32_t outer) const {
    return source + outer * (pack.along_cols ? pack.row : pack.col);
  }
};

// Element of the filter, from the start of its segment.
FASTCONV_HOST_DEVICE int64_t pack_source(const PackParams& pack, int32_t at) {
  int32_t inner, tap, r, s;
  pack.taps.divmod(at, inner, tap);
  pack.filter_w.divmod(tap, r, s);
  return inner * (pack.along_cols ? pack.col : pack.row) + r * pack.r + s * pack.s;
}

FASTCONV_HOST_DEVICE int32_t pack_slot(const PackParams& pack, int32_t row, int32_t col) {
  return row * pack.row_pitch + col * pack.col_pitch + (col & pack.spread);
}
FASTCONV_HOST_DEVICE int32_t segment_slot(const PackParams& pack, int32_t outer) {
  return pack.along_cols ? pack_slot(pack, outer, 0) : pack_slot(pack, 0, outer);
}

// Of a step's tap (r, s): its number, and the filter's, -1 if it has none there.
FASTCONV_HOST_DEVICE int32_t step_tap(const PackParams& pack, int32_t r, int32_t s) {
  return r * pack.step_w + s - pack.first_s;
}
FASTCONV_HOST_DEVICE int32_t filter_tap(const PackParams& pack, int32_t r, int32_t s) {
  const int32_t filter_w = static_cast<int32_t>(pack.filter_w.divisor);
  return s >= 0 && s < filter_w ? r * filter_w + s : -1;
}

// Chunk `index` of a piece. Neighbours are the rest of a channel block, then other taps of it.
struct PackChunk {
  int32_t row, column,
      tap;     // of the piece; the other columns follow at distances of 1 << channel_phases_log2. Of steps
  int32_t at;  // elements from the start of the packed step

  // `columns`: of the output at once.
  FASTCONV_HOST_DEVICE PackChunk(const PackParams& pack, const PackPiece& piece, int32_t index, int32_t columns) {
    const int32_t chunks_log2 = pack.channels_log2 - 3, chunks = 1 << chunks_log2;
    const int32_t chunk = index & (chunks - 1);
    pack.step_taps.divmod(index >> chunks_log2, row, tap);
    const int32_t beside = columns == 1 ? 0 : tap % columns;  // rows of taps are whole pairs
    const int32_t bytes = ((((piece.tile_row + row) * columns + beside) << chunks_log2) + chunk) * 16;
    at = (bytes ^ (((bytes >> 7) & (chunks - 1)) << 4)) / 2;
    column = staged_channel(pack.channel_phases_log2, pack.channels_log2, chunk * 8);
  }

  // How many of its columns exist; others are zeros.
  FASTCONV_HOST_DEVICE int32_t exist(const PackParams& pack, const PackPiece& piece) const {
    const int32_t phases = 1 << pack.channel_phases_log2;
    return row < piece.rows ? (piece.cols - column + phases - 1) >> pack.channel_phases_log2 : 0;
  }
  // Where column i lies in the piece's shared memory, of the filter's tap.
  FASTCONV_HOST_DEVICE int32_t slot(const PackParams& pack, int32_t i, int32_t filter_tap) const {
    return pack_slot(pack, row, column + (i << pack.channel_phases_log2)) + filter_tap;
  }
};

}  // namespace fastconv
