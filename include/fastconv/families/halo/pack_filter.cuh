// Packs the filter for the halo engine, see packed_filter.h; by the blocks of a convolution kernel together, before
// their products. NOTES: loops are short and hardly unrolled, because each runs a few times, by instructions that come
// from memory too.
#pragma once

#include "fastconv/families/halo/folded_filter.h"
#include "fastconv/families/halo/params.h"
#include "fastconv/ptx/mbarrier.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/ptx/warpgroup.cuh"

namespace fastconv {

// A block's share, by so many of its threads, which have a named barrier of their own. kColumns of the output at once.
template <int kColumns>
struct FilterPacker {
  const HaloParams& params;
  const PackParams& pack;
  int thread, threads, block_barrier;
  uint32_t table, barrier, data;  // shared memory
  int first, end;                 // pieces
  uint32_t parity = 0;

  __device__ FilterPacker(const HaloParams& params, uint32_t smem, int thread, int threads, int block_barrier)
      : params(params),
        pack(params.pack),
        thread(thread),
        threads(threads),
        block_barrier(block_barrier),
        table(smem),
        barrier(table + 8 * pack.step_taps.divisor),
        data(smem + pack_table_bytes(static_cast<int>(pack.step_taps.divisor))) {
    const int blocks = static_cast<int>(gridDim.x), share = (pack.pieces + blocks - 1) / blocks;
    first = min(share * static_cast<int>(blockIdx.x), pack.pieces), end = min(first + share, pack.pieces);
    if (thread == 0) {
      ptx::mbarrier_init(barrier, threads);
      ptx::mbarrier_init_fence();
    }
    for (int tap = thread; tap < static_cast<int>(pack.step_taps.divisor); tap += threads) {
      ptx::store_shared4(table + 8 * tap, ~0u);
    }
    sync();
  }

  __device__ __forceinline__ void sync() const { ptx::barrier_sync(block_barrier, threads); }

  // For each of the steps' taps the step of the first channel block, or -1 if it reaches no output; then steps to the
  // next one, and where several columns meet a step in the upper half the filter's tap.
  __device__ __forceinline__ void find_steps() const {
    for (int p = 0; p < params.phase_count; ++p) {
      const OutputPhase& phase = params.phase[p];
      int step = phase.first_step;
      for (int g = phase.group_begin; g < phase.group_end; ++g) {
        const TapGroup& group = params.group[g];
        for (int t = thread; t < group.rows * group.cols; t += threads) {
          const int i = t / group.cols, j = t - i * group.cols;
#pragma unroll
          for (int column = 0; column < kColumns; ++column) {
            const int r = group.r0 + i * group.dr, s = group.s0 + j * group.ds + column;
            const uint32_t entry = table + 8 * step_tap(pack, r, s);
            const uint32_t tap = kColumns == 1 ? 0 : static_cast<uint32_t>(filter_tap(pack, r, s)) << 16;
            ptx::store_shared4(entry, step + t), ptx::store_shared4(entry + 4, tap | phase.taps);
          }
        }
        step += group.rows * group.cols;
      }
    }
    sync();
  }

  // The next pieces into shared memory.
  __device__ __forceinline__ void load() const {
    const int count = min(pack.at_once, end - first) * static_cast<int>(pack.segments.divisor);
    const auto* filter = static_cast<const uint16_t*>(pack.filter);
    if (!pack.copied) {
#pragma unroll 2
      for (int index = thread; index < count * static_cast<int>(pack.segment.divisor); index += threads) {
        int segment, at, i, outer;
        pack.segment.divmod(index, segment, at);
        pack.segments.divmod(segment, i, outer);
        const PackPiece piece(pack, first + i);
        if (at >= piece.segment_size(pack, outer)) continue;
        const uint16_t value = filter[piece.segment_source(pack, outer) + pack_source(pack, at)];
        ptx::store_shared2(data + i * pack.piece_bytes + 2 * (segment_slot(pack, outer) + at), value);
      }
      ptx::mbarrier_arrive(barrier);
      return;
    }
    // NOTES: as another loop by as many threads as above, ptxas would spill.
#pragma unroll
    for (int u = 0; u < kPackCopies; ++u) {
      const int index = thread + u * threads;
      if (index >= count) break;
      int i, outer;
      pack.segments.divmod(index, i, outer);
      const PackPiece piece(pack, first + i);
      const int bytes = 2 * piece.segment_size(pack, outer);
      if (bytes == 0) continue;
      ptx::mbarrier_expect(barrier, bytes);
      ptx::bulk_load(data + i * pack.piece_bytes + 2 * segment_slot(pack, outer),
                     filter + piece.segment_source(pack, outer), bytes, barrier);
    }
    ptx::mbarrier_arrive(barrier);
  }

  __device__ __forceinline__ void write() const {
    const int chunks = min(pack.at_once, end - first) * static_cast<int>(pack.chunks.divisor);
    const int step_log2 = pack.block_k_log2 + pack.channels_log2;
#pragma unroll 1
    for (int index = thread; index < chunks; index += threads) {
      int i, rest;
      pack.chunks.divmod(index, i, rest);
      const PackPiece piece(pack, first + i);
      const PackChunk chunk(pack, piece, rest, kColumns);
      const uint32_t entry = table + 8 * chunk.tap, from = data + i * pack.piece_bytes;
      const int step = static_cast<int>(ptx::load_shared4(entry));
      if (step < 0) continue;
      int taps = static_cast<int>(ptx::load_shared4(entry + 4)), tap = chunk.tap;
      if constexpr (kColumns > 1) tap = taps >> 16, taps &= 0xffff;
      const bool in_filter = kColumns == 1 || tap >= 0;
      const int steps = piece.c_block * taps + step;
      uint32_t value[8];
#pragma unroll
      for (int c = 0; c < 8; ++c) value[c] = ptx::load_shared2(from + 2 * chunk.slot(pack, c, in_filter ? tap : 0));
      const int exist = in_filter ? chunk.exist(pack, piece) : 0;
      if (exist < 8) {
#pragma unroll
        for (int c = 0; c < 8; ++c) value[c] = c < exist ? value[c] : 0;
      }
      auto* to = static_cast<uint16_t*>(params.packed_filter) + chunk.at +
                 ((int64_t{piece.filter_tile} * params.steps_per_filter_tile + steps) << step_log2);
      auto pair = [&](int c) { return value[c] | value[c + 1] << 16; };
      *reinterpret_cast<uint4*>(to) = {pair(0), pair(2), pair(4), pair(6)};
    }
  }

  __device__ __forceinline__ void finish() {
    find_steps();
    while (true) {
      ptx::mbarrier_wait(barrier, parity);
      write();
      first = min(first + pack.at_once, end), parity ^= 1;
      sync();
      if (first == end) break;
      load();
    }
    if (thread == 0) ptx::mbarrier_invalidate(barrier);
  }

  // The first copies are under way while steps are looked up.
  __device__ __forceinline__ void run() {
    load();
    finish();
  }
};

// Of a folded convolution: this thread's share, of `threads`. These filters are small.
__device__ __forceinline__ void pack_folded_filter(const HaloParams& params, const Fold& fold, int thread,
                                                   int threads) {
  const auto* filter = static_cast<const uint16_t*>(params.pack.filter);
#pragma unroll 1
  for (int index = thread; index < params.pack.pieces; index += threads) {
    const FoldedPackChunk chunk(params, index);
    uint32_t value[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int64_t source = chunk.source(params.pack, fold, i);
      value[i] = source < 0 ? 0 : uint32_t{filter[source]};
    }
    auto pair = [&](int i) { return value[i] | value[i + 1] << 16; };
    auto* packed = static_cast<uint16_t*>(params.packed_filter);
    *reinterpret_cast<uint4*>(packed + chunk.at) = {pair(0), pair(2), pair(4), pair(6)};
  }
}

}  // namespace fastconv
