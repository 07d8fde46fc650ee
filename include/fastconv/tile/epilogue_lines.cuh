// Accumulators of one warpgroup to NCHW memory in whole lines, wherever the output's rows begin. The tiles of a run are
// rows of pixels that follow each other in memory, so each filter's output is one stream of bytes; what a tile leaves
// of its last line waits in shared memory for the next. A line that the run shares with others is stored in pieces.
#pragma once

#include "fastconv/tile/epilogue_sm90.cuh"

namespace fastconv {

template <typename T, int kBlockK, int kMBlocks>
struct LineEpilogue : Epilogue<T, kBlockK, kMBlocks> {
  using Base = Epilogue<T, kBlockK, kMBlocks>;
  using Base::params, Base::tile, Base::warp, Base::lane, Base::smem, Base::barrier, Base::k_limit;
  static constexpr int kPitch = line_pitch(kMBlocks);
  static constexpr int kTileBytes = kMBlocks * 128;
  static constexpr int kLines = kMBlocks + 1;  // that a tile reaches into; it ends all but the last
  // 8 lanes store a line, so a warp four, of as many streams; a few go ahead together.
  static constexpr int kBatch = 2, kStreams = kBlockK / 4;
  static_assert(kStreams % (4 * kBatch) == 0);

  using Base::Base;

  // NOTES: streams are 16 bytes apart in shared memory, after whole lines, and their leads go by address: filters that
  // are whole lines apart in memory meet no other's banks.
  __device__ __forceinline__ void store(float (&acc)[kMBlocks][kBlockK / 2], const StreamPart& part) const {
    if (params.bias != nullptr) this->add_bias(acc);
    uint8_t* first = static_cast<uint8_t*>(params.out) + 2 * (tile.n * params.out_n + tile.p * params.out_h + tile.q);
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
  static __device__ __forceinline__ uint32_t low(const uint8_t* address) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address));
  }

  __device__ __forceinline__ void scatter(const float (&acc)[kMBlocks][kBlockK / 2], uint32_t first,
                                          int32_t bytes) const {
    const auto plane = static_cast<uint32_t>(2 * params.out_k);
    const uint32_t to = smem + (warp * 16 + lane % 4 * 2) * 2;
#pragma unroll
    for (int j = 0; j < kBlockK / 8; ++j) {
      const int k = j * 8 + lane / 4;
      const uint32_t at = to + k * kPitch + StreamLines(first + k * plane, bytes).lead;
#pragma unroll
      for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t v = pack2<T>(acc[m][j * 4 + half * 2], acc[m][j * 4 + half * 2 + 1]);
          ptx::store_shared4(at + m * 128 + half * 16, ptx::transpose_matrix(v));
        }
      }
    }
  }

  // Each warp a quarter of the streams. kInner: the tile is whole, and lines that it shares with others are its run's.
  template <bool kInner>
  __device__ __forceinline__ void drain(uint8_t* first, const StreamPart& part) const {
    const int chunk = lane % 8 * 16, k0 = warp * kStreams + lane / 8;
    const int64_t step = 8 * params.out_k;  // bytes from a stream to the next of the lane's
    uint8_t* at = first + 2 * params.out_k * k0;
    uint32_t stream = smem + k0 * kPitch + chunk;
#pragma unroll 1
    for (int k = k0; k < k0 + kStreams; k += 4 * kBatch, at += kBatch * step, stream += 4 * kBatch * kPitch) {
      uint4 v[kBatch][kLines];
      __syncwarp();
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int i = 0; i < kLines; ++i) v[b][i] = ptx::load_shared16(stream + b * 4 * kPitch + i * kLineBytes);
      }
      __syncwarp();
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const StreamLines lines(low(at + b * step), part.bytes);
        uint8_t* line = at + b * step + (chunk - lines.lead);
        const bool exists = k + b * 4 < k_limit;
#pragma unroll
        for (int i = 0; i < kMBlocks; ++i) {
          if ((!kInner && i >= lines.whole) || !exists) continue;
          if (!kInner && i == 0 && part.begins) {
            store_piece(line, v[b][0], lines.lead - chunk, 16);
          } else {
            __stcs(reinterpret_cast<uint4*>(line + i * kLineBytes), v[b][i]);  // L2 is for the input
          }
        }
        uint4 rest = v[b][kMBlocks];
#pragma unroll
        for (int i = 0; !kInner && i < kMBlocks; ++i) rest = i == lines.whole ? v[b][i] : rest;
        if (!kInner && part.ends) {
          if (exists) store_piece(line + lines.whole * kLineBytes, rest, 0, lines.rest - chunk);
        } else {
          ptx::store_shared16(stream + b * 4 * kPitch, rest);
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
