// Patch embeddings: convolutions whose filter is as large as its stride, of images of few channels. Each value of the
// image belongs to one patch, so that nothing is gained by staging it: lanes read the chunks of a patch, four values
// side by side, where products want them. A product's depth is four chunks, one of each of the four lanes that have a
// row.
//
// A patch is rows of values that lie side by side: of each channel as many as the filter has rows or, if channels lie
// side by side, for all of them together. Pixels are counted through all images.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"
#include "fastconv/families/few_channels/embed_config.h"
#include "fastconv/families/few_channels/lane_runs.h"

namespace fastconv {

struct EmbedParams {
  Strides filter;                                  // of the weight
  int64_t source_n, target_n;                      // strides, elements
  int32_t source_p, source_q, target_p, target_q;  // from pixel to pixel
  int64_t target_c;
  int32_t source_c, source_h;     // from one row of a patch to the next of a channel; of channels
  int32_t chunks, steps, rounds;  // of a patch
  int32_t pixels, filters;
  int32_t taps_h, taps_w, channels;
  bool whole_runs;                                   // of the output: accessed at once
  FastDivmod by_pixels, by_columns;                  // of an image; of its rows
  FastDivmod by_row_chunks, by_taps_h, by_channels;  // of a patch's row; of a channel's rows; side by side
  FastDivmod by_set_blocks;
  int32_t sets, walkers;
};

// Where a pixel's patch begins, and the pixel of filter 0.
struct EmbedPixel {
  int64_t source, target;

  FASTCONV_HOST_DEVICE EmbedPixel(const EmbedParams& params, int32_t pixel) {
    int32_t image, p, q;
    params.by_pixels.divmod(pixel, image, p);
    params.by_columns.divmod(p, p, q);
    source = image * params.source_n + (p * params.source_p + q * params.source_q);
    target = image * params.target_n + (p * params.target_p + q * params.target_q);
  }
};

// Offset of a chunk in its patch.
FASTCONV_HOST_DEVICE int32_t embed_chunk(const EmbedParams& params, int32_t chunk) {
  int32_t row, at, channel;
  params.by_row_chunks.divmod(chunk, row, at);
  params.by_taps_h.divmod(row, channel, row);
  return channel * params.source_c + row * params.source_h + at * kEmbedChunk;
}

// A value of a chunk.
struct EmbedTap {
  int32_t channel, row, column;

  FASTCONV_HOST_DEVICE EmbedTap(const EmbedParams& params, int32_t chunk, int32_t value) {
    int32_t outer, inner;
    params.by_row_chunks.divmod(chunk, row, column);
    params.by_taps_h.divmod(row, outer, row);
    params.by_channels.divmod(column * kEmbedChunk + value, column, inner);
    channel = outer + inner;  // one of them is 0
  }
};

// Of a unit's pixels the one that a lane has as its row `index`, of two, or, if pixels lie side by side, as its column
// of product `index`.
FASTCONV_HOST_DEVICE constexpr int32_t embed_pixel(bool channels_inner, int32_t index, int32_t lane) {
  return channels_inner ? index * 8 + lane / 4 : run_column(4, index, lane / 4);
}

// Weight gradient: pixels are what products sum over, four of a lane. Those that lie side by side in the output are its
// own there; otherwise lanes have neighbours.
FASTCONV_HOST_DEVICE constexpr int32_t embed_wgrad_pixel(bool channels_inner, int32_t index, int32_t lane) {
  return channels_inner ? index * 4 + lane % 4 : lane % 4 * 4 + index;
}
// Of a set's filters the one that is row `index` of four, in products of two, of lane `lane`.
FASTCONV_HOST_DEVICE constexpr int32_t embed_wgrad_filter(bool channels_inner, int32_t index, int32_t lane) {
  return channels_inner ? lane / 4 * 4 + index : index * 8 + lane / 4;
}

}  // namespace fastconv
