// A tensor in the workspace as operands of the tensor cores: rows of pixels, each of contiguous channels. Of float32
// each value is one number rounded to TF32, or parts of 16 bits that add up to it; values of 16 bits stay what they
// are. Plain data and index maths: the tests run them against loops by definition; see split.cuh.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"
#include "fastconv/tile/host_device_caller.h"
#include "fastconv/tile/operands.h"

namespace fastconv {

inline constexpr int kSplitChunkBytes = 16;  // 8 channels of 16-bit parts, 4 of TF32
inline constexpr int kMaxSplitParts = 3;

FASTCONV_HOST_DEVICE constexpr int split_chunk(Operand operand) { return kSplitChunkBytes / operand_bytes(operand); }

// A warp moves so many values at a time through shared memory: up to 32 channels of 64 rows, 16 of 128 or 8 of 256.
inline constexpr int kSplitValuesLog2 = 11;
inline constexpr int kSplitValues = 1 << kSplitValuesLog2;
inline constexpr int kSplitChannelsLog2 = 5;
inline constexpr int kSplitBytes = (kSplitValues + 32) * 4;

// Along what a warp reads, and how values then lie in shared memory.
enum class SplitRead : int8_t { kChannels, kRows };

// One of the three levels of rows, outermost first: strides of the values, and of their rows in chunks.
struct SplitLevel {
  int64_t from, to;
};

// A row is a pixel, or a tap of a row of the filter. It has the channels of each convolution group, filled up with
// zeros to whole sectors, in each part.
struct Split {
  const void* values;
  void* rows;
  const float* scale;              // of fp16: what values are multiplied by, a power of two
  SplitLevel image, line, column;  // of images, their lines and what those consist of; in the order of reading
  SplitLevel group;
  int64_t stride_c;    // of `values`, elements
  int64_t part_pitch;  // chunks
  int32_t channels;    // of a group
  int32_t parts;       // 1 to kMaxSplitParts
  int32_t row_count;   // of all images
  FastDivmod lines, columns;
  // Unit = (row block * groups + group) * channel blocks + channel block
  int32_t units;           // 0: nothing is split
  int32_t unit_rows;       // most rows of a unit
  int32_t channels_log2;   // of a unit
  int32_t chunk_channels;  // of a group with its zeros
  FastDivmod channel_blocks, groups;
  SplitRead read;
  int32_t vector;  // values that the tensor's alignment lets a thread read at once, in the direction of reading
};

// First value of a row's channels, and first chunk.
struct SplitRow {
  int64_t from, to;

  FASTCONV_HOST_DEVICE SplitRow(const Split& split, int32_t row) {
    int32_t image, line, column;
    split.columns.divmod(row, line, column);
    split.lines.divmod(line, image, line);
    from = image * split.image.from + line * split.line.from + column * split.column.from;
    to = image * split.image.to + line * split.line.to + column * split.column.to;
  }
};

struct SplitUnit {
  int32_t row, rows;         // its first, and how many exist from there on
  int32_t channels, filled;  // of the group from the unit's first on, at most a unit's: that exist; with zeros
  int64_t from, to;          // of its first channel, apart from the row

  template <Operand kOperand>
  FASTCONV_HOST_DEVICE static SplitUnit at(const Split& split, int32_t index) {
    SplitUnit unit;
    int32_t group, channel;
    split.channel_blocks.divmod(index, unit.row, channel);
    split.groups.divmod(unit.row, unit.row, group);
    unit.row *= split.unit_rows, channel <<= split.channels_log2;
    const int32_t most = 1 << split.channels_log2, rows = split.row_count - unit.row;
    unit.rows = rows < split.unit_rows ? rows : split.unit_rows;
    unit.channels = split.channels - channel, unit.filled = split.chunk_channels - channel;
    if (unit.filled > most) unit.filled = most;
    unit.from = group * split.group.from + channel * split.stride_c;
    unit.to = group * split.group.to + channel / split_chunk(kOperand);
    return unit;
  }
};

// Places in shared memory, values. Of SplitRead::kRows: four channels lie further apart, for the banks.
FASTCONV_HOST_DEVICE int32_t split_row_place(const Split& split, int32_t channel, int32_t row) {
  return (((channel << 6) + (channel & -4)) << (kSplitChannelsLog2 - split.channels_log2)) + row;
}
// Of SplitRead::kChannels: every other 128 bytes have their 16 byte neighbours exchanged, since a lane reads two of
// them.
FASTCONV_HOST_DEVICE int32_t split_channel_place(const Split& split, int32_t channel, int32_t row) {
  const int32_t at = (row << split.channels_log2) + channel;
  return at ^ ((at >> 5 & 1) << 2);
}

// A place, of no value if it is negative, and the first of the values for it, which are zeros if they do not exist.
struct SplitCopy {
  int32_t place;
  int64_t from;
  bool exists;
};

// Calls f(SplitCopy[kAtOnce]) for a lane's share of what a unit reads, kVector values each.
template <int kVector, int kAtOnce>
struct SplitReader {
  static constexpr int kVectorLog2 = kVector == 4 ? 2 : kVector == 2 ? 1 : 0;
  const Split& split;
  const SplitUnit& unit;

  FASTCONV_HOST_DEVICE_CALLER void along_rows(int32_t lane, F f) const {
    const int32_t vectors_log2 = kSplitValuesLog2 - split.channels_log2 - kVectorLog2;  // of a channel
    const int32_t lanes_log2 = vectors_log2 < 5 ? vectors_log2 : 5, step = 32 >> lanes_log2;
    const int32_t first = lane >> lanes_log2;
    lane &= (1 << lanes_log2) - 1;
    FASTCONV_ROLLED
    for (int32_t row = lane << kVectorLog2; row < unit.rows; row += kVector << lanes_log2) {
      int64_t from = unit.from + SplitRow(split, unit.row + row).from + first * split.stride_c;
      FASTCONV_ROLLED
      for (int32_t channel = first; channel < unit.filled; channel += kAtOnce * step) {
        SplitCopy copies[kAtOnce];
        for (int32_t i = 0; i < kAtOnce; ++i, from += step * split.stride_c) {
          const int32_t at = channel + i * step;
          copies[i] = {at < unit.filled ? split_row_place(split, at, row) : -1, from, at < unit.channels};
        }
        f(copies);
      }
    }
  }

  FASTCONV_HOST_DEVICE_CALLER void along_channels(int32_t lane, F f) const {
    const int32_t lanes_log2 = split.channels_log2 - kVectorLog2, step = 32 >> lanes_log2;
    const int32_t channel = (lane & ((1 << lanes_log2) - 1)) << kVectorLog2;
    if (channel >= unit.filled) return;
    FASTCONV_ROLLED
    for (int32_t row = lane >> lanes_log2; row < unit.rows; row += kAtOnce * step) {
      SplitCopy copies[kAtOnce];
      for (int32_t i = 0; i < kAtOnce; ++i) {
        const int32_t at = row + i * step;
        copies[i] = {at < unit.rows ? split_channel_place(split, channel, at) : -1,
                     unit.from + SplitRow(split, unit.row + at).from + channel, channel < unit.channels};
      }
      f(copies);
    }
  }
};

// Calls f(row, channel, chunk in the workspace, of the first part) for a lane's share of the chunks that a unit writes.
template <Operand kOperand>
struct SplitWriter {
  static constexpr int kChunk = split_chunk(kOperand), kChunkLog2 = kChunk == 8 ? 3 : 2;
  const Split& split;
  const SplitUnit& unit;

  FASTCONV_HOST_DEVICE_CALLER void along_rows(int32_t lane, F f) const {
    const int32_t lanes_log2 = split.channels_log2 - kChunkLog2;
    const int32_t chunk = lane & ((1 << lanes_log2) - 1);
    if (chunk * kChunk >= unit.filled) return;
    FASTCONV_ROLLED
    for (int32_t row = lane >> lanes_log2; row < unit.rows; row += 32 >> lanes_log2) {
      f(row, chunk * kChunk, unit.to + SplitRow(split, unit.row + row).to + chunk);
    }
  }
};

// Two values as bf16, the first in the lower half, to nearest even; NaN becomes 0x7fff. With kFinite nothing becomes
// infinite.
template <bool kFinite>
FASTCONV_HOST_DEVICE uint32_t to_bf16_pair(float low, float high) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
  uint32_t pair;
  if constexpr (kFinite) {
    asm("cvt.rn.satfinite.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  auto rounded = [](float value) -> uint32_t {
    constexpr uint32_t kInfinity = 0x7f800000, kMost = kFinite ? 0x7f7f : 0x7f80;
    const auto bits = __builtin_bit_cast(uint32_t, value), magnitude = bits & 0x7fffffff;
    if (magnitude > kInfinity) return 0x7fff;
    const uint32_t nearest = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
    return (bits >> 16 & 0x8000) | (nearest < kMost ? nearest : kMost);
  };
  return rounded(low) | rounded(high) << 16;
#endif
}

FASTCONV_HOST_DEVICE bool is_infinite(float value) { return __builtin_fabsf(value) == __builtin_huge_valf(); }

// Whether one of the values, none of them infinite, is the largest that there is. On the GPU this costs fewer
// instructions than to look at the numbers that they come from.
template <int kPairs>
FASTCONV_HOST_DEVICE bool has_largest_bf16(const uint32_t (&pairs)[kPairs]) {
  constexpr uint32_t kLargest = 0x7f7f;
#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860  // the instruction is not older
  auto larger = [](uint32_t a, uint32_t b) {
    uint32_t c;  // its sign means nothing
    asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
  };
  uint32_t most[kPairs / 2];
  for (int i = 0; i < kPairs / 2; ++i) most[i] = larger(pairs[i], pairs[i + kPairs / 2]);
  for (int left = kPairs / 4; left > 0; left /= 2) {
    for (int i = 0; i < left; ++i) most[i] = larger(most[i], most[i + left]);
  }
  return (most[0] & 0x7fff) == kLargest || (most[0] >> 16 & 0x7fff) == kLargest;
#else
  for (const uint32_t pair : pairs) {
    if ((pair & 0x7fff) == kLargest || (pair >> 16 & 0x7fff) == kLargest) return true;
  }
  return false;
#endif
}

// To nearest, ties away from zero. An infinity remains one, and nothing else becomes one. GPUs have no instruction for
// this: cvt.rna.satfinite, which makes infinities finite, is longer than these lines.
FASTCONV_HOST_DEVICE uint32_t to_tf32(float value) {
  constexpr uint32_t kLeftOut = 0x1fff;   // bits
  constexpr float kNotUp = 0x1.ffep127f;  // the first that would become infinite if it were rounded up
  const auto bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t up = bits + (kLeftOut + 1) / 2;
  const uint32_t nearest = (__builtin_fabsf(value) < kNotUp ? up : bits) & ~kLeftOut;
  return value == value ? nearest : 0x7fffffff;
}

// bf16 has float32's exponents and fewer bits, so that of small numbers the last parts would be lost. Where all of a
// number's bits are wanted, each part is therefore so many times what it stands for, after the one before it: no more,
// so that the small products of two numbers add up to less than the product. Sums shrink by as much whenever
// first + second below falls.
// Of fp16, so many times that the second part has the first one's exponents.
FASTCONV_HOST_DEVICE constexpr float split_scale(int32_t parts, Operand operand = Operand::kBf16) {
  return operand == Operand::kFp16 ? (parts == 2 ? 2048.f : 1.f) : parts == 3 ? 128.f : 1.f;
}

// Sums of small products overflow only where the large products' magnitudes add up to more than float32 holds, but
// maybe with the other sign. Before they shrink they are therefore made finite, and so is what became of infinities and
// NaNs, which the large products have as well. NOTES: in place, since ptxas has no registers for a copy.
FASTCONV_HOST_DEVICE void make_finite(float& sum) {
  constexpr float kMost = 0x1.fffffep127f;
#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860
  asm("min.xorsign.abs.f32 %0, %0, %1;" : "+f"(sum) : "f"(kMost));
#else
  sum = __builtin_fminf(__builtin_fmaxf(sum, -kMost), kMost);
#endif
}

// The parts of a chunk's values: each the nearest bf16 to what those before it leave. An infinity must not meet the
// small parts of the other factor, whose signs differ. Where sums of small products shrink (`scale`), it is the first
// part, and NaNs follow it. Otherwise its parts are 1 and the infinity, with its sign: the last part meets only the
// first of the other factor. In both cases products are infinite, or NaN, as the value's own.
template <int kValues>
struct SplitParts {
  static constexpr int kPairs = kValues / 2;
  float rest[kValues];

  FASTCONV_HOST_DEVICE explicit SplitParts(const float (&values)[kValues]) {
    for (int i = 0; i < kValues; ++i) rest[i] = values[i];
  }

  // The next part, which is not the last; what it leaves is `scale` times as large in those that follow.
  FASTCONV_HOST_DEVICE void next(bool first, float scale, uint32_t (&part)[kPairs]) {
    for (int i = 0; i < kPairs; ++i) part[i] = to_bf16_pair<true>(rest[2 * i], rest[2 * i + 1]);
    if (first && has_largest_bf16(part)) {  // as infinite values have
      const uint32_t one = scale == 1 ? 0x3f80 : 0x7f80;
      for (int i = 0; i < kPairs; ++i) {
        if (is_infinite(rest[2 * i])) part[i] = (part[i] & 0xffff8000) | one;
        if (is_infinite(rest[2 * i + 1])) part[i] = (part[i] & 0x8000ffff) | one << 16;
      }
    }
    for (int i = 0; i < kPairs; ++i) {
      rest[2 * i] = (rest[2 * i] - __builtin_bit_cast(float, part[i] << 16)) * scale;
      rest[2 * i + 1] = (rest[2 * i + 1] - __builtin_bit_cast(float, part[i] & 0xffff0000)) * scale;
    }
  }
  FASTCONV_HOST_DEVICE void last(uint32_t (&part)[kPairs]) const {
    for (int i = 0; i < kPairs; ++i) part[i] = to_bf16_pair<false>(rest[2 * i], rest[2 * i + 1]);
  }
  // Number `index` of `parts`, in their order.
  FASTCONV_HOST_DEVICE void take(int32_t index, int32_t parts, uint32_t (&part)[kPairs]) {
    if (index < parts - 1) {
      next(index == 0, split_scale(parts), part);
    } else {
      last(part);
    }
  }
};

// Two values as fp16, the first in the lower half, to nearest even. They are no larger than 2^15.
FASTCONV_HOST_DEVICE uint32_t to_fp16_pair(float low, float high) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  auto rounded = [](float value) -> uint32_t {
    constexpr uint32_t kExponents = 127 - 15;
    constexpr float kNormal = 0x1p-14f, kUnit = 0x1p-24f;  // the least
    const auto bits = __builtin_bit_cast(uint32_t, value), magnitude = bits & 0x7fffffff;
    const uint32_t nearest = __builtin_fabsf(value) < kNormal
                                 ? static_cast<uint32_t>(__builtin_rintf(__builtin_fabsf(value) / kUnit))
                                 : ((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (kExponents << 10);
    return (bits >> 16 & 0x8000) | nearest;
  };
  return rounded(low) | rounded(high) << 16;
#endif
}
FASTCONV_HOST_DEVICE float from_fp16(uint32_t half) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<uint16_t>(half)));
  return value;
#else
  const uint32_t magnitude = half & 0x7fff;
  const float value = magnitude < 0x400 ? static_cast<float>(magnitude) * 0x1p-24f
                                        : __builtin_bit_cast(float, (magnitude << 13) + ((127 - 15) << 23));
  return (half & 0x8000) != 0 ? -value : value;
#endif
}

// The same as SplitParts of values whose operand is fp16: finite ones, scaled.
template <int kValues>
struct HalfParts {
  static constexpr int kPairs = kValues / 2;
  float rest[kValues];

  FASTCONV_HOST_DEVICE HalfParts(const float (&values)[kValues], float by) {
    for (int i = 0; i < kValues; ++i) rest[i] = by * values[i];
  }
  FASTCONV_HOST_DEVICE void next(float scale, uint32_t (&part)[kPairs]) {
    last(part);
    for (int i = 0; i < kPairs; ++i) {
      rest[2 * i] = (rest[2 * i] - from_fp16(part[i] & 0xffff)) * scale;
      rest[2 * i + 1] = (rest[2 * i + 1] - from_fp16(part[i] >> 16)) * scale;
    }
  }
  FASTCONV_HOST_DEVICE void last(uint32_t (&part)[kPairs]) const {
    for (int i = 0; i < kPairs; ++i) part[i] = to_fp16_pair(rest[2 * i], rest[2 * i + 1]);
  }
  // Number `index` of `parts`, in their order.
  FASTCONV_HOST_DEVICE void take(int32_t index, int32_t parts, uint32_t (&part)[kPairs]) {
    if (index < parts - 1) {
      next(split_scale(parts, Operand::kFp16), part);
    } else {
      last(part);
    }
  }
};

// Of what is multiplied as kOperand; `scale` is that of fp16.
template <Operand kOperand, int kValues>
FASTCONV_HOST_DEVICE auto parts_of(const float (&values)[kValues], float scale) {
  if constexpr (kOperand == Operand::kFp16) {
    return HalfParts<kValues>(values, scale);
  } else {
    return SplitParts<kValues>(values);
  }
}

// Product number `index` of the parts of two operands: those of parts too small to matter are left out, and the small
// ones come first.
struct SplitProduct {
  int32_t first, second;  // parts of the two

  FASTCONV_HOST_DEVICE constexpr SplitProduct(int32_t parts, int32_t index) : first(0), second(0) {
    int32_t sum = parts - 1;  // of the two, and so many products less one
    for (; sum > 0 && index > sum; --sum) index -= sum + 1;
    first = index, second = sum - index;
  }
  // Of those with the same first + second.
  FASTCONV_HOST_DEVICE constexpr bool is_first() const { return first == 0; }
};
FASTCONV_HOST_DEVICE constexpr int32_t split_products(int32_t parts) { return parts * (parts + 1) / 2; }

}  // namespace fastconv
