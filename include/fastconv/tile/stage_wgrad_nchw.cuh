// Producers of the weight gradient for NCHW. WgradStaging::kTransposed: x is copied as it lies and transposed by warps,
// dy copied as rows of pixels. kDense: both are copied as they lie and transposed.
#pragma once

#include "fastconv/tile/ring.cuh"
#include "fastconv/tile/transpose.cuh"
#include "fastconv/tile/wgrad_walk.cuh"

namespace fastconv {

// One thread.
template <int kChannels>
__device__ __forceinline__ void load_wgrad_raw(const WgradParams& params, const WgradJob& job, int32_t split,
                                               const RawMaps& maps, Ring& raw) {
  const WgradTapGroup& group = params.tap_group[job.tap_group];
  const int32_t c_block = job.c_job * params.c_blocks_per_job;
  for (int t = split; t < params.tiles; t += params.splits) {
    const WgradTile tile(params, t);
    for (int i = group.part_begin; i < group.part_end; ++i) {
      const int32_t channel = (c_block + params.part[i].c_block) * kChannels;
      for_each_raw_row(params, tile, params.part[i], [&](int, int h, int, int start) {
        if (!exists(params, h, channel)) return;
        raw.wait_empty();
        load_raw_row(params.raw, maps, raw, start, h, channel, job.group, tile.n);
        raw.next();
      });
    }
  }
}

// One thread: dy's rows of a stage.
__device__ __forceinline__ void load_wgrad_rows(const WgradParams& params, const WgradJob& job, const WgradTile& tile,
                                                const RawMaps& maps, uint32_t to, uint32_t barrier) {
  for (int m = 0; m < params.m_blocks; ++m, to += params.y_block_bytes) {
    for_each_y_copy(params, tile, job.k_job * params.m_blocks + m, [&](int map, int p, int filter, int place) {
      ptx::tma_load(to + place * params.tile_q * 128, &maps.map[map], tile.q, filter, job.group, p, tile.n, barrier);
    });
  }
}

// kWarps warps, each a share of dy's rows: what lies before the image's first column, other rows' pixels.
template <int kWarps>
__device__ __forceinline__ void clear_wgrad_margin(const WgradParams& params, const WgradJob& job, uint32_t y, int warp,
                                                   int lane) {
  const int row_bytes = params.tile_q * 2, swizzle = (row_bytes >> 4) - 1;
  for (int i = warp; i < params.m_blocks * params.tile_p; i += kWarps) {
    const int m = i / params.tile_p, row = i - m * params.tile_p;
    const int row_phase = row & ((1 << params.rows.row_log2) - 1);
    const int phase = params.rows.filter_phase(job.k_job * params.m_blocks + m) << params.rows.row_log2 | row_phase;
    const int shift = params.rows.shift[phase];
    const uint32_t base = y + m * params.y_block_bytes;
    for (int filter = lane; filter < 64; filter += 32) {
      const uint32_t first = (params.rows.place(row, params.tile_p) * 64 + filter) * row_bytes;
      const uint32_t flip = ((first >> 7) & swizzle) << 4;  // the same for all of the row
      for (int j = 0; j < shift; ++j) ptx::store_shared2(base + ((first + 2 * j) ^ flip), 0);
    }
  }
}

// kWarps warps; the ring's full barrier expects each. A row that was copied belongs to the warp whose turn its stage
// is: see transpose_halo. Where dy has margins to clear, it has a barrier a stage of its own.
template <int kChannels, int kWarps>
__device__ __forceinline__ void transpose_wgrad(const WgradParams& params, const WgradJob& job, int32_t split,
                                                const RawMaps& y_maps, Ring& raw, Ring& ring, uint32_t y_barriers,
                                                int warp, const TransposeRow<kChannels>& transpose) {
  const WgradTapGroup& group = params.tap_group[job.tap_group];
  const int32_t c_block = job.c_job * params.c_blocks_per_job;
  const bool copies = warp == 0 && transpose.lane == 0;
  for (int t = split; t < params.tiles; t += params.splits) {
    const WgradTile tile(params, t);
    const uint32_t y = ring.stage() + params.y_offset, y_barrier = y_barriers + 8 * ring.index;
    ring.wait_empty();
    if (copies) {
      const int32_t bytes = params.m_blocks * params.y_box_bytes;
      if (params.rows.shifted) {
        ptx::mbarrier_arrive_expect(y_barrier, bytes);
      } else {
        ptx::mbarrier_expect(ring.full(), bytes);
      }
      load_wgrad_rows(params, job, tile, y_maps, y, params.rows.shifted ? y_barrier : ring.full());
    }
    __syncwarp();
    uint32_t to = ring.stage();
    for (int p = group.part_begin; p < group.part_end; ++p, to += params.x_part_bytes) {
      const int32_t channel = (c_block + params.part[p].c_block) * kChannels, pitch = params.x.pitch;
      for_each_raw_row(params, tile, params.part[p], [&](int i, int h, int w, int start) {
        const bool there = exists(params, h, channel), mine = (there ? raw.index : i) % kWarps == warp;
        if (mine && there) {
          raw.wait_full();
          transpose.run(raw.stage(), start, w, to, i * pitch, pitch);
          __syncwarp();
          if (transpose.lane == 0) ptx::mbarrier_arrive(raw.empty());
        } else if (mine) {
          transpose.clear(to, i * pitch, pitch);
        }
        if (there) raw.next();
      });
    }
    if (params.rows.shifted) {
      ptx::mbarrier_wait(y_barrier, ring.parity);
      if (tile.q == 0) clear_wgrad_margin<kWarps>(params, job, y, warp, transpose.lane);
    }
    ptx::async_proxy_fence();
    __syncwarp();
    if (transpose.lane == 0) ptx::mbarrier_arrive(ring.full());
    ring.next();
  }
}

// One thread.
__device__ __forceinline__ void load_wgrad_slices(const WgradParams& params, const WgradJob& job, int32_t split,
                                                  const RawMaps& x_maps, const RawMaps& y_maps, Ring& raw) {
  for (int t = split; t < params.tiles; t += params.splits) {
    const WgradTile tile(params, t);
    for_each_slice(params, job, tile, [&](const WgradSlice& slice) {
      if (slice.begin == slice.end) return;
      const RawRows& rows = slice.is_x ? params.raw : params.raw_y;
      const RawMaps& maps = slice.is_x ? x_maps : y_maps;
      const int channels = 64 >> rows.row_phases_log2;  // of a phase
      for (int box = 0; box < rows.boxes; ++box) {
        raw.wait_empty();
        ptx::mbarrier_arrive_expect(raw.full(), rows.box_w * 128);
        for (int phase = 0; phase < 1 << rows.row_phases_log2; ++phase) {
          ptx::tma_load(raw.stage() + phase * channels * rows.box_w * 2, &maps.map[phase],
                        raw_row_start(rows, slice.begin, phase, box) + rows.shift[phase], slice.block * channels,
                        job.group, 0, slice.n, raw.full());
        }
        raw.next();
      }
    });
  }
}

// One of kWarps warps that share a raw stage, every so manieth group of 8 pixels: 8x8 blocks of 8 chunks of channels.
template <int kWarps>
__device__ __forceinline__ void transpose_slice(const WgradOperand& from, const RawRows& rows, const WgradSlice& slice,
                                                int box, uint32_t source, uint32_t to, uint32_t waste, int warp,
                                                int lane) {
  const int matrix = lane / 8, groups = rows.box_w / 8;
  int chunk[2], start[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    chunk[half] = half * 4 + matrix;
    start[half] = raw_row_start(rows, slice.begin, chunk[half] >> (3 - rows.row_phases_log2), box) + lane % 8;
  }
  const uint32_t row = source + (matrix * 8 + lane % 8) * rows.box_w * 2, half_bytes = 32 * rows.box_w * 2;
  for (int i = warp; i < groups; i += 2 * kWarps) {
    uint32_t v[2][2][4];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int group = min(i + u * kWarps, groups - 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) ptx::ldmatrix4<true>(row + half * half_bytes + group * 16, v[u][half]);
    }
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      if (i + u * kWarps >= groups) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int pixel = slice_pixel(from, slice, start[half] + (i + u * kWarps) * 8);
        const uint32_t address = to + pixel * 128 + ((chunk[half] ^ (pixel & 7)) << 4);
        ptx::stmatrix4<false>(pixel < 0 ? waste : address, v[u][half]);
      }
    }
  }
}

// kWarps warps, all of them at every raw stage. Columns of padding are never written.
template <int kWarps>
__device__ __forceinline__ void transpose_wgrad_slices(const WgradParams& params, const WgradJob& job, int32_t split,
                                                       Ring& raw, Ring& ring, uint32_t waste, int warp, int lane) {
  for (int t = split; t < params.tiles; t += params.splits) {
    const WgradTile tile(params, t);
    ring.wait_empty();
    for_each_slice(params, job, tile, [&](const WgradSlice& slice) {
      const WgradOperand& from = slice.is_x ? params.x : params.y;
      const RawRows& rows = slice.is_x ? params.raw : params.raw_y;
      const uint32_t to = ring.stage() + slice.to;
      const bool there = slice.begin < slice.end;
      for (int i = warp; i < slice.rows; i += kWarps) {
        if (there && slice.h + i >= 0 && slice.h + i < from.h) continue;
        const uint32_t row = to + (slice.first + i * from.pitch) * 128;
        for (int at = lane * 16; at < from.pitch * 128; at += 512) ptx::store_shared16(row + at, {0, 0, 0, 0});
      }
      for (int box = 0; there && box < rows.boxes; ++box) {
        raw.wait_full();
        transpose_slice<kWarps>(from, rows, slice, box, raw.stage(), to, waste, warp, lane);
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(raw.empty());
        raw.next();
      }
    });
    ptx::async_proxy_fence();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ring.full());
    ring.next();
  }
}

}  // namespace fastconv
