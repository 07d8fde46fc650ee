// Planes of an NCHW tensor to rows of pixels in the workspace, channels side by side as the copy engine wants them, and
// back; by the blocks of a convolution kernel together, before its products or after them. It pays where each pixel is
// staged many times, or where planes begin at addresses that the copy engine does not take.
#pragma once

#include <cooperative_groups.h>

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

// One warp's buffer: [channel][pixel], chunks of 8 pixels in an order that lets the eight rows of a matrix lie in
// different banks. A lane's 16 bytes of a pixel are its channels 8 * (lane % 4) ..., pairs from four matrices.
template <int kVector>
struct ReorderUnit {
  using Value = typename Pixels<kVector>::Value;
  static constexpr int kLanes = kReorderPixels / kVector < 32 ? kReorderPixels / kVector : 32;  // that share a channel
  static constexpr int kParts = kReorderPixels / (kLanes * kVector), kAtOnce = 32 / kLanes;     // channels
  static constexpr int kAccesses = kReorderChannels / kAtOnce * kParts, kBatch = kVector == 8 ? 16 : 32;
  static constexpr int kGroups = kReorderPixels / 8;

  const Reorder& reorder;
  uint16_t *planes, *rows;  // of the unit's first channel and pixel
  uint32_t buffer;
  int lane, channels, pixels, chunks;  // that exist from there on

  __device__ ReorderUnit(const Reorder& reorder, int unit, uint32_t buffer, int lane)
      : reorder(reorder), buffer(buffer), lane(lane) {
    int32_t rest, pixel_block, image, channel_block;
    reorder.pixel_blocks.divmod(unit, rest, pixel_block);
    reorder.channel_blocks.divmod(rest, image, channel_block);
    const int c = channel_block * kReorderChannels, p = pixel_block * kReorderPixels;
    planes = static_cast<uint16_t*>(reorder.planes) + image * reorder.plane_n + c * reorder.plane_c + p;
    rows = static_cast<uint16_t*>(reorder.rows) + (int64_t{image} * reorder.pixels + p) * reorder.row + c;
    channels = reorder.channels - c, pixels = reorder.pixels - p, chunks = (reorder.row - c) / 8;
  }

  __device__ __forceinline__ int channel_of(int access) const { return access / kParts * kAtOnce + lane / kLanes; }
  __device__ __forceinline__ int pixel_of(int access) const {
    return (access % kParts * kLanes + lane % kLanes) * kVector;
  }
  __device__ __forceinline__ uint32_t place(int channel, int pixel) const {
    const int chunk = (pixel >> 3) ^ ((channel & 1) | ((channel >> 2) & 6));
    return buffer + channel * (kReorderPixels * 2) + (chunk << 4) + (pixel & 7) * 2;
  }
  // Row of the matrices that this lane names to ldmatrix and stmatrix, for the pixels of a group.
  __device__ __forceinline__ uint32_t matrix_row(int group) const {
    const int row = lane % 8;
    return place(row / 2 * 8 + lane / 8 * 2 + row % 2, group * 8);
  }
  // This lane's 16 bytes of the group's pixels.
  __device__ __forceinline__ bool has(int group) const { return group * 8 + lane / 4 < pixels && lane % 4 < chunks; }
  __device__ __forceinline__ uint4* at(int group) const {
    return reinterpret_cast<uint4*>(rows + int64_t{group * 8 + lane / 4} * reorder.row + lane % 4 * 8);
  }

  __device__ __forceinline__ void to_rows() const {
#pragma unroll(1)
    for (int first = 0; first < kAccesses; first += kBatch) {
      Value v[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int c = channel_of(first + b), p = pixel_of(first + b);
        v[b] = {};
        if (c < channels && p < pixels) v[b] = __ldg(reinterpret_cast<const Value*>(planes + c * reorder.plane_c + p));
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) Pixels<kVector>::store(place(channel_of(first + b), pixel_of(first + b)), v[b]);
    }
    __syncwarp();
    constexpr int kAhead = 4;  // NOTES: loads from shared memory stay in their order with stores
#pragma unroll 1
    for (int first = 0; first < kGroups; first += kAhead) {
      uint32_t v[kAhead][4];
#pragma unroll
      for (int g = 0; g < kAhead; ++g) ptx::ldmatrix4<true>(matrix_row(first + g), v[g]);
#pragma unroll
      for (int g = 0; g < kAhead; ++g) {
        if (has(first + g)) *at(first + g) = {v[g][0], v[g][1], v[g][2], v[g][3]};
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void to_planes() const {
    uint4 v[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      v[group] = {};
      if (has(group)) v[group] = *at(group);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const uint32_t words[4] = {v[group].x, v[group].y, v[group].z, v[group].w};
      ptx::stmatrix4<true>(matrix_row(group), words);
    }
    __syncwarp();
    constexpr int kAhead = 8;
#pragma unroll 1
    for (int first = 0; first < kAccesses; first += kAhead) {
      Value value[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        value[i] = Pixels<kVector>::load(place(channel_of(first + i), pixel_of(first + i)));
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int c = channel_of(first + i), p = pixel_of(first + i);
        if (c < channels && p < pixels) *reinterpret_cast<Value*>(planes + c * reorder.plane_c + p) = value[i];
      }
    }
    __syncwarp();
  }
};

template <int kVector, bool kToRows>
__device__ __forceinline__ void reorder_units(const Reorder& reorder, uint32_t buffer, int warp, int warps, int lane) {
  const int blocks = static_cast<int>(gridDim.x);
  for (int unit = warp * blocks + static_cast<int>(blockIdx.x); unit < reorder.units; unit += blocks * warps) {
    const ReorderUnit<kVector> work(reorder, unit, buffer, lane);
    kToRows ? work.to_rows() : work.to_planes();
  }
}

// The share of one of `warps` warps of this block; buffer: kReorderBytes of its own.
template <bool kToRows>
__device__ __forceinline__ void reorder_tensor(const Reorder& reorder, uint32_t buffer, int warp, int warps, int lane) {
  switch (reorder.vector) {
    case 8: return reorder_units<8, kToRows>(reorder, buffer, warp, warps, lane);
    case 2: return reorder_units<2, kToRows>(reorder, buffer, warp, warps, lane);
    default: return reorder_units<1, kToRows>(reorder, buffer, warp, warps, lane);
  }
}

}  // namespace fastconv
