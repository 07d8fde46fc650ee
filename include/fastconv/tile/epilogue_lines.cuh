// Accumulators of one warpgroup to NCHW memory in whole lines, wherever the output's rows begin. The tiles of a run are
// rows of pixels that follow each other in memory, so each filter's output is one stream of bytes; what a tile leaves
// of its last line waits in shared memory for the next. A line that the run shares with others is stored in pieces.
#pragma once

#include "fastconv/tile/epilogue_sm90.cuh"

namespace fastconv {

template <typename Out, int kBlockK, int kMBlocks>
struct LineEpilogue : Epilogue<Out, kBlockK, kMBlocks> {
  using Base = Epilogue<Out, kBlockK, kMBlocks>;
  using Base::params, Base::tile, Base::warp, Base::lane, Base::smem, Base::barrier, Base::k_limit;
  static constexpr int kPitch = line_pitch(kMBlocks, sizeof(Out));
  static constexpr int kBytes = sizeof(Out), kTileBytes = kMBlocks * 64 * kBytes;
  static constexpr int kWhole = kTileBytes / kLineBytes, kLines = kWhole + 1;  // that a tile ends, and reaches into
  // 8 lanes store a line, so a warp four, of as many streams; a few go ahead together.
  static constexpr int kBatch = 2, kStreams = kBlockK / 4;
  static_assert(kStreams % (4 * kBatch) == 0);

  using Base::Base;

  __device__ __forceinline__ void store(float (&acc)[kMBlocks][kBlockK / 2], const StreamPart& part) const {
    if (params.bias != nullptr) this->add_bias(acc);
    uint8_t* first =
        static_cast<uint8_t*>(params.out) + kBytes * (tile.n * params.out_n + tile.p * params.out_h + tile.q);
    ptx::barrier_sync<128>(barrier);  // what the last tile left is in its place
    scatter(acc, low(first), part.bytes);
    ptx::barrier_sync<128>(barrier);
    if (part.begins || part.ends || part.bytes < kTileBytes) {
      drain<false>(first, part);
    } else {
      drain<true>(first, part);
    }
  }

 private:
  // The banks of shared memory and the places in a line depend on the low bits alone.
  __device__ __forceinline__ uint32_t plane_bytes() const { return static_cast<uint32_t>(kBytes * params.out_k); }
  static __device__ __forceinline__ uint32_t low(const uint8_t* address) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address));
  }

  __device__ __forceinline__ void scatter(const float (&acc)[kMBlocks][kBlockK / 2], uint32_t first,
                                          int32_t bytes) const {
    const uint32_t plane = plane_bytes();
    const int pitch = stream_pitch(kPitch, plane);
    // A lane has two pixels of one filter of 8 once 16-bit values are transposed, and one float of two filters.
    const int column = Base::kFloats ? lane / 4 : lane % 4 * 2, row = Base::kFloats ? lane % 4 * 2 : lane / 4;
    const uint32_t to = smem + (warp * 16 + column) * kBytes;
#pragma unroll
    for (int j = 0; j < kBlockK / 8; ++j) {
#pragma unroll
      for (int i = 0; i < (Base::kFloats ? 2 : 1); ++i) {
        const int k = j * 8 + row + i;
        const uint32_t at = to + k * pitch + StreamLines(first + k * plane, bytes).lead;
#pragma unroll
        for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float (&sums)[kBlockK / 2] = acc[m];
            const int e = j * 4 + half * 2;
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

  // Each warp a quarter of the streams. kInner: the tile is whole, and lines that it shares with others are its run's.
  template <bool kInner>
  __device__ __forceinline__ void drain(uint8_t* first, const StreamPart& part) const {
    const int chunk = lane % 8 * 16, k0 = warp * kStreams + lane / 8;
    const int64_t step = 4 * kBytes * params.out_k;  // bytes from a stream to the next of the lane's
    const int pitch = stream_pitch(kPitch, plane_bytes());
    uint8_t* at = first + kBytes * params.out_k * k0;
    uint32_t stream = smem + k0 * pitch + chunk;
#pragma unroll 1
    for (int k = k0; k < k0 + kStreams; k += 4 * kBatch, at += kBatch * step, stream += 4 * kBatch * pitch) {
      uint4 v[kBatch][kLines];
      __syncwarp();
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int i = 0; i < kLines; ++i) v[b][i] = ptx::load_shared16(stream + b * 4 * pitch + i * kLineBytes);
      }
      __syncwarp();
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const StreamLines lines(low(at + b * step), part.bytes);
        uint8_t* line = at + b * step + (chunk - lines.lead);
        const bool exists = k + b * 4 < k_limit;
#pragma unroll
        for (int i = 0; i < kWhole; ++i) {
          if ((!kInner && i >= lines.whole) || !exists) continue;
          if (!kInner && i == 0 && part.begins) {
            store_piece(line, v[b][0], lines.lead - chunk, 16);
          } else {
            __stcs(reinterpret_cast<uint4*>(line + i * kLineBytes), v[b][i]);  // L2 is for the input
          }
        }
        uint4 rest = v[b][kWhole];
#pragma unroll
        for (int i = 0; !kInner && i < kWhole; ++i) rest = i == lines.whole ? v[b][i] : rest;
        if (!kInner && part.ends) {
          if (exists) store_piece(line + lines.whole * kLineBytes, rest, 0, lines.rest - chunk);
        } else {
          ptx::store_shared16(stream + b * 4 * pitch, rest);
        }
      }
    }
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
