// NCHW outputs on their way through shared memory: a warpgroup's accumulators become rows of pixels, one a channel.
// Plain C++ as well as CUDA: the tests compare it with the fragments' definition.
#pragma once

#include "fastconv/tile/halo_params.h"

namespace fastconv {

// kTogether M-blocks at once, kVector pixels a lane. Rows hold groups of 8 pixels in the order of the output's rows, by
// 16 bytes, places swizzled by channel.
template <int kVector, int kTogether, int kBlockK>
struct PixelRows {
  static constexpr int kPixels = 64 * kTogether, kRowBytes = kPixels * 2;
  // Channels that pass through shared memory together.
  static constexpr int kPass = kEpilogueBytes / kRowBytes < kBlockK ? kEpilogueBytes / kRowBytes : kBlockK;
  static_assert(kBlockK % kPass == 0 && kPass % 16 == 0);
  static constexpr int kLanes = kPixels / kVector < 32 ? kPixels / kVector : 32;  // that share a channel
  static constexpr int kParts = kPixels / (kLanes * kVector), kStep = 4 * 32 / kLanes;
  static constexpr int kBatch = kParts >= 8 ? 1 : (kVector == 8 ? 2 : 8) / kParts;  // channels
  static_assert(kPass % (kStep * kBatch) == 0 && kStep * kBatch % 8 == 0);

  int across_log2;  // M-blocks side by side

  FASTCONV_HOST_DEVICE explicit PixelRows(const HaloParams& params)
      : across_log2(params.block_q > 8                     ? 0
                    : params.blocks_q_log2 < kTogether / 2 ? params.blocks_q_log2
                                                           : kTogether / 2) {}

  // Where a lane names its row of the matrices of 16 channels from the warp's pixels of M-block m, without those
  // channels' c * kRowBytes.
  FASTCONV_HOST_DEVICE int matrix_row(int m, int warp, int lane) const {
    const int group = warp * 2 + lane / 8 % 2;
    const int place = (((m >> across_log2) * 8 + group) << across_log2) + (m & ((1 << across_log2) - 1));
    return (lane / 16 * 8 + lane % 8) * kRowBytes + ((place ^ (lane & 7)) << 4);
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
            channel * kRowBytes + (((pixel >> 3) ^ (channel & 7)) << 4) + (pixel & 7) * 2};
  }
  // The same of the channel that is `channels`, a multiple of kStep, further on. All addresses from a multiple of 128.
  static FASTCONV_HOST_DEVICE uint32_t further(uint32_t from, int channels) {
    return (from ^ ((channels & 7) << 4)) + channels * kRowBytes;
  }
};

}  // namespace fastconv
