// An NCHW tensor as rows of pixels in the workspace, and back; see reorder.cuh. Plain data.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"

namespace fastconv {

// A warp moves this many channels of this many pixels at a time, through so much shared memory.
inline constexpr int kReorderChannels = 32;
inline constexpr int kReorderPixels = 128;
inline constexpr int kReorderBytes = kReorderChannels * kReorderPixels * 2;

struct Reorder {
  void *planes, *rows;
  int64_t plane_n, plane_c;  // strides of the tensor's images and channels, elements
  int32_t channels;          // of all groups
  int32_t row;               // elements of a pixel in the workspace: the channels, rounded up to 8
  int32_t pixels;            // of a plane, which has no gaps
  int32_t vector;            // pixels that the tensor's alignment lets a thread load or store at once: 8, 2 or 1
  int32_t units;             // 0: nothing to reorder
  FastDivmod pixel_blocks,
      channel_blocks;  // unit = (image * channel_blocks + channel block) * pixel_blocks + pixel block
};

}  // namespace fastconv
