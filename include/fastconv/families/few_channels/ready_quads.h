// Images of four channels of 16 bits that lie side by side, without a gap anywhere: they consist of quads (quads.h)
// already. A block has a set of filters and a range of the pixels of all outputs; the rows of the images that it needs
// are one piece of memory, which it copies as it is. So nothing is put together, and there is one tile and one wait: of
// small problems that is most of the time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/families/few_channels/ready_quads_config.h"

namespace fastconv {

struct ReadyAxis {
  int32_t step, tap_step, padding, extent;  // of the image
};

// In the order in which a block reads them, by lines of 64 bytes, as QuadsParams.
struct ReadyQuadsParams {
  FastDivmod by_sets;
  int32_t block_pixels;

  FastDivmod by_columns, by_rows;  // pixels of a row, rows of an image, of the output
  int32_t pixels, reach;           // of all; rows of the image from a pixel's first tap to its last one
  ReadyAxis h, w;

  int32_t filters, taps;
  FastDivmod by_taps_w;
  int32_t target_w;  // from a pixel to the next one, elements
};
static_assert(offsetof(ReadyQuadsParams, by_columns) == 16 && offsetof(ReadyQuadsParams, filters) == 16 + 64);

// A block's pixels, and the quads that it copies.
struct ReadyRange {
  int32_t begin, end;     // of the pixels of all outputs
  uint32_t first, after;  // of the quads of all images; the first one's number is even

  FASTCONV_HOST_DEVICE ReadyRange(const ReadyQuadsParams& params, int32_t number) {
    begin = number * params.block_pixels;
    end = begin + params.block_pixels < params.pixels ? begin + params.block_pixels : params.pixels;
    const int32_t row = source_row(params, begin, 0, 0, params.h.extent);
    const int32_t last = source_row(params, end - 1, params.reach, -1, params.h.extent - 1);
    first = static_cast<uint32_t>(row) * params.w.extent / kReadyCopied * kReadyCopied;
    after = static_cast<uint32_t>(last + 1) * params.w.extent;
  }

 private:
  // Of all images: of a pixel's first tap, or so many behind it, but within what its own image bounds.
  FASTCONV_HOST_DEVICE static int32_t source_row(const ReadyQuadsParams& params, int32_t pixel, int32_t more,
                                                 int32_t least, int32_t most) {
    int32_t image, row;
    params.by_rows.divmod(params.by_columns.div(pixel), image, row);
    row = row * params.h.step - params.h.padding + more;
    row = row < least ? least : row > most ? most : row;
    return image * params.h.extent + row;
  }
};

// Rows and columns of the image from a pixel's place on, which add up with a tap's; those of pixels and of taps that do
// not exist never to one of the image.
struct ReadyPlace {
  static constexpr int32_t kNowhere = INT32_MIN / 2;
  int32_t row, column;
  uint32_t quad;  // number, from the first of all images on

  FASTCONV_HOST_DEVICE static ReadyPlace of_pixel(const ReadyQuadsParams& params, int32_t pixel, int32_t end) {
    ReadyPlace place;
    int32_t row, image;
    params.by_columns.divmod(pixel, row, place.column);
    params.by_rows.divmod(row, image, place.row);
    place.row *= params.h.step, place.column *= params.w.step;
    return place.finish(params, image, pixel < end);
  }
  FASTCONV_HOST_DEVICE static ReadyPlace of_tap(const ReadyQuadsParams& params, int32_t tap) {
    ReadyPlace place;
    params.by_taps_w.divmod(tap, place.row, place.column);
    place.row = place.row * params.h.tap_step - params.h.padding;
    place.column = place.column * params.w.tap_step - params.w.padding;
    return place.finish(params, 0, tap < params.taps);
  }
  // Of a pixel.
  FASTCONV_HOST_DEVICE bool has(const ReadyQuadsParams& params, const ReadyPlace& tap) const {
    return static_cast<uint32_t>(row + tap.row) < static_cast<uint32_t>(params.h.extent) &&
           static_cast<uint32_t>(column + tap.column) < static_cast<uint32_t>(params.w.extent);
  }

 private:
  FASTCONV_HOST_DEVICE ReadyPlace finish(const ReadyQuadsParams& params, int32_t image, bool exists) {
    // Of pixels behind the last one, too.
    const auto height = static_cast<uint32_t>(params.h.extent), width = static_cast<uint32_t>(params.w.extent);
    quad = (static_cast<uint32_t>(image) * height + static_cast<uint32_t>(row)) * width + static_cast<uint32_t>(column);
    if (!exists) row = kNowhere;
    return *this;
  }
};

}  // namespace fastconv
