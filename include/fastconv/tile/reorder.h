// An NCHW tensor as rows of pixels in the workspace, and back; see reorder.cuh. Plain data and index maths: the tests
// run them against loops by definition.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"

namespace fastconv {

// A warp moves up to so many channels of so many pixels at a time, through so much shared memory, from an address that
// swizzling needs.
inline constexpr int kReorderChannels = 32;
inline constexpr int kReorderPixels = 128;
inline constexpr int kReorderBoxPixels = 64;
inline constexpr int kReorderBoxBytes = kReorderChannels * kReorderBoxPixels * 2;
inline constexpr int kReorderPitch = kReorderPixels * 2 + 16;                   // of runs
inline constexpr int kReorderBarrier = kReorderChannels * (kReorderPitch + 4);  // behind the pixels
inline constexpr int kReorderBytes = (kReorderBarrier + 8 + 1023) / 1024 * 1024;

// How planes reach shared memory.
enum class ReorderCopy : int8_t {
  kBoxes,   // of pixels and channels, by TMA
  kRuns,    // of a channel's pixels, likewise; from multiples of 16 bytes on, which may lie up to 7 pixels earlier
  kValues,  // through registers, a pixel or two a load
};

// Warps of a block that go on while products are computed, and the shared memory for that: the next unit is on its way
// while one is written.
inline constexpr int kReorderStreamers = 2;
inline constexpr int kReorderStreamBytes = kReorderStreamers * 2 * kReorderBytes;

struct Reorder {
  void *planes, *rows;
  uint32_t* done;            // of each round, warps that have done their unit
  int64_t plane_n, plane_c;  // strides of the tensor's images and channels, elements
  int32_t channels;          // of all groups
  int32_t row;               // elements of a pixel in the workspace: the channels, rounded up to 8
  int32_t vector;            // pixels that the tensor's alignment lets a thread load or store at once: 8, 2 or 1
  ReorderCopy copy;          // on the way to rows
  int32_t units;             // 0: nothing to reorder
  int32_t early;             // of them, before the products and by all warps
  int32_t rounds;            // of the others, while products go on: one for each streaming warp of the grid
  FastDivmod round;          // units of one
  FastDivmod pixels;         // of a plane, which has no gaps
  FastDivmod block_pixels;   // of a unit
  // Boxes: unit = (image * pixel blocks + pixel block) * channel blocks + channel block. Otherwise pixel blocks run
  // fastest: planes are short then, and follow each other.
  FastDivmod pixel_blocks, channel_blocks;
};

struct ReorderUnit {
  int32_t image, channel, pixel;     // its first
  int64_t plane, row;                // elements of them, in the planes and in the rows
  int32_t channels, pixels, chunks;  // that exist from there on; chunks of 8 channels of a pixel

  FASTCONV_HOST_DEVICE ReorderUnit(const Reorder& order, int32_t index) {
    if (order.copy == ReorderCopy::kBoxes) {
      order.channel_blocks.divmod(index, image, channel);
      order.pixel_blocks.divmod(image, image, pixel);
    } else {
      order.pixel_blocks.divmod(index, image, pixel);
      order.channel_blocks.divmod(image, image, channel);
    }
    const auto most = static_cast<int32_t>(order.block_pixels.divisor);
    channel *= kReorderChannels, pixel *= most;
    plane = image * order.plane_n + channel * order.plane_c + pixel;
    row = (int64_t{image} * order.pixels.divisor + pixel) * order.row + channel;
    channels = order.channels - channel, chunks = (order.row - channel) / 8;
    pixels = static_cast<int32_t>(order.pixels.divisor) - pixel;
    pixels = pixels < most ? pixels : most;
  }
};

// Of boxes, the last unit that has channels of a pixel, counted over all images.
FASTCONV_HOST_DEVICE int32_t last_reorder_unit(const Reorder& order, int32_t pixel) {
  int32_t image;
  order.pixels.divmod(pixel, image, pixel);
  const int32_t block = image * static_cast<int32_t>(order.pixel_blocks.divisor) + order.block_pixels.div(pixel);
  return (block + 1) * static_cast<int32_t>(order.channel_blocks.divisor) - 1;
}

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

// Boxes hold channel 8 * i + j in row 4 * j + i, so that the rows of a matrix are neighbours.
FASTCONV_HOST_DEVICE int32_t reorder_box_row(int32_t channel) { return (channel & 7) * 4 + (channel >> 3); }
// Bytes of a group of 8 pixels in that row.
FASTCONV_HOST_DEVICE int32_t reorder_box_place(int32_t row, int32_t group) {
  return (group >> 3) * kReorderBoxBytes + row * 128 + (((group ^ row) & 7) << 4);
}

// Runs: eight of them lie further apart by 32 bytes, for the banks.
FASTCONV_HOST_DEVICE int32_t reorder_run(int32_t channel) { return channel * kReorderPitch + (channel & -8) * 4; }
// Pixels that the run has before the unit's first.
FASTCONV_HOST_DEVICE int32_t reorder_lead(const Reorder& order, const ReorderUnit& unit, int32_t channel) {
  return static_cast<int32_t>(unit.plane + channel * order.plane_c) & 7;
}

}  // namespace fastconv
