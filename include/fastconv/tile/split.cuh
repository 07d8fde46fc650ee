// A tensor split into operands in the workspace, by the blocks of a kernel together.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "fastconv/ptx/async_copy.cuh"
#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/operands.h"
#include "fastconv/tile/reorder.h"
#include "fastconv/tile/split.h"

namespace fastconv {

static_assert(kSplitBytes <= kReorderBytes);

// What tensors of T are multiplied as, and of float32 the name of that.
template <typename T>
inline constexpr Operand kOperandOf = std::is_same_v<T, __half>  ? Operand::kFp16
                                      : std::is_same_v<T, float> ? Operand::kTf32
                                                                 : Operand::kBf16;
template <typename T, OperandForm kOperands>
using OperandOf =
    std::conditional_t<is_scaled(kOperands), __half, std::conditional_t<has_parts(kOperands), __nv_bfloat16, T>>;

// One warp and its buffer. In that a value takes four bytes, of 16 bits as well.
template <Operand kOperand, typename T>
struct Splitter {
  static constexpr bool kFloats = std::is_same_v<T, float>;
  static constexpr int kChunk = split_chunk(kOperand);
  const Split& split;
  uint32_t buffer;
  int lane;
  float scale;  // of fp16

  // A unit's values on their way to shared memory. Those of 16 bits are waited for, hence several at once.
  template <SplitRead kRead, int kVector>
  __device__ __forceinline__ void read(const SplitUnit& unit) const {
    constexpr int kAtOnce = kFloats ? 1 : 4;
    auto copy = [&](const SplitCopy(&copies)[kAtOnce]) {
      const T* values = static_cast<const T*>(split.values);
      if constexpr (kFloats) {
        ptx::async_copy<4 * kVector>(buffer + 4 * copies[0].place, values + copies[0].from, copies[0].exists);
      } else {
        alignas(8) uint16_t bits[kAtOnce][4] = {};
#pragma unroll
        for (int at = 0; at < kAtOnce; ++at) {
          if (copies[at].place >= 0 && copies[at].exists) load_bits<kVector>(values + copies[at].from, bits[at]);
        }
#pragma unroll
        for (int at = 0; at < kAtOnce; ++at) {
          if (copies[at].place < 0) continue;
          const uint32_t to = buffer + 4 * copies[at].place;
          if constexpr (kVector == 4) {
            ptx::store_shared16(to, make_uint4(bits[at][0], bits[at][1], bits[at][2], bits[at][3]));
          } else {
#pragma unroll
            for (int i = 0; i < kVector; ++i) ptx::store_shared4(to + 4 * i, bits[at][i]);
          }
        }
      }
    };
    const SplitReader<kVector, kAtOnce> reader{split, unit};
    if constexpr (kRead == SplitRead::kChannels) {
      reader.along_channels(lane, copy);
    } else {
      reader.along_rows(lane, copy);
    }
  }

  template <int kVector>
  static __device__ __forceinline__ void load_bits(const T* from, uint16_t (&bits)[4]) {
    if constexpr (kVector == 4) {
      *reinterpret_cast<uint2*>(bits) = *reinterpret_cast<const uint2*>(from);
    } else if constexpr (kVector == 2) {
      *reinterpret_cast<uint32_t*>(bits) = *reinterpret_cast<const uint32_t*>(from);
    } else {
      bits[0] = *reinterpret_cast<const uint16_t*>(from);
    }
  }

  __device__ __forceinline__ void load_chunk(int row, int channel, float (&v)[kChunk]) const {
    if (split.read == SplitRead::kChannels) {
#pragma unroll
      for (int i = 0; i < kChunk; i += 4) {
        const uint4 four = ptx::load_shared16(buffer + 4 * split_channel_place(split, channel + i, row));
        v[i] = __uint_as_float(four.x), v[i + 1] = __uint_as_float(four.y);
        v[i + 2] = __uint_as_float(four.z), v[i + 3] = __uint_as_float(four.w);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        v[i] = __uint_as_float(ptx::load_shared4(buffer + 4 * split_row_place(split, channel + i, row)));
      }
    }
  }

  // Once they are there.
  __device__ __forceinline__ void write(const SplitUnit& unit) const {
    SplitWriter<kOperand>{split, unit}.along_rows(lane, [&](int row, int channel, int64_t to) {
      float v[kChunk];
      load_chunk(row, channel, v);
      auto* chunk = static_cast<uint4*>(split.rows) + to;
      uint32_t words[4];
      if constexpr (!kFloats) {
        for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(v[2 * i]) | __float_as_uint(v[2 * i + 1]) << 16;
      } else if constexpr (kOperand == Operand::kTf32) {
        for (int i = 0; i < 4; ++i) words[i] = to_tf32(v[i]);
      } else if constexpr (kOperand == Operand::kFp16) {
        HalfParts parts(v, scale);
        if (split.parts > 1) {
          parts.next(split_scale(2, kOperand), words);
          ptx::store_global16(chunk, words);
          chunk += split.part_pitch;
        }
        parts.last(words);
      } else {
        SplitParts parts(v);
#pragma unroll 1
        for (int part = 0; part < split.parts - 1; ++part, chunk += split.part_pitch) {
          parts.next(part == 0, split_scale(split.parts), words);
          ptx::store_global16(chunk, words);
        }
        parts.last(words);
      }
      ptx::store_global16(chunk, words);
    });
  }

  template <SplitRead kRead, int... kVectors>
  __device__ __forceinline__ void read_vectors(const SplitUnit& unit) const {
    ((split.vector == kVectors ? read<kRead, kVectors>(unit) : void()), ...);
  }

  __device__ __forceinline__ void move(const SplitUnit& unit) const {
    if (split.read == SplitRead::kChannels) {
      read_vectors<SplitRead::kChannels, 4, 1>(unit);
    } else {
      read_vectors<SplitRead::kRows, 4, 2, 1>(unit);
    }
    ptx::async_copy_commit();
    ptx::async_copy_wait<0>();
    __syncwarp();
    write(unit);
    __syncwarp();
  }
};

// A warp's share, of `warps` warps of each block of the grid. buffer: kSplitBytes of shared memory of its own, from a
// multiple of 16.
template <Operand kOperand, typename T = float>
__device__ __forceinline__ void split_to_rows(const Split& split, uint32_t buffer, int warp, int warps, int lane) {
  constexpr bool kScales = kOperand == Operand::kFp16 && std::is_same_v<T, float>;
  const Splitter<kOperand, T> splitter{split, buffer, lane, kScales && split.units > 0 ? *split.scale : 1};
  const int blocks = static_cast<int>(gridDim.x);
#pragma unroll 1
  for (int i = warp * blocks + static_cast<int>(blockIdx.x); i < split.units; i += blocks * warps) {
    splitter.move(SplitUnit::at<kOperand>(split, i));
  }
}

}  // namespace fastconv
