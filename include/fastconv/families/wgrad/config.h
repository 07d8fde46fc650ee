// What of the sm_90a weight gradient is fixed when a kernel is compiled, and what is chosen for each problem.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"
#include "fastconv/tile/operands.h"

namespace fastconv {

// How x and dy reach shared memory, and what runs along the rows of their tiles there:
//   kTma        channels, copied from channels_last, or from NCHW that the kernel has written anew: see reorder.h;
//   kTmaPixels  pixels, copied from NCHW: pointwise alone, since a filter tap can only shift by whole rows;
//   kTmaRows    channels of x as in kTma; pixels of dy, copied from NCHW: no tap shifts them;
//   kWarps      channels, from any layout: what cannot be copied goes through the registers of producer warps;
//   kFloats     float32: channels of x as in kTma, all its parts at once; dy as it lies in NCHW, which consumers split
//               in registers on its way to the products.
enum class WgradStaging : int8_t { kTma, kTmaPixels, kTmaRows, kWarps, kFloats };

FASTCONV_HOST_DEVICE constexpr bool x_has_pixel_rows(WgradStaging staging) {
  return staging == WgradStaging::kTmaPixels;
}
FASTCONV_HOST_DEVICE constexpr bool y_has_pixel_rows(WgradStaging staging) {
  return staging == WgradStaging::kTmaPixels || staging == WgradStaging::kTmaRows || staging == WgradStaging::kFloats;
}
// Whether blocks leave their sums to the second kernel straight from registers: those without a cluster. Of kFloats
// ptxas would spill.
FASTCONV_HOST_DEVICE constexpr bool leaves_sums_alone(WgradStaging staging, int64_t cluster, int64_t partials) {
  return staging != WgradStaging::kFloats && cluster == 1 && partials > 1;
}
// Whether part of x may be written anew while products go on. Where dy is too, nothing was won by it.
FASTCONV_HOST_DEVICE constexpr bool streams_x(WgradStaging staging) { return staging == WgradStaging::kTmaRows; }

inline constexpr int32_t kWgradProducers = 128;  // threads

struct WgradConfig {
  int32_t channels;    // of a box of x: 64, 32 or 16
  int32_t blocks;      // of channels or taps in a unit, that is, in one instruction
  int32_t units;       // a consumer warpgroup
  int32_t warpgroups;  // of consumers
  WgradStaging staging;
  OperandForm operands;  // of float32 tensors, those in parts pass through the workspace as such

  constexpr int32_t threads() const { return kWgradProducers + 128 * warpgroups; }
  constexpr int32_t slots() const { return units * warpgroups; }
  constexpr int32_t n() const { return channels * blocks; }               // of the instruction
  constexpr int32_t job_bytes() const { return slots() * 64 * n() * 4; }  // the sums of a block
};

// Which filter taps a staged box of x serves.
enum class BoxTaps : int8_t { kAll, kRow, kOne };

// A job is the part of dW that a block accumulates in registers: m_blocks x 64 filters times some taps and channels.
// Its pixels, the reduction, are staged in tiles and taken 16 at a time:
//   rectangular  tile_p x tile_q output pixels of one image, x as the rectangle that they read;
//   linear       whole rows, of several images if they are small, in one order of rows padded just so much that a tap
//                is the same shift for every pixel: less waste where rows are short and no multiple of 8.
struct WgradTiling {
  BoxTaps box_taps;
  bool linear;
  int8_t m_blocks;
  int8_t cluster;  // blocks that add up their sums in shared memory
  int16_t tile_n, tile_p, tile_q;
  bool fold;     // x passes through the workspace with its strides folded into channels, see fold.h
  bool streams;  // part of x in NCHW passes through it while products go on, see reorder.h
};

}  // namespace fastconv
