// Weight gradient of convolutions whose groups have few channels: a block adds up a part of the pixels for some groups,
// see wgrad_walk.cuh; a second kernel adds the parts.
#pragma once

#include "fastconv/families/grouped/stage.cuh"
#include "fastconv/families/grouped/wgrad_mainloop.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/mbarrier.cuh"
#include "fastconv/tile/add_partials.cuh"
#include "fastconv/tile/element.cuh"

namespace fastconv {

template <typename T>
struct GroupedWgradBuffers {
  const T* x;
  const T* y;
  T* w;
  float4* partial;  // [part][job][quad], if there are several parts
};

// Quad number `index` of a job: [quad of a thread][unit][thread].
template <typename T>
__device__ __forceinline__ void store_grouped_quad(const GroupedWgradParams& params, const GroupedConfig& config, T* w,
                                                   const GroupedJob& job, int32_t index, const float4& sum) {
  int32_t quad, thread;
  params.by_job_threads.divmod(index, quad, thread);
  const GroupedWgradUnit unit(params, config, job, thread / config.unit_threads());
  const GroupedTile tile = job.pixels(params, 0);
  w += tile.first_group * params.filter_group;
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = GroupedSum(config, thread % config.unit_threads(), quad, i).element(params, tile, unit);
    if (at >= 0) w[at] = narrow<T>(values[i]);
  }
}

template <typename T, GroupedOperands kOperands, int kFilters>
__global__ void __launch_bounds__(kGroupedThreads, GroupedConfig{kOperands, kFilters}.wgrad_blocks_per_sm())
    grouped_wgrad(const __grid_constant__ GroupedWgradParams params, const GroupedWgradBuffers<T> buffers) {
#if __CUDA_ARCH__ >= 800
  ptx::follow_previous_kernel();
  constexpr GroupedConfig kConfig{kOperands, kFilters};
  constexpr int kTiles = kFilters / 8, kUnitThreads = kConfig.unit_threads(), kStep = kConfig.step_pixels();
  using Tensor =
      std::conditional_t<kOperands == GroupedOperands::kTf32, GroupedTf32Quads<kTiles>, GroupedHalfQuads<T, kTiles>>;
  using Quads = std::conditional_t<kOperands == GroupedOperands::kFloat, GroupedFloatQuads, Tensor>;
  static_assert(Quads::kQuads == kConfig.unit_quads());
  using Stage = GroupedStage<T, kOperands == GroupedOperands::kTf32>;
  extern __shared__ uint4 grouped_smem[];
  const uint32_t zeros = ptx::smem_address(grouped_smem), stages = zeros + kGroupedRowBytes;
  const auto thread = static_cast<int32_t>(threadIdx.x);

  const GroupedJob job(params, static_cast<int32_t>(blockIdx.x));
  int32_t index, slice;
  params.by_slices.divmod(thread / kUnitThreads, index, slice);
  const GroupedWgradUnit unit(params, kConfig, job, index);
  const int32_t x_planes = unit.group * params.rows.chunks, y_planes = unit.group * params.y_rows.chunks;
  Quads quads(params, job.pixels(params, job.tile), unit);
  if (thread == 0) ptx::store_shared16(zeros, make_uint4(0, 0, 0, 0));
  // A tile is staged while products of the one before it go on.
#pragma unroll 1
  for (int32_t at = job.tile; at <= job.end; ++at) {
    const GroupedTile next = job.pixels(params, at), tile = job.pixels(params, at > job.tile ? at - 1 : at);
    const uint32_t to = stages + (at - job.tile) % 2 * params.stage_bytes;
    const uint32_t from = stages + (at - job.tile + 1) % 2 * params.stage_bytes;
    if (at > job.tile) {
      Stage(params.rows, buffers.x, tile, tile.halo_h, tile.halo_w, from).land();
      Stage(params.y_rows, buffers.y, tile, tile.p, tile.q, from + params.y_at).land();
    }
    __syncthreads();
    if (at < job.end) {
      Stage(params.rows, buffers.x, next, next.halo_h, next.halo_w, to).start();
      Stage(params.y_rows, buffers.y, next, next.p, next.q, to + params.y_at).start();
    }
    if (at == job.tile || !unit.exists) continue;
    const GroupedTileRows rows{params,
                               tile,
                               from + x_planes * params.rows.plane_bytes,
                               from + params.y_at + y_planes * params.y_rows.plane_bytes,
                               zeros,
                               tile.rows * params.tile_q};
#pragma unroll 1
    for (int32_t pixel = slice * kStep; pixel < rows.pixels; pixel += params.slices * kStep) quads.add(rows, pixel);
  }

  __syncthreads();
#pragma unroll
  for (int q = 0; q < Quads::kQuads; ++q) {
    const float (&sum)[4] = quads.quad(q);
    const uint32_t to = stages + (q * kGroupedThreads + thread) * 16;
    ptx::store_shared_floats(to, sum[0], sum[1]);
    ptx::store_shared_floats(to + 8, sum[2], sum[3]);
  }
  __syncthreads();
#pragma unroll 1
  for (int32_t i = thread; i < params.job_quads; i += kGroupedThreads) {
    int32_t quad, rest;
    params.by_job_threads.divmod(i, quad, rest);
    const int32_t first = rest / kUnitThreads * params.slices * kUnitThreads + rest % kUnitThreads;
    uint32_t from = stages + (quad * kGroupedThreads + first) * 16;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int32_t s = 0; s < params.slices; ++s, from += kUnitThreads * 16) {
      const uint4 v = ptx::load_shared16(from);
      sum.x += __uint_as_float(v.x), sum.y += __uint_as_float(v.y);
      sum.z += __uint_as_float(v.z), sum.w += __uint_as_float(v.w);
    }
    if (params.parts > 1) {
      buffers.partial[int64_t{blockIdx.x} * params.job_quads + i] = sum;
    } else {
      store_grouped_quad(params, kConfig, buffers.w, job, i, sum);
    }
  }
#endif
}

template <typename T>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_grouped_wgrad(const __grid_constant__ GroupedWgradParams params, const GroupedConfig config, T* w,
                         const float4* partial, int32_t strands) {
  ptx::follow_previous_kernel();
  const int64_t quads = int64_t{params.by_jobs.divisor} * params.job_quads;
  add_partials(partial, quads, params.parts, strands, [&](int64_t at, const float4& sum) {
    int32_t index, quad;
    params.by_job_quads.divmod(static_cast<int32_t>(at), index, quad);
    store_grouped_quad(params, config, w, GroupedJob(params, index), quad, sum);
  });
}

}  // namespace fastconv
