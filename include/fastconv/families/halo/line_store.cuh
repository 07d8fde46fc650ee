// Accumulators of one warpgroup to NCHW memory in whole lines, wherever the output's rows begin. The tiles of a run are
// rows of pixels that follow each other in memory, so each filter's output is one stream of bytes; what a tile leaves
// of its last line waits in shared memory for the next. A line that the run shares with others is stored in pieces.
#pragma once

#include "fastconv/families/halo/tile_store.cuh"

namespace fastconv {

// kLineFilters at a time pass through shared memory.
template <typename Out, int kBlockK, int kMBlocks>
struct LineStore : TileStore<Out, kBlockK, kMBlocks> {
  using Base = TileStore<Out, kBlockK, kMBlocks>;
  using Base::params, Base::tile, Base::warp, Base::lane, Base::smem, Base::barrier, Base::k_limit;
  static constexpr int kPitch = line_pitch(kMBlocks, sizeof(Out));
  static constexpr int kBytes = sizeof(Out), kTileBytes = kMBlocks * 64 * kBytes;
  static constexpr int kWhole = kTileBytes / kLineBytes, kLines = kWhole + 1;  // that a tile ends, and reaches into
  static_assert(kLineFilters == 16);  // 8 lanes store a line, so a warp those of four streams

  using Base::Base;

  __device__ __forceinline__ void store(float (&acc)[kMBlocks][kBlockK / 2], const StreamPart& part) const {
    this->finish(acc);
    uint8_t* first =
        static_cast<uint8_t*>(params.out) + kBytes * (tile.n * params.out_n + tile.p * params.out_h + tile.q);
    const bool inner = !(part.begins || part.ends || part.bytes < kTileBytes);
#pragma unroll
    for (int k0 = 0; k0 < kBlockK; k0 += kLineFilters) {
      uint4 v[kLines];
      scatter(acc, k0, low(first), part.bytes);
      ptx::barrier_sync<128>(barrier);
      load(v);
      ptx::barrier_sync<128>(barrier);  // others may scatter what is next while this is stored
      if (inner) {
        drain<true>(first, k0, part, v);
      } else {
        drain<false>(first, k0, part, v);
      }
    }
  }

 private:
  // The banks of shared memory and the places in a line depend on the low bits alone.
  __device__ __forceinline__ uint32_t plane_bytes() const { return static_cast<uint32_t>(kBytes * params.out_k); }
  static __device__ __forceinline__ uint32_t low(const uint8_t* address) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address));
  }
  // Before the buffer of the round: of each filter the line that the last tile began.
  __device__ __forceinline__ uint32_t streams() const { return smem + kBlockK * kLineBytes; }

  __device__ __forceinline__ void scatter(const float (&acc)[kMBlocks][kBlockK / 2], int k0, uint32_t first,
                                          int32_t bytes) const {
    const uint32_t plane = plane_bytes();
    const int pitch = stream_pitch(kPitch, plane);
    // A lane has two pixels of one filter of 8 once 16-bit values are transposed, and one float of two filters.
    const int column = Base::kFloats ? lane / 4 : lane % 4 * 2, row = Base::kFloats ? lane % 4 * 2 : lane / 4;
    const uint32_t to = streams() + (warp * 16 + column) * kBytes;
#pragma unroll
    for (int j = 0; j < kLineFilters / 8; ++j) {
#pragma unroll
      for (int i = 0; i < (Base::kFloats ? 2 : 1); ++i) {
        const int k = j * 8 + row + i;
        const uint32_t at = to + k * pitch + StreamLines(first + (k0 + k) * plane, bytes).lead;
#pragma unroll
        for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float (&sums)[kBlockK / 2] = acc[m];
            const int e = k0 / 2 + j * 4 + half * 2;
            const uint32_t address = at + (m * 64 + half * 8) * kBytes;
            if constexpr (Base::kFloats) {
              ptx::store_shared_float(address, sums[e + i]);
            } else {
              ptx::store_shared4(address, ptx::transpose_matrix(pack2<Out>(sums[e], sums[e + 1])));
            }
          }
        }
      }
    }
  }

  // A lane has 16 bytes of each line of one stream.
  __device__ __forceinline__ int stream() const { return warp * 4 + lane / 8; }
  __device__ __forceinline__ int chunk() const { return lane % 8 * 16; }

  __device__ __forceinline__ void load(uint4 (&v)[kLines]) const {
    const uint32_t from = streams() + stream() * stream_pitch(kPitch, plane_bytes()) + chunk();
#pragma unroll
    for (int i = 0; i < kLines; ++i) v[i] = ptx::load_shared16(from + i * kLineBytes);
  }

  // kInner: the tile is whole, and lines that it shares with others are its run's.
  template <bool kInner>
  __device__ __forceinline__ void drain(uint8_t* first, int k0, const StreamPart& part, uint4 (&v)[kLines]) const {
    const int k = k0 + stream();
    const uint32_t begun = smem + k * kLineBytes + chunk();
    uint8_t* at = first + kBytes * params.out_k * k;
    const StreamLines lines(low(at), part.bytes);
    uint8_t* line = at + (chunk() - lines.lead);
    const bool exists = k < k_limit;
    if (kInner || !part.begins) v[0] = joined(ptx::load_shared16(begun), v[0], lines.lead - chunk());
#pragma unroll
    for (int i = 0; i < kWhole; ++i) {
      if ((!kInner && i >= lines.whole) || !exists) continue;
      if (!kInner && i == 0 && part.begins) {
        store_piece(line, v[0], lines.lead - chunk(), 16);
      } else {
        __stcs(reinterpret_cast<uint4*>(line + i * kLineBytes), v[i]);  // L2 is for the input
      }
    }
    uint4 rest = v[kWhole];
#pragma unroll
    for (int i = 0; !kInner && i < kWhole; ++i) rest = i == lines.whole ? v[i] : rest;
    if (!kInner && part.ends) {
      if (exists) store_piece(line + lines.whole * kLineBytes, rest, 0, lines.rest - chunk());
    } else {
      ptx::store_shared16(begun, rest);
    }
  }

  // The first `bytes` of `begun` and what follows them in `v`.
  static __device__ __forceinline__ uint4 joined(const uint4& begun, const uint4& v, int bytes) {
    return {bytes > 0 ? begun.x : v.x, bytes > 4 ? begun.y : v.y, bytes > 8 ? begun.z : v.z,
            bytes > 12 ? begun.w : v.w};
  }

  // Bytes `begin` up to `end` of a chunk.
  static __device__ __forceinline__ void store_piece(uint8_t* chunk, const uint4& v, int begin, int end) {
    const uint32_t values[] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (4 * i >= begin && 4 * i < end) reinterpret_cast<uint32_t*>(chunk)[i] = values[i];
    }
  }
};

}  // namespace fastconv
