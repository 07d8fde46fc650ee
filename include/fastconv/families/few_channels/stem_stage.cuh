// Images of few channels: a part of one on its way to shared memory, see stem_walk.cuh.
#pragma once

#include <cstdint>

#include "fastconv/families/few_channels/stem_walk.cuh"
#include "fastconv/ptx/async_copy.cuh"

namespace fastconv {

// The box of an image that begins at a channel, a row and a column; it has arrived after ptx::async_copy_wait().
template <int kVector>
__device__ __forceinline__ void copy_stem_box(const StemBox& box, const float* tensor, int32_t image,
                                              int32_t first_channel, int32_t first_row, int32_t first_column,
                                              uint32_t smem) {
  const float* source = tensor + (image * box.stride.n + first_channel * box.stride.c);
  const auto stride_c = static_cast<int32_t>(box.stride.c), stride_h = static_cast<int32_t>(box.stride.h);
  const int32_t stride_w = box.folded > 1 ? 1 : static_cast<int32_t>(box.stride.w);
  const int32_t first = first_column * box.folded - box.lead(first_column);
  StemCopy copy(box, static_cast<int32_t>(threadIdx.x));
#pragma unroll 2
  for (auto unit = static_cast<int32_t>(threadIdx.x); unit < box.units; unit += kStemThreads, copy.next(box)) {
    const int32_t row = first_row + copy.row(box), column = first + copy.column(box), channel = copy.channel(box);
    const bool exists = static_cast<uint32_t>(row) < static_cast<uint32_t>(box.extent_h) &&
                        static_cast<uint32_t>(column) < static_cast<uint32_t>(box.extent_w) &&
                        first_channel + channel < box.channels;
    // Offsets within an image fit 32 bits.
    const int32_t from = exists ? channel * stride_c + row * stride_h + column * stride_w : 0;
    ptx::async_copy<4 * kVector>(smem + 4 * copy.place(box), exists ? source + from : tensor, exists);
  }
}

__device__ __forceinline__ void copy_stem_box(const StemBox& box, const float* tensor, int32_t image, int32_t channel,
                                              int32_t row, int32_t column, uint32_t smem) {
  switch (box.vector) {
    case 4: return copy_stem_box<4>(box, tensor, image, channel, row, column, smem);
    case 2: return copy_stem_box<2>(box, tensor, image, channel, row, column, smem);
    default: return copy_stem_box<1>(box, tensor, image, channel, row, column, smem);
  }
}

// Goes through a walker's tiles: start(tile, stage) copies one to shared memory, multiply(tile, stage) has it there,
// and prepare() is called while the first is on its way.
template <typename Start, typename Prepare, typename Multiply>
__device__ __forceinline__ void walk_stem_tiles(const StemWalk& params, int32_t walker, uint32_t smem, Start&& start,
                                                Prepare&& prepare, Multiply&& multiply) {
  const int32_t lead = params.stages > 1 ? params.walkers : 0;  // tiles from one that is multiplied to one that comes
  uint32_t stage = smem, other = smem + (params.stages - 1) * params.stage_bytes;
#pragma unroll 1
  for (int32_t index = walker - lead; index < params.tiles; index += params.walkers) {
    const int32_t next = index + lead;
    ptx::async_copy_wait<0>();
    __syncthreads();
    if (next < params.tiles) start(StemTile(params, next), other);
    ptx::async_copy_commit();
    if (next == walker) prepare();
    if (lead == 0) {
      ptx::async_copy_wait<0>();
      __syncthreads();
    }
    const uint32_t ready = other;
    if (index >= 0) multiply(StemTile(params, index), lead == 0 ? ready : stage);
    other = stage, stage = ready;
  }
}

}  // namespace fastconv
