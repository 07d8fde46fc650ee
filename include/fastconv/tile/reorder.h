// An NCHW tensor as rows of pixels in the workspace, and back; see reorder.cuh. Plain data and index maths: the tests
// run them against loops by definition.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"

namespace fastconv {

// A warp moves up to so many channels of so many pixels at a time, through so much shared memory.
inline constexpr int kReorderChannels = 32;
inline constexpr int kReorderPixels = 128;
inline constexpr int kReorderPitch = kReorderPixels * 2 + 16;  // of copied rows, which begin up to 7 pixels early
inline constexpr int kReorderBarrier = kReorderChannels * (kReorderPitch + 2);  // behind them
inline constexpr int kReorderBytes = (kReorderBarrier + 127) / 128 * 128;

struct Reorder {
  void *planes, *rows;
  int64_t plane_n, plane_c;  // strides of the tensor's images and channels, elements
  int32_t channels;          // of all groups
  int32_t row;               // elements of a pixel in the workspace: the channels, rounded up to 8
  int32_t pixels;            // of a plane, which has no gaps
  int32_t block_pixels;      // of a unit
  int32_t vector;            // pixels that the tensor's alignment lets a thread load or store at once: 8, 2 or 1
  bool copied;               // on the way to rows the copy engine brings them, from 16 bytes' multiples on
  int32_t units;             // 0: nothing to reorder
  FastDivmod pixel_blocks,
      channel_blocks;  // unit = (image * channel_blocks + channel block) * pixel_blocks + pixel block
};

struct ReorderUnit {
  int64_t plane, row;                // elements of its first channel and pixel, in the planes and in the rows
  int32_t channels, pixels, chunks;  // that exist from there on; chunks of 8 channels of a pixel

  FASTCONV_HOST_DEVICE ReorderUnit(const Reorder& order, int32_t index) {
    int32_t rest, pixel_block, image, channel_block;
    order.pixel_blocks.divmod(index, rest, pixel_block);
    order.channel_blocks.divmod(rest, image, channel_block);
    const int32_t c = channel_block * kReorderChannels, p = pixel_block * order.block_pixels, left = order.pixels - p;
    plane = image * order.plane_n + c * order.plane_c + p;
    row = (int64_t{image} * order.pixels + p) * order.row + c;
    channels = order.channels - c, chunks = (order.row - c) / 8;
    pixels = left < order.block_pixels ? left : order.block_pixels;
  }
};

// Access number `i` of a lane to the planes.
template <int kVector>
struct ReorderAccess {
  static constexpr int kLanes = kReorderPixels / kVector < 32 ? kReorderPixels / kVector : 32;  // that share a channel
  static constexpr int kParts = kReorderPixels / (kLanes * kVector), kAtOnce = 32 / kLanes;     // channels
  static constexpr int kCount = kReorderChannels / kAtOnce * kParts;
  int32_t channel, pixel;

  FASTCONV_HOST_DEVICE ReorderAccess(int32_t lane, int32_t i)
      : channel(i / kParts * kAtOnce + lane / kLanes), pixel((i % kParts * kLanes + lane % kLanes) * kVector) {}
};

// Shared memory for matrices: chunks of 8 pixels in an order that lets the eight rows of one lie in different banks.
FASTCONV_HOST_DEVICE int32_t reorder_place(int32_t channel, int32_t pixel) {
  const int32_t chunk = (pixel >> 3) ^ ((channel & 1) | ((channel >> 2) & 6));
  return channel * (kReorderPixels * 2) + (chunk << 4) + (pixel & 7) * 2;
}
// What row of the matrices a lane names, so that its 16 bytes of a pixel are channels 8 * (lane % 4) ..., pairs from
// four matrices.
FASTCONV_HOST_DEVICE int32_t reorder_matrix_row(int32_t lane) { return lane % 8 / 2 * 8 + lane / 8 * 2 + lane % 2; }

// Shared memory for copied rows: eight of them further apart by 16 bytes, for the banks.
FASTCONV_HOST_DEVICE int32_t reorder_copy(int32_t channel) { return channel * kReorderPitch + (channel & -8) * 2; }
// Pixels that the copy has before the unit's first.
FASTCONV_HOST_DEVICE int32_t reorder_lead(const Reorder& order, const ReorderUnit& unit, int32_t channel) {
  return static_cast<int32_t>(unit.plane + channel * order.plane_c) & 7;
}

}  // namespace fastconv
