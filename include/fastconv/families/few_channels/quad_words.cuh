// A pixel's or a filter's four channels in registers, as products take them; see families/few_channels/quads.h.
#pragma once

#include "fastconv/families/few_channels/quads_config.h"
#include "fastconv/tile/element.cuh"
#include "fastconv/tile/split.h"

namespace fastconv {

// A quad in registers: both of a product's, or those of two, of parts, one after the other.
template <QuadsOperands kOperands>
inline constexpr int kQuadWords = quad_bytes(kOperands) / 4;
template <QuadsOperands kOperands>
inline constexpr int kQuadPairs = kQuadWords<kOperands> / 2;

// Of four channels, as products take them; `scale`: of kScaledParts, or 0 if they remain float32.
template <QuadsOperands kOperands>
__device__ __forceinline__ void put_together(const uint32_t (&channels)[kQuadChannels], float scale,
                                             uint32_t (&quad)[kQuadWords<kOperands>]) {
  if constexpr (kOperands == QuadsOperands::kHalf) {
    quad[0] = channels[0] | channels[1] << 16, quad[1] = channels[2] | channels[3] << 16;
  } else if constexpr (kOperands == QuadsOperands::kParts || kOperands == QuadsOperands::kScaledParts) {
    if (kOperands == QuadsOperands::kScaledParts && scale == 0) {
      return put_together<QuadsOperands::kFloats>(channels, scale, quad);
    }
    float values[kQuadChannels];
#pragma unroll
    for (int c = 0; c < kQuadChannels; ++c) values[c] = __uint_as_float(channels[c]);
    auto parts = parts_of<kOperands == QuadsOperands::kParts ? Operand::kBf16 : Operand::kFp16>(values, scale);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t part[2];
      parts.take(i, 2, part);
      quad[2 * i] = part[0], quad[2 * i + 1] = part[1];
    }
  } else {
#pragma unroll
    for (int c = 0; c < kQuadChannels; ++c) quad[c] = channels[c];
  }
}

}  // namespace fastconv
