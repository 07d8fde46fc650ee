// Producer of the weight gradient: the boxes of x and dy that a tile needs, one swizzled row of channels a pixel.
#pragma once

#include <cuda.h>

#include "fastconv/families/wgrad/walk.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/reorder.cuh"
#include "fastconv/tile/ring.cuh"
#include "fastconv/tile/tensor_maps.cuh"

namespace fastconv {

template <bool kPixelRows>
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int32_t channel, int32_t group, int32_t w,
                                         int32_t h, int32_t n, uint32_t barrier) {
  if constexpr (kPixelRows) {
    ptx::tma_load(to, map, w, channel, group, h, n, barrier);
  } else {
    ptx::tma_load(to, map, channel, group, w, h, n, barrier);
  }
}

// One thread: dy's rows of a stage.
__device__ __forceinline__ void copy_wgrad_rows(const WgradParams& params, const WgradJob& job, const WgradTile& tile,
                                                const TensorMaps& maps, uint32_t to, uint32_t barrier) {
  for (int m = 0; m < params.m_blocks; ++m, to += params.y_block_bytes) {
    for_each_y_copy(params, tile, job.k_job * params.m_blocks + m, [&](int map, int p, int filter, int place) {
      ptx::tma_load(to + place * params.tile_q * 128, &maps.map[map], tile.q, filter, job.group, p, tile.n, barrier);
    });
  }
}

// One thread: dy's planes of a stage, as they lie.
__device__ __forceinline__ void copy_wgrad_planes(const WgradParams& params, const WgradJob& job, const WgradTile& tile,
                                                  const CUtensorMap* map, uint32_t to, uint32_t barrier) {
  const WgradFloatsTile floats(params, tile);
  const int copies = params.floats.copy_pixels == 0 ? 1 : params.tile_p;
  for (int m = 0; m < params.m_blocks; ++m, to += params.y_block_bytes) {
    for (int i = 0; i < copies; ++i) {
      ptx::tma_load(to + i * 64 * 4 * params.floats.pitch, map, floats.copy(i), (job.k_job * params.m_blocks + m) * 64,
                    job.group, tile.n, 0, barrier);
    }
  }
}

// One warp. TMA fills in zeros for padding, for channels beyond C or K and for pixels beyond the image: a
// product with such a pixel of dy adds nothing, whatever x holds there. Shifted rows of dy have a barrier a stage of
// their own, for clear_wgrad_margins().
template <int kChannels, WgradStaging kStaging, typename YMaps>
__device__ __forceinline__ void stage_wgrad_tma(const WgradParams& params, const WgradShare& share,
                                                const CUtensorMap* x_map, const YMaps& y_maps, Ring& ring,
                                                uint32_t y_barriers, int lane) {
  const WgradJob& job = share.job;
  const WgradTapGroup& group = params.tap_group[job.tap_group];
  const int32_t c_block = job.c_job * params.c_blocks_per_job, k_block = job.k_job * params.m_blocks;
  const int32_t x_bytes = params.stage_parts * (group.part_end - group.part_begin) * params.x_box_bytes;
  const int32_t y_bytes = params.m_blocks * params.y_box_bytes;
  const bool apart = kStaging == WgradStaging::kTmaRows && params.rows.shifted;

  ReorderArrivals x{params.x_order, lane};
  for (int index = 0; index < params.products; ++index) {
    const SplitProduct product(params.parts, index);
    const int32_t x_group = job.group + product.first * params.groups;
    const int32_t y_group = job.group + product.second * params.groups;
    for (int t = share.split; t < params.tiles; t += params.splits, ring.next()) {
      const WgradTile tile(params, t);
      ring.wait_empty();
      if (streams_x(kStaging) && params.x_order.rounds > 0) x.wait(last_x_unit(params, group, tile));
      __syncwarp();
      if (lane != 0) continue;
      const uint32_t y_barrier = apart ? y_barriers + 8 * ring.index : ring.full();
      ptx::mbarrier_arrive_expect(ring.full(), apart ? x_bytes : x_bytes + y_bytes);
      if (apart) ptx::mbarrier_arrive_expect(y_barrier, y_bytes);
      for (int p = 0; p < params.stage_parts; ++p) {
        uint32_t to = ring.stage() + p * params.stage_part_bytes;
        for (int i = group.part_begin; i < group.part_end; ++i, to += params.x_part_bytes) {
          const WgradPart& part = params.part[i];
          copy_box<x_has_pixel_rows(kStaging)>(to, x_map, (c_block + part.c_block) * kChannels,
                                               x_group + p * params.groups, tile.q * params.stride_w + part.dw,
                                               tile.p * params.stride_h + part.dh, tile.n, ring.full());
        }
      }
      uint32_t to = ring.stage() + params.y_offset;
      if constexpr (kStaging == WgradStaging::kTmaRows) {
        copy_wgrad_rows(params, job, tile, y_maps, to, y_barrier);
      } else if constexpr (kStaging == WgradStaging::kFloats) {
        copy_wgrad_planes(params, job, tile, &y_maps, to, y_barrier);
      } else {
        for (int m = 0; m < params.m_blocks; ++m, to += params.y_block_bytes) {
          copy_box<y_has_pixel_rows(kStaging)>(to, &y_maps, (k_block + m) * 64, y_group, tile.q, tile.p, tile.n,
                                               y_barrier);
        }
      }
    }
  }
}

// One warp, which every stage of shifted rows of dy waits for: what they have before the image's first column, other
// rows' pixels, becomes zero.
__device__ __forceinline__ void clear_wgrad_margins(const WgradParams& params, const WgradShare& share, Ring& ring,
                                                    uint32_t y_barriers, int lane) {
  const int row_bytes = params.tile_q * 2, swizzle = (row_bytes >> 4) - 1;
  for (int t = share.split; t < params.tiles; t += params.splits, ring.next()) {
    const WgradTile tile(params, t);
    ptx::mbarrier_wait(y_barriers + 8 * ring.index, ring.parity);
    for (int i = 0; tile.q == 0 && i < params.m_blocks * params.tile_p; ++i) {
      const int m = i / params.tile_p, row = i - m * params.tile_p;
      const int phase = params.rows.filter_phase(share.job.k_job * params.m_blocks + m) << params.rows.row_log2;
      const int shift = params.rows.shift[phase | (row & ((1 << params.rows.row_log2) - 1))];
      const uint32_t base = ring.stage() + params.y_offset + m * params.y_block_bytes;
      for (int filter = lane; filter < 64; filter += 32) {
        const uint32_t first = (params.rows.place(row, params.tile_p) * 64 + filter) * row_bytes;
        const uint32_t flip = ((first >> 7) & swizzle) << 4;  // the same for all of the row
        for (int j = 0; j < shift; ++j) ptx::store_shared2(base + ((first + 2 * j) ^ flip), 0);
      }
    }
    ptx::async_proxy_fence();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ring.full());
  }
}

// A box of any layout, by the staging warps together: a thread gathers 8 channels of kVector neighbouring pixels in
// registers and writes each pixel's as one 16-byte chunk.
template <int kChannels, int kVector>
struct BoxStager {
  static constexpr int kChunks = kChannels / 8;
  static constexpr int kWords = kVector == 8 ? 4 : kVector == 4 ? 2 : 1;  // 32-bit registers a load
  static constexpr WgradSharing kSharing{kVector, kChunks};
  static constexpr int kBatch = kSharing.batch, kLaneUnits = kSharing.lane_units;
  static constexpr bool kSpread = kSharing.spread;

  static __device__ __forceinline__ void load(const uint16_t* source, uint32_t (&value)[kWords]) {
    if constexpr (kVector == 8) {
      const uint4 v = *reinterpret_cast<const uint4*>(source);
      value[0] = v.x, value[1] = v.y, value[2] = v.z, value[3] = v.w;
    } else if constexpr (kVector == 4) {
      const uint2 v = *reinterpret_cast<const uint2*>(source);
      value[0] = v.x, value[1] = v.y;
    } else if constexpr (kVector == 2) {
      value[0] = *reinterpret_cast<const uint32_t*>(source);
    } else {
      value[0] = *source;
    }
  }

  static __device__ __forceinline__ void write(uint32_t box, int pixel, int chunk, const uint32_t (&value)[8][kWords],
                                               int word, bool high) {
    const uint32_t offset = pixel * (kChannels * 2) + chunk * 16, select = high ? 0x7632 : 0x5410;
    const uint32_t address = box + (offset ^ (((offset >> 7) & (kChunks - 1)) << 4));
    auto pair = [&](int i) { return __byte_perm(value[2 * i][word], value[2 * i + 1][word], select); };
    ptx::store_shared16(address, {pair(0), pair(1), pair(2), pair(3)});
  }

  static __device__ __forceinline__ void stage(const WgradOperand& from, int group, int c0, int n0, int h0, int w0,
                                               uint32_t to, int warp, int lane) {
    const int units = from.box_rows * static_cast<int>(from.row_units.divisor);
    const int count = (units + kLaneUnits - 1) / kLaneUnits * (kSpread ? 1 : kChunks);
    const auto* in = static_cast<const uint16_t*>(from.data) + (int64_t{group} * from.c + c0) * from.c_stride;
    for (int first = warp; first < count; first += kWgradStagingWarps * kBatch) {
      uint32_t value[kBatch][8][kWords];
      int at[kBatch];    // pixel of the first value
      int span[kBatch];  // which of the values belong to the box: from low byte up to high
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int index = first + u * kWgradStagingWarps;
        const int chunk = kSpread ? lane % kChunks : index % kChunks;
        const int unit = (kSpread ? index : index / kChunks) * kLaneUnits + (kSpread ? lane / kChunks : lane);
        int row, col, n, h;
        from.row_units.divmod(unit, row, col);
        from.box_h.divmod(row, n, h);
        n += n0, h = h0 + h * from.step_h;
        const int w = kVector == 1 ? w0 + col * from.step_w : (w0 & -kVector) + col * kVector;
        const int j = kVector == 1 ? col : w - w0;
        const bool live = unit < units && index < count && j < from.pitch;
        at[u] = row * from.pitch + j;
        span[u] = live ? max(0, -j) | min(kVector, from.pitch - j) << 8 : 0;
        const bool inside = live && n < from.n && h >= 0 && h < from.h && w >= 0 && w < from.w;
        const int channels = inside ? from.c - c0 - chunk * 8 : 0;
        const uint16_t* source =
            in + n * from.n_stride + h * from.h_stride + w * from.w_stride + chunk * 8 * from.c_stride;
#pragma unroll
        for (int c = 0; c < 8; ++c, source += from.c_stride) {
#pragma unroll
          for (int i = 0; i < kWords; ++i) value[u][c][i] = 0;
          if (c < channels) load(source, value[u][c]);
        }
      }
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int chunk = kSpread ? lane % kChunks : (first + u * kWgradStagingWarps) % kChunks;
        const int begin = span[u] & 255, end = span[u] >> 8;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          // Pairs: every other group of four lanes starts with its second pixel, for the banks' sake.
          const int pixel = kVector == 2 ? i ^ ((lane >> 2) & 1) : i;
          if (pixel >= begin && pixel < end) {
            write(to, at[u] + pixel, chunk, value[u], kVector == 2 ? 0 : i / 2, pixel % 2 != 0);
          }
        }
      }
    }
  }
};

template <int kChannels>
__device__ __forceinline__ void stage_operand(const WgradOperand& from, int group, int c0, int n0, int h0, int w0,
                                              uint32_t to, int warp, int lane) {
  switch (from.vector) {
    case 8: return BoxStager<kChannels, 8>::stage(from, group, c0, n0, h0, w0, to, warp, lane);
    case 4: return BoxStager<kChannels, 4>::stage(from, group, c0, n0, h0, w0, to, warp, lane);
    case 2: return BoxStager<kChannels, 2>::stage(from, group, c0, n0, h0, w0, to, warp, lane);
    default: return BoxStager<kChannels, 1>::stage(from, group, c0, n0, h0, w0, to, warp, lane);
  }
}

// The staging warps; the ring's full barrier expects all their threads. What TMA can read, thread 0 leaves
// to it.
template <int kChannels>
__device__ __forceinline__ void stage_wgrad_warps(const WgradParams& params, const WgradShare& share,
                                                  const CUtensorMap* x_map, const CUtensorMap* y_map, Ring& ring,
                                                  int warp, int lane) {
  const WgradJob& job = share.job;
  const WgradTapGroup& group = params.tap_group[job.tap_group];
  const int32_t c_block = job.c_job * params.c_blocks_per_job, k_block = job.k_job * params.m_blocks;
  const bool copies = warp == 0 && lane == 0;
  const int32_t bytes = (params.x_copied ? (group.part_end - group.part_begin) * params.x_box_bytes : 0) +
                        (params.y_copied ? params.m_blocks * params.y_box_bytes : 0);
  for (int t = share.split; t < params.tiles; t += params.splits) {
    const WgradTile tile(params, t);
    ring.wait_empty();
    if (copies && bytes > 0) ptx::mbarrier_expect(ring.full(), bytes);
    uint32_t to = ring.stage();
    for (int i = group.part_begin; i < group.part_end; ++i, to += params.x_part_bytes) {
      const WgradPart& part = params.part[i];
      const int32_t c = (c_block + part.c_block) * kChannels;
      const int32_t w = tile.q * params.stride_w + part.dw, h = tile.p * params.stride_h + part.dh;
      if (!params.x_copied) {
        stage_operand<kChannels>(params.x, job.group, c, tile.n, h, w, to, warp, lane);
      } else if (copies) {
        copy_box<false>(to, x_map, c, job.group, w, h, tile.n, ring.full());
      }
    }
    to = ring.stage() + params.y_offset;
    for (int m = 0; m < params.m_blocks; ++m, to += params.y_block_bytes) {
      const int32_t k = (k_block + m) * 64;
      if (!params.y_copied) {
        stage_operand<64>(params.y, job.group, k, tile.n, tile.p, tile.q, to, warp, lane);
      } else if (copies) {
        copy_box<false>(to, y_map, k, job.group, tile.q, tile.p, tile.n, ring.full());
      }
    }
    ptx::async_proxy_fence();
    ptx::mbarrier_arrive(ring.full());
    ring.next();
  }
}

// The rows of a stage that no copy writes but a step may read: beyond the last pixel of a tile. All warps, each its
// share of the stages.
__device__ __forceinline__ void clear_wgrad_tails(const WgradParams& params, const Ring& ring, int warp, int warps,
                                                  int lane) {
  if (params.x_box_bytes == params.x_part_bytes && params.y_box_bytes == params.y_block_bytes) return;
  auto clear = [&](uint32_t begin, uint32_t end, int each, int written) {
    for (uint32_t box = begin; box < end; box += each) {
      for (int at = written + lane * 16; at < each; at += 32 * 16) ptx::store_shared16(box + at, {0, 0, 0, 0});
    }
  };
  for (int i = warp; i < ring.stages; i += warps) {
    const uint32_t stage = ring.data + i * ring.stage_bytes, y = stage + params.y_offset;
    clear(stage, y, params.x_part_bytes, params.x_box_bytes);
    clear(y, y + params.m_blocks * params.y_block_bytes, params.y_block_bytes, params.y_box_bytes);
  }
  ptx::async_proxy_fence();
}

}  // namespace fastconv
