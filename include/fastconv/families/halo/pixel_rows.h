// Outputs on their way through shared memory: a warpgroup's accumulators become rows of pixels, one a channel (NCHW),
// or rows of channels, one a pixel. Plain C++ as well as CUDA: the tests compare it with the fragments' definition, and
// look for bank conflicts.
#pragma once

#include "fastconv/families/halo/params.h"

namespace fastconv {

// What a lane has of 64 pixels by 8 channels, of its warp's 16 pixels (PTX ISA, "wgmma", D): accumulator 2 * half + i.
struct FragmentSum {
  int pixel, channel;
};
FASTCONV_HOST_DEVICE FragmentSum fragment_sum(int warp, int lane, int half, int i) {
  return {warp * 16 + half * 8 + lane / 4, lane % 4 * 2 + i};
}

// kTogether M-blocks at once, kVector pixels a lane; of FilterTile::kPairs a pixel is two columns. Rows hold groups of
// 8 pixels in the order of the output's rows, places swizzled by channel: stmatrix stores 16-bit groups of eight
// channels at once, and a warp stores one float of eight pixels of every second of eight channels.
template <int kVector, int kTogether, int kBlockK, int kElementBytes>
struct PixelRows {
  static constexpr int kPixels = 64 * kTogether, kRowBytes = kPixels * kElementBytes, kGroupBytes = 8 * kElementBytes;
  // Channels that pass through shared memory together.
  static constexpr int kPass = kEpilogueBytes / kRowBytes < kBlockK ? kEpilogueBytes / kRowBytes : kBlockK;
  static_assert(kBlockK % kPass == 0 && kPass % (kElementBytes == 2 ? 16 : 8) == 0);
  static constexpr int kLanes = kPixels / kVector < 32 ? kPixels / kVector : 32;  // that share a channel
  static constexpr int kParts = kPixels / (kLanes * kVector), kStep = 4 * 32 / kLanes;
  // Channels: what registers have room for, and no fewer than the swizzle's period.
  static constexpr int kRoom = (kVector * kElementBytes == 16 ? 2 : 8) / kParts, kPeriod = 8 / kStep;
  static constexpr int kBatch = kRoom > kPeriod ? kRoom : kPeriod;
  static_assert(kPass % (kStep * kBatch) == 0 && kStep * kBatch % 8 == 0);

  int across_log2;  // M-blocks side by side

  FASTCONV_HOST_DEVICE explicit PixelRows(const HaloParams& params)
      : across_log2(params.block_q > 8                     ? 0
                    : params.blocks_q_log2 < kTogether / 2 ? params.blocks_q_log2
                                                           : kTogether / 2) {}

  static FASTCONV_HOST_DEVICE int swizzle(int channel) {
    return kElementBytes == 2 ? channel & 7 : kElementBytes == 4 ? channel >> 1 & 3 : channel & 1;
  }

  // Where the group-th 8 pixels of M-block m lie in a channel's row. Bytes.
  FASTCONV_HOST_DEVICE int group(int m, int group, int channel) const {
    const int place = (((m >> across_log2) * 8 + group) << across_log2) + (m & ((1 << across_log2) - 1));
    return (place ^ swizzle(channel)) * kGroupBytes;
  }

  // Where a lane names its row of the matrices of 16 channels from the warp's pixels of M-block m, without those
  // channels' c * kRowBytes.
  FASTCONV_HOST_DEVICE int matrix_row(int m, int warp, int lane) const {
    const int channel = lane / 16 * 8 + lane % 8;
    return channel * kRowBytes + group(m, warp * 2 + lane / 8 % 2, channel);
  }
  // Where a sum of 8 channels lies, without those channels' c * kRowBytes.
  FASTCONV_HOST_DEVICE int sum(int m, const FragmentSum& at) const {
    return at.channel * kRowBytes + group(m, at.pixel / 8, at.channel) + at.pixel % 8 * kElementBytes;
  }

  // This lane's first channel, less than kStep; the next ones are kStep apart.
  static FASTCONV_HOST_DEVICE int first_channel(int warp, int lane) { return warp * (32 / kLanes) + lane / kLanes; }

  // What a lane reads of each channel, part i.
  struct Pixel {
    int m, pixel;  // M-block, and pixel of its 64
    int from;      // bytes, of the lane's first channel
  };
  FASTCONV_HOST_DEVICE Pixel pixel(int i, int lane, int channel) const {
    const int pixel = (i * kLanes + lane % kLanes) * kVector, row = pixel >> (3 + across_log2);
    return {((row >> 3) << across_log2) + ((pixel >> 3) & ((1 << across_log2) - 1)), (row & 7) * 8 + (pixel & 7),
            channel * kRowBytes + ((pixel >> 3) ^ swizzle(channel)) * kGroupBytes + (pixel & 7) * kElementBytes};
  }
  // The same of the channel that is `channels`, a multiple of kStep, further on. All addresses from a multiple of 128.
  static FASTCONV_HOST_DEVICE uint32_t further(uint32_t from, int channels) {
    return (from ^ (swizzle(channels) * kGroupBytes)) + channels * kRowBytes;
  }
};

// A warp's 16 pixels: rows of 128 bytes, of which kChunk channels fill kRuns runs of 16, swizzled by row: stmatrix
// stores one run of eight pixels at once, and half a warp two floats of eight channels of four pixels.
template <int kBlockK, int kElementBytes>
struct ChannelRows {
  static constexpr int kRowBytes = 128, kRun = 16 / kElementBytes;  // channels of a run
  static constexpr int kChunk = kBlockK < 8 * kRun ? kBlockK : 8 * kRun, kRuns = kChunk / kRun;
  static constexpr int kRows = 32 / kRuns;  // that a warp reads at once

  static FASTCONV_HOST_DEVICE int run(int row, int run) {
    return row * kRowBytes + ((run ^ (kElementBytes == 2 ? row & 7 : (row & 3) << 1)) << 4);
  }
  // Where a sum of 8 channels from channel c lies; the next channel's follows.
  static FASTCONV_HOST_DEVICE int sum(int c, const FragmentSum& at) {
    const int channel = c + at.channel;
    return run(at.pixel % 16, channel / kRun) + channel % kRun * kElementBytes;
  }
};

}  // namespace fastconv
