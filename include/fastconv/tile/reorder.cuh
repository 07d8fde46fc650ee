// Planes of an NCHW tensor to rows of pixels in the workspace, channels side by side as TMA wants them, and
// back; by the blocks of a convolution kernel together, before its products or after them. Of a large tensor a part may
// be left to two warps of each block while products go on, which then wait for what they read. It pays where each pixel
// is staged many times, or where planes begin at addresses that TMA does not take.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "fastconv/ptx/global_memory.cuh"
#include "fastconv/ptx/mbarrier.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/pixels.cuh"
#include "fastconv/tile/reorder.h"

namespace fastconv {

// One warp and its buffer.
struct Reorderer {
  const Reorder& order;
  const CUtensorMap* boxes;  // of planes, for ReorderCopy::kBoxes
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

  __device__ __forceinline__ uint32_t barrier() const { return buffer + kReorderBarrier; }
  __device__ __forceinline__ void init_barrier() const {
    if (lane == 0) ptx::mbarrier_init(barrier(), 32);
    ptx::mbarrier_init_fence();
    __syncwarp();
  }

  // A unit's pixels on their way to shared memory, a phase of the barrier.
  __device__ __forceinline__ void copy_boxes(const ReorderUnit& unit) const {
    ptx::mbarrier_arrive_expect(barrier(), lane < 2 ? kReorderBoxBytes : 0);
    if (lane >= 2) return;
    ptx::tma_load(buffer + lane * kReorderBoxBytes, boxes, unit.pixel + lane * kReorderBoxPixels, unit.channel / 8, 0,
                  unit.image, 0, barrier());
  }
  __device__ __forceinline__ void copy_runs(const ReorderUnit& unit) const {
    uint32_t bytes = 0;
    const int lead = reorder_lead(order, unit, lane);
    if (lane < unit.channels) bytes = (lead + unit.pixels + 7) / 8 * 16;
    ptx::mbarrier_arrive_expect(barrier(), bytes);
    if (bytes == 0) return;
    const auto* from = static_cast<const uint16_t*>(order.planes) + unit.plane + lane * order.plane_c - lead;
    ptx::bulk_load(buffer + reorder_run(lane), from, bytes, barrier());
  }

  // Once they are there.
  __device__ __forceinline__ void write_boxes(const ReorderUnit& unit) const {
    constexpr int kAhead = 4, kGroups = kReorderPixels / 8;
    auto* to = static_cast<uint16_t*>(order.rows) + unit.row + lane / 4 * order.row + lane % 4 * 8;
    const int mine = lane % 4 < unit.chunks ? unit.pixels - lane / 4 : 0;  // from this lane's first pixel on
    const int row = reorder_box_row(reorder_matrix_row(lane));
#pragma unroll
    for (int first = 0; first < kGroups; first += kAhead) {
      if (first * 8 >= unit.pixels) break;
      uint32_t v[kAhead][4];
#pragma unroll
      for (int g = 0; g < kAhead; ++g) ptx::ldmatrix4<true>(buffer + reorder_box_place(row, first + g), v[g]);
#pragma unroll
      for (int g = 0; g < kAhead; ++g, to += 8 * order.row) {
        if ((first + g) * 8 < mine) ptx::store_global16(to, v[g]);
      }
    }
    __syncwarp();
  }
  // NOTES: a short loop, since instructions come from memory too and each runs a few times.
  __device__ __forceinline__ void write_runs(const ReorderUnit& unit) const {
    uint32_t from[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int channel = lane % 4 * 8 + i;
      from[i] = buffer + reorder_run(channel) + 2 * (reorder_lead(order, unit, channel) + lane / 4);
    }
#pragma unroll 2
    for (int group = 0; group * 8 < unit.pixels; ++group) {
      uint32_t v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = ptx::load_shared2(from[i] + group * 16);
      const uint32_t pairs[4] = {v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16};
      if (has(unit, group)) ptx::store_global16(at(unit, group), pairs);
    }
    __syncwarp();
  }

  template <int kVector>
  __device__ __forceinline__ void to_rows(const ReorderUnit& unit) const {
    using Access = ReorderAccess<kVector>;
    using Value = typename Pixels<kVector>::Value;
    constexpr int kBatch = 32, kAhead = 4;
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
        if (has(unit, first + g)) ptx::store_global16(at(unit, first + g), v[g]);
      }
    }
    __syncwarp();
  }

  // A unit's rows as boxes on their way to the planes. The loads do not wait for the boxes before them.
  __device__ __forceinline__ void store_boxes(const ReorderUnit& unit) const {
    constexpr int kGroups = kReorderPixels / 8;
    const auto* from = static_cast<const uint16_t*>(order.rows) + unit.row + lane / 4 * order.row + lane % 4 * 8;
    const int mine = lane % 4 < unit.chunks ? unit.pixels - lane / 4 : 0;  // as in write_boxes
    const int row = reorder_box_row(reorder_matrix_row(lane));
    uint32_t v[kGroups][4] = {};
#pragma unroll
    for (int group = 0; group < kGroups; ++group, from += 8 * order.row) {
      if (group * 8 < mine) ptx::load_global16(from, v[group]);
    }
    ptx::bulk_wait_read();
    __syncwarp();
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      ptx::stmatrix4<true>(buffer + reorder_box_place(row, group), v[group]);
    }
    ptx::async_proxy_fence();
    __syncwarp();
    if (lane < 2) {
      ptx::tma_store(boxes, buffer + lane * kReorderBoxBytes, unit.pixel + lane * kReorderBoxPixels, unit.channel / 8,
                     0, unit.image, 0);
    }
    ptx::bulk_commit();
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

  // Those of the first `units` that one of `warps` warps of this block has.
  template <typename F>
  __device__ __forceinline__ void for_units(int units, int warp, int warps, F f) const {
    const int blocks = static_cast<int>(gridDim.x);
    for (int unit = warp * blocks + static_cast<int>(blockIdx.x); unit < units; unit += blocks * warps) {
      f(ReorderUnit(order, unit));
    }
  }
};

// A warp's share of what is written before the products; of `warps` of this block. buffer: kReorderBytes of its own.
__device__ __forceinline__ void reorder_to_rows(const Reorder& order, const CUtensorMap& boxes, uint32_t buffer,
                                                int warp, int warps, int lane) {
  if (order.early == 0) return;
  const Reorderer reorderer{order, &boxes, buffer, lane};
  for (int i = warp * 32 + lane; blockIdx.x == 0 && i < order.rounds; i += warps * 32) order.done[i] = 0;
  if (order.copy != ReorderCopy::kValues) {
    uint32_t parity = 0;
    const bool in_boxes = order.copy == ReorderCopy::kBoxes;
    reorderer.init_barrier();
    reorderer.for_units(order.early, warp, warps, [&](const ReorderUnit& unit) {
      in_boxes ? reorderer.copy_boxes(unit) : reorderer.copy_runs(unit);
      ptx::mbarrier_wait(reorderer.barrier(), parity);
      in_boxes ? reorderer.write_boxes(unit) : reorderer.write_runs(unit);
      parity ^= 1;
    });
    if (lane == 0) ptx::mbarrier_invalidate(reorderer.barrier());
    return;
  }
  auto move = [&]<int kVector>(std::integral_constant<int, kVector>) {
    reorderer.for_units(order.early, warp, warps,
                        [&](const ReorderUnit& unit) { reorderer.template to_rows<kVector>(unit); });
  };
  order.vector == 1 ? move(std::integral_constant<int, 1>()) : move(std::integral_constant<int, 2>());
}

// The way back.
__device__ __forceinline__ void reorder_to_planes(const Reorder& order, const CUtensorMap& boxes, uint32_t buffer,
                                                  int warp, int warps, int lane) {
  const Reorderer reorderer{order, &boxes, buffer, lane};
  if (order.copy == ReorderCopy::kBoxes) {
    reorderer.for_units(order.units, warp, warps, [&](const ReorderUnit& unit) { reorderer.store_boxes(unit); });
    return ptx::bulk_wait_read();
  }
  auto move = [&]<int kVector>(std::integral_constant<int, kVector>) {
    reorderer.for_units(order.units, warp, warps,
                        [&](const ReorderUnit& unit) { reorderer.template to_planes<kVector>(unit); });
  };
  order.vector == 1 ? move(std::integral_constant<int, 1>()) : move(std::integral_constant<int, 2>());
}

// What is left of a tensor when products begin, by kReorderStreamers warps of each block, round by round.
struct ReorderStream {
  const Reorder& order;
  const CUtensorMap& boxes;
  uint32_t buffers;  // this warp's two
  int warp, lane;

  __device__ __forceinline__ Reorderer reorderer(int round) const {
    return {order, &boxes, buffers + (round & 1) * kReorderBytes, lane};
  }
  __device__ __forceinline__ int unit(int round) const {
    return order.early + (round * kReorderStreamers + warp) * static_cast<int>(gridDim.x) +
           static_cast<int>(blockIdx.x);
  }

  __device__ __forceinline__ void run() const {
    for (int i = 0; order.rounds > 0 && i < 2; ++i) reorderer(i).init_barrier();
    for (int round = -1; round < order.rounds; ++round) {
      if (unit(round + 1) < order.units) reorderer(round + 1).copy_boxes({order, unit(round + 1)});
      if (round < 0) continue;
      if (unit(round) < order.units) {
        ptx::mbarrier_wait(reorderer(round).barrier(), round >> 1 & 1);
        reorderer(round).write_boxes({order, unit(round)});
      }
      if (lane == 0) ptx::add_release(order.done + round);
    }
  }
};

// Waits for what is streamed, before TMA reads it. One warp.
struct ReorderArrivals {
  const Reorder& order;
  int lane;
  int rounds = 0;  // known to be done

  // All units up to this one.
  __device__ __forceinline__ void wait(int32_t unit) {
    if (unit < order.early) return;
    const int needed = order.round.div(unit - order.early) + 1;
    if (needed <= rounds) return;
    const uint32_t all = order.round.divisor;
    while (rounds < needed) {
      const int mine = rounds + lane;
      const bool done = mine < order.rounds && ptx::load_acquire(order.done + mine) == all;
      const uint32_t missing = ~__ballot_sync(~0u, done);
      rounds += missing == 0 ? 32 : __ffs(missing) - 1;
    }
    ptx::async_proxy_fence_all();
  }
};

}  // namespace fastconv
