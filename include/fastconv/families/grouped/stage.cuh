// Narrow groups: pixels and filters on their way to rows of 16 bytes in shared memory, see walk.cuh.
#pragma once

#include <cstdint>
#include <type_traits>

#include "fastconv/families/grouped/walk.cuh"
#include "fastconv/ptx/async_copy.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/kept.cuh"
#include "fastconv/tile/split.h"

namespace fastconv {

// `kRound`: of float32, to TF32.
template <typename T, bool kRound>
struct GroupedStage {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  static constexpr int kChunk = kGroupedRowBytes / sizeof(T);
  static constexpr int kTogether = 2;  // units that a thread has on their way

  const GroupedRows& rows;
  const Bits* source;  // first channel of the tile's first group, of its image
  int32_t first_row, first_column, planes;
  uint32_t smem;

  // From a row and a column of the image on.
  __device__ GroupedStage(const GroupedRows& rows, const T* tensor, const GroupedTile& tile, int32_t first_row,
                          int32_t first_column, uint32_t smem)
      : rows(rows),
        source(reinterpret_cast<const Bits*>(tensor) + tile.image * rows.stride.n +
               int64_t{tile.first_group} * rows.channels * rows.stride.c),
        first_row(first_row),
        first_column(first_column),
        planes(tile.groups * rows.chunks),
        smem(smem) {}

  // What is copied asynchronously has arrived after land().
  __device__ __forceinline__ void start() const {
    switch (rows.copy_bytes) {
      case 16: return copy<16>();
      case 8: return copy<8>();
      case 4: return copy<4>();
      default: return rows.pairs ? load<2>() : load<1>();
    }
  }
  __device__ __forceinline__ void land() const {
    if (rows.copy_bytes == 0) return;
    ptx::async_copy_wait<0>();
    if constexpr (kRound) {
      for_planes([&](int32_t, uint32_t to, uint32_t end) {
        for (; to < end; to += step_bytes()) {
          uint4 v = ptx::load_shared16(to);
          v.x = round(v.x), v.y = round(v.y), v.z = round(v.z), v.w = round(v.w);
          ptx::store_shared16(to, v);
        }
      });
    }
  }

 private:
  static __device__ __forceinline__ uint32_t round(uint32_t bits) {
    return kRound ? to_tf32(__uint_as_float(bits)) : bits;
  }
  __device__ __forceinline__ bool in_image(int32_t row, int32_t column) const {
    return static_cast<uint32_t>(row) < static_cast<uint32_t>(rows.extent_h) &&
           static_cast<uint32_t>(column) < static_cast<uint32_t>(rows.extent_w);
  }
  // Offsets within an image fit 32 bits.
  __device__ __forceinline__ int32_t pixel(int32_t row, int32_t column) const {
    return row * static_cast<int32_t>(rows.stride.h) + column * static_cast<int32_t>(rows.stride.w);
  }

  __device__ __forceinline__ uint32_t step_bytes() const {
    return (kGroupedThreads >> rows.lanes_log2) * kGroupedRowBytes;
  }
  // f(plane, the first of its rows that this thread copies, their end).
  template <typename F>
  __device__ __forceinline__ void for_planes(F&& f) const {
    const int32_t thread = static_cast<int32_t>(threadIdx.x), lanes = 1 << rows.lanes_log2;
#pragma unroll 1
    for (int32_t plane = thread & (lanes - 1); plane < planes; plane += lanes) {
      const uint32_t first = smem + plane * rows.plane_bytes;
      f(plane, first + (thread >> rows.lanes_log2) * kGroupedRowBytes,
        first + rows.tile_h * rows.tile_w * kGroupedRowBytes);
    }
  }

  template <int kBytes>
  __device__ __forceinline__ void copy() const {
    constexpr int kValues = kBytes / sizeof(T), kPieces = kGroupedRowBytes / kBytes;
    for_planes([&](int32_t plane, uint32_t to, uint32_t end) {
      int32_t group, chunk, row, column;
      rows.by_chunks.divmod(plane, group, chunk);
      const Bits* const channel = kept_global(source + (group * rows.channels + chunk * kChunk));
      rows.copied.find(static_cast<int32_t>(threadIdx.x) >> rows.lanes_log2, row, column);
      row += first_row;  // of the image
      const int32_t pieces = min(kPieces, (rows.channels - chunk * kChunk) / kValues);
#pragma unroll 1
      for (; to < end; to += step_bytes()) {
        const bool exists = in_image(row, first_column + column);
        // What lies beyond the image may lie at no multiple of kBytes.
        const Bits* from = exists ? channel + pixel(row, first_column + column) : channel;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          ptx::async_copy<kBytes>(to + i * kBytes, from + i * kValues, exists && i < pieces);
        }
        rows.copied.advance(row, column);
      }
    });
    ptx::async_copy_commit();
  }

  // kVector pixels of a channel at once.
  template <int kVector>
  __device__ __forceinline__ void load() const {
    using Word = std::conditional_t<kVector * sizeof(T) == 2, uint16_t, uint32_t>;
    if constexpr (kVector * sizeof(T) <= 4) {
#pragma unroll 1
      for (int32_t first = static_cast<int32_t>(threadIdx.x); first < rows.units;
           first += kTogether * kGroupedThreads) {
        uint32_t values[kTogether][kChunk];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const GroupedUnit unit(rows, first + i * kGroupedThreads, first_column);
          const int32_t row = first_row + unit.row, column = first_column + unit.column;
          // Beyond the last unit too.
          const bool exists = unit.plane < planes && unit.row < rows.tile_h && in_image(row, column);
          const int32_t step = static_cast<int32_t>(rows.stride.c);
          const int32_t channel = unit.group * rows.channels + unit.chunk * kChunk;
          const Bits* from = kept_global(source + (exists ? pixel(row, column) + channel * step : 0));
          const int32_t channels = exists ? rows.channels - unit.chunk * kChunk : 0;
#pragma unroll
          for (int c = 0; c < kChunk; ++c) {
            values[i][c] = c < channels ? *reinterpret_cast<const Word*>(from + c * step) : Word{0};
          }
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const GroupedUnit unit(rows, first + i * kGroupedThreads, first_column);
          if (unit.plane >= planes || unit.row >= rows.tile_h) continue;
          store<kVector>(unit, values[i]);
        }
      }
    }
  }

  template <int kVector>
  __device__ __forceinline__ void store(const GroupedUnit& unit, const uint32_t (&values)[kChunk]) const {
    const uint32_t to = smem + unit.plane * rows.plane_bytes + unit.row * rows.tile_w * kGroupedRowBytes;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      // Rows of every second pixel meet half of the banks: the last four of eight threads take the other pixel first.
      const int32_t which = kVector == 1 ? 0 : i ^ (threadIdx.x >> 2 & 1), column = unit.column + which;
      const uint32_t select = which == 0 ? 0x5410 : 0x7632;
      uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (sizeof(T) == 2) {
          v[j] = __byte_perm(values[2 * j], values[2 * j + 1], select);
        } else {
          v[j] = round(values[j]);
        }
      }
      if (static_cast<uint32_t>(column) < static_cast<uint32_t>(rows.tile_w)) {
        ptx::store_shared16(to + column * kGroupedRowBytes, make_uint4(v[0], v[1], v[2], v[3]));
      }
    }
  }
};

}  // namespace fastconv
