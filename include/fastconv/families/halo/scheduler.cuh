// Which outputs a tile index means, and which inputs they read. Filter tiles run fastest, so that blocks at work
// together share their input in L2; a tile's other phases follow in the rounds after, before L2 has parted with sectors
// that hold pixels of both. Plain C++ as well as CUDA: the tests run it against brute force.
#pragma once

#include "fastconv/families/halo/params.h"

namespace fastconv {

// The phase of the output that a tile is of, and its number there. NOTES: consumers ask for every tile of the block.
struct PhaseTile {
  int32_t phase = 0, index;

  FASTCONV_HOST_DEVICE PhaseTile(const HaloParams& params, int32_t tile) : index(tile) {
    if (params.phase_count == 1) return;
    int32_t round, rest;
    params.phase_rounds.divmod(tile, round, rest);
    (tile < params.last_round_at ? params.round : params.last_round).divmod(rest, phase, rest);
    index = round * static_cast<int32_t>(params.round.divisor) + rest;
  }
};

struct Tile {
  int32_t share, k_tile, group, phase;
  int32_t n, p, q;   // rectangular: image and first output pixel of the phase
  int32_t linear;    // linear: first position
  int32_t row, col;  // linear: the same as row of all images and column

  FASTCONV_HOST_DEVICE Tile(const HaloParams& params, int32_t index) : Tile(params, PhaseTile(params, index)) {}
  FASTCONV_HOST_DEVICE Tile(const HaloParams& params, const PhaseTile& of_phase) : phase(of_phase.phase) {
    int32_t rest;
    params.shares.divmod(of_phase.index, rest, share);
    params.k_tiles.divmod(rest, rest, k_tile);
    params.tiles_npq.divmod(rest, group, rest);
    if (params.linear) {
      linear = rest * params.tile_pixels;
      params.linear_w.divmod(linear, row, col);
      n = p = q = 0;
    } else {
      params.tiles_pq.divmod(rest, n, rest);
      params.tiles_q.divmod(rest, p, q);
      p *= params.tile_p;
      q *= params.tile_q;
      linear = row = col = 0;
    }
  }
};

// The tiles of a pipeline of the grid. Those at work together have neighbours: single tiles, or kRuns of them.
template <bool kRuns>
struct TileWalk {
  const HaloParams& params;
  int32_t pipelines, index, place = 0;  // in its run

  FASTCONV_HOST_DEVICE TileWalk(const HaloParams& params, int32_t pipeline, int32_t pipelines)
      : params(params), pipelines(pipelines), index(kRuns ? pipeline * params.run_tiles : pipeline) {}
  FASTCONV_HOST_DEVICE bool more() const { return index < params.tiles; }
  FASTCONV_HOST_DEVICE void next() {
    if constexpr (!kRuns) {
      index += pipelines;
    } else {
      ++index;
      if (++place < params.run_tiles) return;
      place = 0;
      index += (pipelines - 1) * params.run_tiles;
    }
  }
};

// What a tile of one row of pixels adds to the output of its run: for each filter a stream of bytes without gaps.
struct StreamPart {
  bool begins, ends;
  int32_t bytes;

  FASTCONV_HOST_DEVICE StreamPart(const HaloParams& params, const Tile& tile, const TileWalk<true>& walk,
                                  int32_t pixel_bytes) {
    const OutputPhase& image = params.phase[0];
    const int32_t left = image.q - tile.q;
    begins = walk.place == 0 || (tile.p == 0 && tile.q == 0);
    ends = walk.place + 1 == params.run_tiles || (tile.p + 1 == image.p && left <= params.tile_q);
    bytes = pixel_bytes * (left < params.tile_q ? left : params.tile_q);
  }
};

// Where that part lies in memory, counted from the line that holds its first byte.
struct StreamLines {
  int32_t lead;   // bytes of that line before the part
  int32_t whole;  // lines that the part ends
  int32_t rest;   // bytes of the line after them

  FASTCONV_HOST_DEVICE StreamLines(uint32_t address, int32_t bytes)
      : lead(address % kLineBytes), whole((lead + bytes) / kLineBytes), rest((lead + bytes) % kLineBytes) {}
};

// Bytes from a stream to the next in shared memory, where they are `plane` apart in memory. Streams keep their leads,
// and a warp stores 16 bytes of eight of them at once, or 32 of every second of eight: these meet different banks if
// pitch and plane are together an odd number of 16 bytes. Other planes cost up to four turns.
FASTCONV_HOST_DEVICE int stream_pitch(int line_pitch, uint32_t plane) {
  return line_pitch - static_cast<int>(plane & 16);
}

struct OutputPixel {
  int32_t n, p, q;
};

inline constexpr int32_t kNoColumn = 1 << 30;  // of the output: beyond every row

// Pixel m (of 64) of an M-block.
FASTCONV_HOST_DEVICE OutputPixel output_pixel(const HaloParams& params, const Tile& tile, int block, int m) {
  OutputPixel out;
  if (params.linear) {
    int32_t row;
    params.linear_w.divmod(tile.linear + block * 64 + m, row, out.q);
    params.linear_h.divmod(row, out.n, out.p);
  } else {
    const int group = m >> 3, column = (block & ((1 << params.blocks_q_log2) - 1)) * params.block_q + (m & 7);
    out.n = tile.n;
    out.p = tile.p + (block >> params.blocks_q_log2) * params.block_p + group * params.group_p;
    out.q = column < params.strip ? tile.q + group * params.group_q + column : kNoColumn;
  }
  return out;
}

// Where it lies in memory; -1: nowhere.
FASTCONV_HOST_DEVICE int64_t output_element(const HaloParams& params, const Tile& tile, const OutputPixel& at) {
  const OutputPhase& phase = params.phase[tile.phase];
  if (at.n >= params.n || at.p >= phase.p || at.q >= phase.q) return -1;
  return at.n * params.out_n + at.p * params.out_h + at.q * params.out_w + phase.offset;
}

// Bytes from the start of the staged halo to an M-block's first pixel, for the group's first tap.
FASTCONV_HOST_DEVICE int32_t block_offset(const HaloParams& params, const Tile& tile, int block, int32_t pixel_bytes) {
  if (params.linear) return (tile.col + block * 64) * pixel_bytes;
  const int row = (block >> params.blocks_q_log2) * params.block_p;
  const int col = (block & ((1 << params.blocks_q_log2) - 1)) * params.block_q;
  return (row * params.halo_pitch + col) * pixel_bytes;
}

// Input row of halo row i: its image and its row there, which may lie outside.
struct HaloRow {
  int32_t n, h;
};
FASTCONV_HOST_DEVICE HaloRow halo_row(const HaloParams& params, const Tile& tile, const TapGroup& group, int i) {
  HaloRow row;
  int32_t p;
  if (params.linear) {
    params.linear_h.divmod(tile.row + i, row.n, p);
  } else {
    row.n = tile.n;
    p = tile.p + i;
  }
  row.h = p * params.in_step_h + group.dh;
  return row;
}
FASTCONV_HOST_DEVICE int32_t halo_col(const HaloParams& params, const Tile& tile, const TapGroup& group) {
  return tile.q * params.in_step_w + group.dw;
}

}  // namespace fastconv
