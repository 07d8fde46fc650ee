// From the sums of a block, or of a cluster of blocks, to dW in the weight's own strides.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "fastconv/families/wgrad/walk.cuh"
#include "fastconv/ptx/cluster.cuh"
#include "fastconv/ptx/shared_memory.cuh"

namespace fastconv {

// Quad i of a unit: accumulators 4(i / 128) .. + 3 of thread i % 128, two columns of two rows, 8 rows apart (PTX ISA,
// "wgmma D fragment").
template <typename T, int kChannels>
__device__ __forceinline__ void store_quad(const WgradParams& params, const WgradJob& job, int slot, int quad,
                                           float4 sum) {
  const WgradTapGroup& group = params.tap_group[job.tap_group];
  int m_block, index;
  params.units_per_m_block.divmod(slot, m_block, index);
  index += group.unit_begin;
  if (index >= group.unit_end) return;  // a slot left over

  const int thread = quad % 128, col = quad / 128 * 8 + thread % 4 * 2;
  const int block = col / kChannels;
  const WgradUnit& unit = params.unit[index];
  if (unit.c_block[block] < 0) return;
  const int c = (job.c_job * params.c_blocks_per_job + unit.c_block[block]) * kChannels + col % kChannels;
  const int k_block = job.k_job * params.m_blocks + m_block, row = thread / 32 * 16 + thread % 32 / 4;
  T* w = static_cast<T*>(params.w) + job.group * params.w_group;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int k = params.rows.filter(k_block, row + 8 * half);
    const float first = half ? sum.z : sum.x, second = half ? sum.w : sum.y;
    const int64_t at = weight_element(params, k, unit.r[block], unit.s[block], c);
    if (params.w_pairs) {
      using Pair = std::conditional_t<sizeof(T) == 4, uint2, uint32_t>;
      alignas(Pair) const T pair[2] = {static_cast<T>(first), static_cast<T>(second)};
      if (at >= 0) *reinterpret_cast<Pair*>(w + at) = *reinterpret_cast<const Pair*>(pair);
    } else {
      const int64_t next = weight_element(params, k, unit.r[block], unit.s[block], c + 1);
      if (at >= 0) w[at] = static_cast<T>(first);
      if (next >= 0) w[next] = static_cast<T>(second);
    }
  }
}

// The sum, in the order of their ranks, of what the cluster's blocks hold at this address.
__device__ __forceinline__ float4 add_cluster(uint32_t smem, int blocks) {
  float4 v[kMaxWgradCluster];
#pragma unroll
  for (int b = 0; b < kMaxWgradCluster; ++b) {
    if (b < blocks) v[b] = ptx::cluster_load(smem, b);
  }
  float4 sum = v[0];
#pragma unroll
  for (int b = 1; b < kMaxWgradCluster; ++b) {
    if (b < blocks) sum.x += v[b].x, sum.y += v[b].y, sum.z += v[b].z, sum.w += v[b].w;
  }
  return sum;
}

// What a block has at the end: a quad of sums for each thread and instruction, of kSlots units.
template <typename T, int kChannels, int kBlocks, int kSlots>
struct WgradJobStore {
  static constexpr int kN = kChannels * kBlocks, kQuads = 16 * kN;  // of a unit
  static constexpr int kAll = kSlots * kQuads;

  // In register order: 16 bytes a thread, no bank conflicts.
  template <int kUnits>
  static __device__ __forceinline__ void put_sums(uint32_t smem, int first_slot, int thread,
                                                  const float (&acc)[kUnits][kN / 2]) {
    const uint32_t to = smem + (first_slot * kQuads + thread) * 16;
    for_quads(acc, [&](int at, const float* sums) {
      ptx::store_shared_floats(to + at * 16, sums[0], sums[1], sums[2], sums[3]);
    });
  }
  // The same of a block without a cluster, for the second kernel.
  template <int kUnits>
  static __device__ __forceinline__ void put_partial(const WgradParams& params, const WgradShare& share, int first_slot,
                                                     int thread, const float (&acc)[kUnits][kN / 2]) {
    float4* const to = partial_of(params, share) + first_slot * kQuads + thread;
    for_quads(acc, [&](int at, const float* sums) { to[at] = make_float4(sums[0], sums[1], sums[2], sums[3]); });
  }

  // kThreads threads: this block's share of what the cluster has. `sync` is a barrier of theirs.
  template <int kThreads, typename Sync>
  static __device__ __forceinline__ void run(const WgradParams& params, const WgradShare& share, uint32_t smem,
                                             int thread, Sync sync) {
    const int blocks = static_cast<int>(params.cluster.divisor);
    if (params.partials == 1 && params.store != WgradStore::kQuads) {
      const uint32_t rows = smem + kAll * 16;
      for (int slice = share.rank; slice < 4 * params.m_blocks; slice += blocks) {
        put_rows<kThreads / 32>(params, share.job, rows, slice, thread,
                                [&](int quad) { return add_cluster(smem + quad * 16, blocks); });
        sync();
        copy_rows<kThreads / 32>(params, share.job, rows, slice, thread);
        sync();
      }
      return;
    }
    float4* const out = partial_of(params, share);
    const int part = params.cluster.div(kAll), begin = share.rank * part;
    for (int i = begin + thread; i < begin + part; i += kThreads) {
      const float4 sum = add_cluster(smem + i * 16, blocks);
      if (params.partials > 1) {
        out[i] = sum;
      } else {
        store_quad<T, kChannels>(params, share.job, i / kQuads, i % kQuads, sum);
      }
    }
  }

  // Slice s: filters 16 * (s % 4) to + 15 of M-block s / 4, as rows of the elements that they have in this job, in
  // shared memory. sum(quad): of the job.
  template <int kWarps, typename F>
  static __device__ __forceinline__ void put_rows(const WgradParams& params, const WgradJob& job, uint32_t rows,
                                                  int slice, int thread, F sum_of) {
    const int warp = thread / 32, lane = thread % 32;
    const WgradTapGroup& group = params.tap_group[job.tap_group];
    const int units = group.unit_end - group.unit_begin;
    const int first_slot = slice / 4 * static_cast<int>(params.units_per_m_block.divisor);
    for (int i = warp; i < units * (kN / 8); i += kWarps) {
      const int u = i / (kN / 8), col = i % (kN / 8) * 8 + lane % 4 * 2, block = col / kChannels;
      const WgradUnit& unit = params.unit[group.unit_begin + u];
      if (unit.c_block[block] < 0) continue;
      const int quad = (first_slot + u) * kQuads + i % (kN / 8) * 128 + slice % 4 * 32 + lane;
      const float4 sum = sum_of(quad);
      const uint32_t low = rows + lane / 4 * params.store_pitch, high = low + 8 * params.store_pitch;
      if (params.store == WgradStore::kChannels) {
        const int at = (u * kN + col) * kElement;
        put_pair(low + at, sum.x, sum.y), put_pair(high + at, sum.z, sum.w);
      } else {
        const int tap = unit.r[block] * params.filter_w + unit.s[block];
        const int at = ((unit.c_block[block] * kChannels + col % kChannels) * params.taps + tap) * kElement;
        const int next = at + params.taps * kElement;
        put(low + at, sum.x), put(low + next, sum.y), put(high + at, sum.z), put(high + next, sum.w);
      }
    }
  }

  // A warp a row, 16 bytes a lane.
  template <int kWarps>
  static __device__ __forceinline__ void copy_rows(const WgradParams& params, const WgradJob& job, uint32_t rows,
                                                   int slice, int thread) {
    const int warp = thread / 32, lane = thread % 32;
    const WgradTapGroup& group = params.tap_group[job.tap_group];
    const int first_c = job.c_job * params.c_blocks_per_job * kChannels;
    for (int row = warp; row < kWgradStoreRows; row += kWarps) {
      const int k = params.rows.filter(job.k_job * params.m_blocks + slice / 4, slice % 4 * 16 + row);
      if (k >= params.k) continue;
      T* w = static_cast<T*>(params.w) + job.group * params.w_group + k * params.w_k;
      const uint32_t from = rows + row * params.store_pitch;
      auto copy = [&](T* to, int at) { *reinterpret_cast<uint4*>(to) = ptx::load_shared16(from + at * kElement); };
      if (params.store == WgradStore::kTaps) {
        const int count = min(params.c - first_c, params.c_blocks_per_job * kChannels) * params.taps;
        for (int at = lane * kVector; at < count; at += 32 * kVector) copy(w + first_c * params.taps + at, at);
        continue;
      }
      constexpr int kLanes = kChannels / kVector;  // of a tap
      for (int i = lane / kLanes; i < (group.unit_end - group.unit_begin) * kBlocks; i += 32 / kLanes) {
        const WgradUnit& unit = params.unit[group.unit_begin + i / kBlocks];
        const int block = i % kBlocks, at = lane % kLanes * kVector;
        const int c = first_c + unit.c_block[block] * kChannels + at;
        if (unit.c_block[block] < 0 || c >= params.c) continue;
        copy(w + unit.r[block] * params.w_r + unit.s[block] * params.w_s + c, i * kChannels + at);
      }
    }
  }

 private:
  // f(place, four sums) for each of a thread's quads.
  template <int kUnits, typename F>
  static __device__ __forceinline__ void for_quads(const float (&acc)[kUnits][kN / 2], F f) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kN / 8; ++i) f(u * kQuads + i * 128, &acc[u][4 * i]);
    }
  }

  static __device__ __forceinline__ float4* partial_of(const WgradParams& params, const WgradShare& share) {
    return reinterpret_cast<float4*>(params.partial) +
           (int64_t{share.partial} * params.jobs.divisor + share.job_index) * kAll;
  }

  static constexpr int kElement = sizeof(T), kVector = 16 / kElement;  // elements a lane copies

  static __device__ __forceinline__ uint16_t bits(float value) {
    const T rounded = static_cast<T>(value);
    return *reinterpret_cast<const uint16_t*>(&rounded);
  }
  static __device__ __forceinline__ void put(uint32_t to, float value) {
    if constexpr (kElement == 4) {
      ptx::store_shared4(to, __float_as_uint(value));
    } else {
      ptx::store_shared2(to, bits(value));
    }
  }
  static __device__ __forceinline__ void put_pair(uint32_t to, float first, float second) {
    if constexpr (kElement == 4) {
      ptx::store_shared8(to, {__float_as_uint(first), __float_as_uint(second)});
    } else {
      ptx::store_shared4(to, bits(first) | bits(second) << 16);
    }
  }
};

}  // namespace fastconv
