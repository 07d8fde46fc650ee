// Planes of an NCHW tensor to rows of pixels in the workspace, channels side by side as the copy engine wants them, and
// back; by the blocks of a convolution kernel together, before its products or after them. It pays where each pixel is
// staged many times, or where planes begin at addresses that the copy engine does not take.
#pragma once

#include <cooperative_groups.h>

#include "fastconv/ptx/mbarrier.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/pixels.cuh"
#include "fastconv/tile/reorder.h"

namespace fastconv {

// Waits for all blocks; everything that any wrote to memory before is visible after it, to the copy engine too. All
// threads, of a cooperative launch.
__device__ __forceinline__ void sync_grid() {
  ptx::async_proxy_fence_all();
  __syncwarp();
  cooperative_groups::this_grid().sync();
  ptx::async_proxy_fence_all();
}

// One warp and its buffer.
struct Reorderer {
  const Reorder& order;
  uint32_t buffer;
  int lane;

  // Row of the matrices that this lane names to ldmatrix and stmatrix, for a group of 8 pixels.
  __device__ __forceinline__ uint32_t matrix_row(int group) const {
    return buffer + reorder_place(reorder_matrix_row(lane), group * 8);
  }
  // This lane's 16 bytes of the group's pixels.
  __device__ __forceinline__ bool has(const ReorderUnit& unit, int group) const {
    return group * 8 + lane / 4 < unit.pixels && lane % 4 < unit.chunks;
  }
  __device__ __forceinline__ uint4* at(const ReorderUnit& unit, int group) const {
    return reinterpret_cast<uint4*>(static_cast<uint16_t*>(order.rows) + unit.row +
                                    int64_t{group * 8 + lane / 4} * order.row + lane % 4 * 8);
  }

  // NOTES: a short loop, since instructions come from memory too and each runs a few times.
  __device__ __forceinline__ void copy_to_rows(const ReorderUnit& unit, uint32_t parity) const {
    const uint32_t barrier = buffer + kReorderBarrier;
    uint32_t bytes = 0;
    const int lead = reorder_lead(order, unit, lane);
    if (lane < unit.channels) bytes = (lead + unit.pixels + 7) / 8 * 16;
    ptx::mbarrier_arrive_expect(barrier, bytes);
    if (bytes > 0) {
      const auto* from = static_cast<const uint16_t*>(order.planes) + unit.plane + lane * order.plane_c - lead;
      ptx::bulk_load(buffer + reorder_copy(lane), from, bytes, barrier);
    }
    uint32_t from[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int channel = lane % 4 * 8 + i;
      from[i] = buffer + reorder_copy(channel) + 2 * (reorder_lead(order, unit, channel) + lane / 4);
    }
    ptx::mbarrier_wait(barrier, parity);
#pragma unroll 2
    for (int group = 0; group * 8 < unit.pixels; ++group) {
      uint32_t v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = ptx::load_shared2(from[i] + group * 16);
      auto pair = [&](int i) { return v[i] | v[i + 1] << 16; };
      if (has(unit, group)) *at(unit, group) = {pair(0), pair(2), pair(4), pair(6)};
    }
    __syncwarp();
  }

  template <int kVector>
  __device__ __forceinline__ void to_rows(const ReorderUnit& unit) const {
    using Access = ReorderAccess<kVector>;
    using Value = typename Pixels<kVector>::Value;
    constexpr int kBatch = kVector == 8 ? 16 : 32, kAhead = 4;
    const auto* planes = static_cast<const uint16_t*>(order.planes) + unit.plane;
#pragma unroll(1)
    for (int first = 0; first < Access::kCount; first += kBatch) {
      Value v[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const Access of(lane, first + b);
        v[b] = {};
        if (of.channel < unit.channels && of.pixel < unit.pixels) {
          v[b] = *reinterpret_cast<const Value*>(planes + of.channel * order.plane_c + of.pixel);
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const Access of(lane, first + b);
        Pixels<kVector>::store(buffer + reorder_place(of.channel, of.pixel), v[b]);
      }
    }
    __syncwarp();
    // NOTES: loads from shared memory stay in their order with stores
#pragma unroll 1
    for (int first = 0; first < kReorderPixels / 8; first += kAhead) {
      uint32_t v[kAhead][4];
#pragma unroll
      for (int g = 0; g < kAhead; ++g) ptx::ldmatrix4<true>(matrix_row(first + g), v[g]);
#pragma unroll
      for (int g = 0; g < kAhead; ++g) {
        if (has(unit, first + g)) *at(unit, first + g) = {v[g][0], v[g][1], v[g][2], v[g][3]};
      }
    }
    __syncwarp();
  }

  template <int kVector>
  __device__ __forceinline__ void to_planes(const ReorderUnit& unit) const {
    using Access = ReorderAccess<kVector>;
    using Value = typename Pixels<kVector>::Value;
    constexpr int kGroups = kReorderPixels / 8, kAhead = 8;
    uint4 v[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      v[group] = {};
      if (has(unit, group)) v[group] = *at(unit, group);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const uint32_t words[4] = {v[group].x, v[group].y, v[group].z, v[group].w};
      ptx::stmatrix4<true>(matrix_row(group), words);
    }
    __syncwarp();
    auto* planes = static_cast<uint16_t*>(order.planes) + unit.plane;
#pragma unroll 1
    for (int first = 0; first < Access::kCount; first += kAhead) {
      Value value[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const Access of(lane, first + i);
        value[i] = Pixels<kVector>::load(buffer + reorder_place(of.channel, of.pixel));
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const Access of(lane, first + i);
        if (of.channel < unit.channels && of.pixel < unit.pixels) {
          *reinterpret_cast<Value*>(planes + of.channel * order.plane_c + of.pixel) = value[i];
        }
      }
    }
    __syncwarp();
  }

  // Units of one of `warps` warps of this block.
  template <typename F>
  __device__ __forceinline__ void for_units(int warp, int warps, F f) const {
    const int blocks = static_cast<int>(gridDim.x);
    for (int unit = warp * blocks + static_cast<int>(blockIdx.x); unit < order.units; unit += blocks * warps) {
      f(ReorderUnit(order, unit));
    }
  }
  template <int kVector, bool kToRows>
  __device__ __forceinline__ void move(int warp, int warps) const {
    for_units(warp, warps,
              [&](const ReorderUnit& unit) { kToRows ? to_rows<kVector>(unit) : to_planes<kVector>(unit); });
  }
};

// The share of one of `warps` warps of this block; buffer: kReorderBytes of its own.
template <bool kToRows>
__device__ __forceinline__ void reorder_tensor(const Reorder& order, uint32_t buffer, int warp, int warps, int lane) {
  const Reorderer reorderer{order, buffer, lane};
  if (kToRows && order.copied) {
    const uint32_t barrier = buffer + kReorderBarrier;
    uint32_t parity = 0;
    if (lane == 0) ptx::mbarrier_init(barrier, 32);
    ptx::mbarrier_init_fence();
    __syncwarp();
    reorderer.for_units(warp, warps, [&](const ReorderUnit& unit) {
      reorderer.copy_to_rows(unit, parity);
      parity ^= 1;
    });
    if (lane == 0) ptx::mbarrier_invalidate(barrier);
    return;
  }
  switch (order.vector) {
    case 8: return reorderer.move<8, kToRows>(warp, warps);
    case 2: return reorderer.move<2, kToRows>(warp, warps);
    default: return reorderer.move<1, kToRows>(warp, warps);
  }
}

}  // namespace fastconv
