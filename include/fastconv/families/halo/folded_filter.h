// The filter of a folded convolution, see fold.h, as packed_filter.h has it. Plain C++ as well as CUDA: the tests run
// its index maths against brute force.
#pragma once

#include "fastconv/families/halo/params.h"
#include "fastconv/tile/fold.h"

namespace fastconv {

// Chunk `index` of all that is packed, straight from the filter. Of PackParams, only `row`, `col`, `r`, `s`, `rows`,
// the logarithms of a step's sizes and `pieces`, which are these chunks, count.
struct FoldedPackChunk {
  int32_t row, r, s, c0;  // row of the filter; folded tap; first of the folded channels
  int64_t at;             // elements from the start of the packed filter

  FASTCONV_HOST_DEVICE FoldedPackChunk(const HaloParams& params, int32_t index) {
    const PackParams& pack = params.pack;
    const int32_t chunks_log2 = pack.channels_log2 - 3, chunks = 1 << chunks_log2, chunk = index & (chunks - 1);
    const int32_t tile_row = (index >> chunks_log2) & ((1 << pack.block_k_log2) - 1);
    const int32_t all_steps = index >> (chunks_log2 + pack.block_k_log2);
    const int32_t k_tile = all_steps / params.steps_per_filter_tile, taps = params.phase[0].taps;
    const int32_t step = all_steps - k_tile * params.steps_per_filter_tile, c_block = step / taps;
    int32_t tap = step - c_block * taps;
    const TapGroup* group = params.group;
    for (; tap >= group->rows * group->cols; ++group) tap -= group->rows * group->cols;
    r = group->r0 + tap / group->cols * group->dr, s = group->s0 + tap % group->cols * group->ds;
    row = (k_tile << pack.block_k_log2) + tile_row;
    c0 = ((c_block << chunks_log2) + chunk) * 8;
    const int32_t bytes = ((tile_row << chunks_log2) + chunk) * 16;
    at = (int64_t{all_steps} << (pack.block_k_log2 + pack.channels_log2)) +
         (bytes ^ (((bytes >> 7) & (chunks - 1)) << 4)) / 2;
  }

  // Element of the filter that is channel i of the chunk, or -1.
  FASTCONV_HOST_DEVICE int64_t source(const PackParams& pack, const Fold& fold, int32_t i) const {
    if (row >= pack.rows || c0 + i >= fold.channels) return -1;
    const FoldedChannel& channel = fold.channel[c0 + i];
    const int32_t h = fold.h.tap(r, channel.h), w = fold.w.tap(s, channel.w);
    if (!fold.h.has_tap(h) || !fold.w.has_tap(w)) return -1;
    return row * pack.row + channel.c * pack.col + h * pack.r + w * pack.s;
  }
};

}  // namespace fastconv
