// Accumulators of one warpgroup to memory: a turn through shared memory so that whole 16-byte runs
// are written where the output's layout has any.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "fastconv/families/halo/pixel_rows.h"
#include "fastconv/families/halo/scheduler.cuh"
#include "fastconv/ptx/mbarrier.cuh"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/tile/epilogue.cuh"
#include "fastconv/tile/pixels.cuh"

namespace fastconv {

// What of an output element is moved. NOTES: plain integers; types of 16-bit floats make ptxas compute more addresses.
template <typename Out>
using Bits = std::conditional_t<std::is_same_v<Out, float>, float, uint16_t>;

template <typename Out>
__device__ __forceinline__ void round2(float x, float y, Bits<Out>& x_bits, Bits<Out>& y_bits) {
  if constexpr (std::is_same_v<Out, float>) {
    x_bits = x, y_bits = y;
  } else {
    const uint32_t v = pack2<Out>(x, y);
    x_bits = static_cast<uint16_t>(v), y_bits = static_cast<uint16_t>(v >> 16);
  }
}

// Sums of filter columns side by side on N: those of column i belong to outputs i * step pixels before theirs, which
// lanes of the same warp have, or the next M-block. `step` * (kColumns - 1) is at most 7. The last pixels of a strip
// receive what belongs to others; nobody stores them.
template <int kBlockK, int kColumns, int kMBlocks>
__device__ __forceinline__ void add_columns(const float (&acc)[kMBlocks][kColumns * kBlockK / 2], int step, int lane,
                                            float (&sum)[kMBlocks][kBlockK / 2]) {
#pragma unroll
  for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
    for (int e = 0; e < kBlockK / 2; ++e) {
      float total = acc[m][e];
#pragma unroll
      for (int i = 1; i < kColumns; ++i) {
        const int shift = i * step, at = i * kBlockK / 2 + e;
        const float mine = acc[m][at], nexts = m + 1 < kMBlocks ? acc[m + 1][at] : 0.f;
        total += ptx::shuffle(lane / 4 < shift ? nexts : mine, lane + 4 * shift);
      }
      sum[m][e] = total;
    }
  }
}

// Out is float, or a type of 16 bits.
template <typename Out, int kBlockK, int kMBlocks>
struct TileStore {
  static constexpr int kAccumulators = kBlockK / 2;
  static constexpr bool kFloats = std::is_same_v<Out, float>;  // matrix instructions move 16-bit values

  const HaloParams& params;
  const Tile& tile;
  int warp, lane;           // warp of the warpgroup
  uint32_t smem;            // kEpilogueBytes, from a multiple of 128
  int barrier;              // named barrier of the warpgroup
  int32_t k_base, k_limit;  // first channel of the tile in the tensor; channels that exist

  __device__ TileStore(const HaloParams& params, const Tile& tile, int thread, uint32_t smem, int barrier)
      : params(params),
        tile(tile),
        warp(thread / 32),
        lane(thread % 32),
        smem(smem),
        barrier(barrier),
        k_base(tile.group * params.k + tile.k_tile * kBlockK),
        k_limit(params.k - tile.k_tile * kBlockK) {}

  // Sums are of some of the tile's filters alone, and begin with those.
  __device__ __forceinline__ void take(int first, int filters) {
    k_base += first;
    k_limit = min(k_limit - first, filters);
  }

  // Of pixel m of an M-block; negative: outside.
  __device__ __forceinline__ int64_t offset(int block, int m) const {
    return output_element(params, tile, output_pixel(params, tile, block, m));
  }

  __device__ __forceinline__ void finish(float (&acc)[kMBlocks][kAccumulators]) const {
    const Epilogue<Out> epilogue(params.epilogue);
    if (epilogue.does_nothing()) return;
#pragma unroll
    for (int j = 0; j < kBlockK / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int k = j * 8 + lane % 4 * 2 + i;
        const FilterEpilogue<float> finish = epilogue.of(k_base + k, k < k_limit);
#pragma unroll
        for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) acc[m][j * 4 + 2 * half + i] = finish(acc[m][j * 4 + 2 * half + i]);
        }
      }
    }
  }

  // 16 pixels x 16 channels from channel c of the warp's rows, as four 8x8 matrices: pixels first.
  static __device__ __forceinline__ void fragment(const float (&acc)[kAccumulators], int c, uint32_t (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = pack2<Out>(acc[c / 2 + 2 * i], acc[c / 2 + 2 * i + 1]);
  }

  __device__ __forceinline__ void operator()(float (&acc)[kMBlocks][kAccumulators], int first_block) const {
    finish(acc);
    if (params.store == StoreMode::kPixels) {
      constexpr int kMany = kMBlocks % 4 == 0 ? 4 : kMBlocks % 2 == 0 ? 2 : 1, kFew = kMany < 2 ? kMany : 2;
      constexpr int kWidest = 16 / sizeof(Out);
      if (params.pixel_vector == kWidest) {
        store_pixels<kWidest, kMany>(acc, first_block);
      } else if (params.pixel_vector == 2) {
        store_pixels<2, kMany>(acc, first_block);
      } else {
        store_pixels<1, kFew>(acc, first_block);  // places of more pixels would spill
      }
      return;
    }
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
      if (params.store == StoreMode::kChannels) {
        store_channels(acc[m], first_block + m);
      } else if (!is_large_tile(kMBlocks, kBlockK)) {
        store_elements(acc[m], first_block + m);
      }
    }
  }

  // Out[pixel][channel]: each warp turns its own 16 pixels round.
  __device__ __forceinline__ void store_channels(const float (&acc)[kAccumulators], int block) const {
    using Rows = ChannelRows<kBlockK, sizeof(Out)>;
    constexpr int kChunk = Rows::kChunk, kRuns = Rows::kRuns, kRows = Rows::kRows, kStores = 16 / kRows;
    const int64_t mine = offset(block, warp * 16 + lane % 16);
    const int run = lane % kRuns;
    Out* out = static_cast<Out*>(params.out) + k_base + run * Rows::kRun;
    Out* at[kStores];  // null: outside
#pragma unroll
    for (int i = 0; i < kStores; ++i) {
      const int64_t row_offset = __shfl_sync(~0u, mine, i * kRows + lane / kRuns);
      at[i] = row_offset < 0 ? nullptr : out + row_offset;
    }
    const uint32_t buffer = smem + warp * 2048;
#pragma unroll
    for (int chunk = 0; chunk < kBlockK; chunk += kChunk) {
      const bool exists = chunk + run * Rows::kRun < k_limit;
      __syncwarp();
      if constexpr (kFloats) {
#pragma unroll
        for (int c = 0; c < kChunk; c += 8) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int j = (chunk + c) / 2 + 2 * half;
            ptx::store_shared_floats(buffer + Rows::sum(c, fragment_sum(warp, lane, half, 0)), acc[j], acc[j + 1]);
          }
        }
      } else {
#pragma unroll
        for (int c = 0; c < kChunk; c += 16) {
          uint32_t v[4];
          fragment(acc, chunk + c, v);
          ptx::stmatrix4<false>(buffer + Rows::run(lane % 16, c / 8 + lane / 16), v);
        }
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kStores; ++i) {
        const uint4 v = ptx::load_shared16(buffer + Rows::run(i * kRows + lane / kRuns, run));
        if (at[i] != nullptr && exists) *reinterpret_cast<uint4*>(at[i] + chunk) = v;
      }
    }
  }

  // FilterTile::kPairs: a channel's sums of two columns are neighbours, and move together. There is no bias.
  __device__ __forceinline__ void store_pairs(const float (&acc)[kMBlocks][kAccumulators], int first_block) const {
    store_pixels < 1, kMBlocks<2 ? kMBlocks : 2, 2>(acc, first_block);
  }

  // Out[channel][pixel]: the warpgroup turns kTogether M-blocks round at once, a few channels at a time, so that blocks
  // side by side make long runs: a sector written in pieces costs more than its bytes. Then each warp stores rows of
  // pixels, kVector a lane; of kColumns columns each.
  template <int kVector, int kTogether, int kColumns = 1>
  __device__ __forceinline__ void store_pixels(const float (&acc)[kMBlocks][kAccumulators], int first_block) const {
#pragma unroll
    for (int m = 0; m < kMBlocks; m += kTogether) store_rows<kVector, kTogether, kColumns>(acc, m, first_block);
  }

  // NOTES: stores without branches, and addresses in shared memory that differ by constants: anything else shows.
  // Loads from shared memory stay in their order with stores, so kBatch channels go ahead together.
  template <int kVector, int kTogether, int kColumns>
  __device__ __forceinline__ void store_rows(const float (&acc)[kMBlocks][kAccumulators], int m0,
                                             int first_block) const {
    constexpr int kElementBytes = kColumns * sizeof(Out);
    using Vector = Pixels<kVector, kElementBytes>;
    using Value = typename Vector::Value;
    using Rows = PixelRows<kVector, kTogether, kBlockK / kColumns, kElementBytes>;
    constexpr int kParts = Rows::kParts, kPass = Rows::kPass, kStep = Rows::kStep, kBatch = Rows::kBatch;
    const Rows rows(params);
    const int k0 = Rows::first_channel(warp, lane);
    const int limit = k_limit / kColumns;
    Out* out = static_cast<Out*>(params.out) + (k_base / kColumns + k0) * params.out_k;
    Out* to[kParts];  // null: outside
    uint32_t from[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const auto pixel = rows.pixel(i, lane, k0);
      const int64_t at = offset(first_block + m0 + pixel.m, pixel.pixel);
      to[i] = at < 0 ? nullptr : out + at;
      from[i] = smem + pixel.from;
    }
#pragma unroll
    for (int first = 0; first < kBlockK / kColumns; first += kPass) {
      ptx::barrier_sync<128>(barrier);
#pragma unroll
      for (int m = 0; m < kTogether; ++m) {
        if constexpr (kColumns == 1) {
          turn<Rows>(rows, acc[m0 + m], m, first);
        } else {
          turn_pairs<Rows>(rows, acc[m0 + m], m, first);
        }
      }
      ptx::barrier_sync<128>(barrier);
#pragma unroll 1
      for (int k = 0; k < kPass && first + k < limit; k += kStep * kBatch) {
        Value v[kBatch][kParts];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
#pragma unroll
          for (int i = 0; i < kParts; ++i) {
            v[b][i] = Vector::load(Rows::further(from[i], b * kStep) + k * Rows::kRowBytes);
          }
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const bool exists = first + k + b * kStep + k0 < limit;
#pragma unroll
          for (int i = 0; i < kParts; ++i) {
            if (exists && to[i] != nullptr) {
              *reinterpret_cast<Value*>(to[i] + (first + k + b * kStep) * params.out_k) = v[b][i];
            }
          }
        }
      }
    }
  }

  // Rows::kPass channels from `first` of M-block m to shared memory.
  template <typename Rows>
  __device__ __forceinline__ void turn(const Rows& rows, const float (&acc)[kAccumulators], int m, int first) const {
    if constexpr (kFloats) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t to = smem + rows.sum(m, fragment_sum(warp, lane, half, i));
#pragma unroll
          for (int c = 0; c < Rows::kPass; c += 8) {
            ptx::store_shared_float(to + c * Rows::kRowBytes, acc[(first + c) / 2 + 2 * half + i]);
          }
        }
      }
    } else {
      const uint32_t matrix_row = smem + rows.matrix_row(m, warp, lane);
#pragma unroll
      for (int c = 0; c < Rows::kPass; c += 16) {
        uint32_t v[4];
        fragment(acc, first + c, v);
        ptx::stmatrix4<true>(matrix_row + c * Rows::kRowBytes, v);
      }
    }
  }

  // The same where neighbouring sums are a pair: four channels of eight sums.
  template <typename Rows>
  __device__ __forceinline__ void turn_pairs(const Rows& rows, const float (&acc)[kAccumulators], int m,
                                             int first) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t to = smem + rows.sum(m, {fragment_sum(warp, lane, half, 0).pixel, lane % 4});
#pragma unroll
      for (int c = 0; c < Rows::kPass; c += 4) {
        const float x = acc[first + c + 2 * half], y = acc[first + c + 2 * half + 1];
        if constexpr (kFloats) {
          ptx::store_shared_floats(Rows::further(to, c), x, y);
        } else {
          ptx::store_shared4(Rows::further(to, c), pack2<Out>(x, y));
        }
      }
    }
  }

  __device__ __forceinline__ void store_elements(const float (&acc)[kAccumulators], int block) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = offset(block, warp * 16 + lane / 4 + 8 * half);
      if (at < 0) continue;
      auto* out = static_cast<Bits<Out>*>(params.out) + at + (k_base + lane % 4 * 2) * params.out_k;
      const int limit = k_limit - lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < kBlockK / 8; ++j, out += 8 * params.out_k) {
        Bits<Out> x, y;
        round2<Out>(acc[j * 4 + 2 * half], acc[j * 4 + 2 * half + 1], x, y);
        if (j * 8 < limit) out[0] = x;
        if (j * 8 + 1 < limit) out[params.out_k] = y;
      }
    }
  }
};

}  // namespace fastconv
