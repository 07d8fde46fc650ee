// Where sums of the weight gradient go in dW, in the weight's own strides.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fastconv/tile/wgrad_walk.cuh"

namespace fastconv {

// Quad i of a unit: accumulators 4(i / 128) .. + 3 of thread i % 128, two columns of two rows, 8 rows apart (PTX ISA,
// "wgmma D fragment").
template <typename T, int kChannels>
__device__ __forceinline__ void store_quad(const WgradParams& params, const WgradJob& job, int slot, int quad,
                                           float4 sum) {
  const WgradTapGroup& group = params.tap_group[job.tap_group];
  const int m_block = slot / params.units_per_m_block;
  const int index = group.unit_begin + slot - m_block * params.units_per_m_block;
  if (index >= group.unit_end) return;  // a slot left over

  const int thread = quad % 128, col = quad / 128 * 8 + thread % 4 * 2;
  const int block = col / kChannels;
  const WgradUnit& unit = params.unit[index];
  if (unit.c_block[block] < 0) return;
  // kDense alone has an order of its own, and blocks of 64.
  auto channel = [&](int at) { return params.c_phases_log2 == 0 ? at : channel_at(at, params.c_phases_log2); };
  auto filter = [&](int at) { return params.k_phases_log2 == 0 ? at : channel_at(at, params.k_phases_log2); };
  const int c0 = (job.c_job * params.c_blocks_per_job + unit.c_block[block]) * kChannels;
  const int c = c0 + channel(col % kChannels), next_c = c0 + channel(col % kChannels + 1);
  const int k_block = job.k_job * params.m_blocks + m_block, row = thread / 32 * 16 + thread % 32 / 4;
  T* w =
      static_cast<T*>(params.w) + job.group * params.w_group + unit.r[block] * params.w_r + unit.s[block] * params.w_s;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int k = params.rows.filter(k_block, filter(row + 8 * half));
    const float first = half ? sum.z : sum.x, second = half ? sum.w : sum.y;
    if (k >= params.k || c >= params.c) continue;
    T* out = w + k * params.w_k;
    if (params.w_pairs) {
      const T pair[2] = {static_cast<T>(first), static_cast<T>(second)};
      *reinterpret_cast<uint32_t*>(out + c * params.w_c) = *reinterpret_cast<const uint32_t*>(pair);
    } else {
      out[c * params.w_c] = static_cast<T>(first);
      if (next_c < params.c) out[next_c * params.w_c] = static_cast<T>(second);
    }
  }
}

}  // namespace fastconv
