// Pointwise convolutions as products of matrices on tensor cores, for any GPU from sm_80 on. A block computes a tile;
// several blocks share an SM, and one's loads hide behind another's products.
#pragma once

#include "fastconv/families/pointwise/products.cuh"
#include "fastconv/families/pointwise/store.cuh"
#include "fastconv/ptx/dependent_launch.cuh"

namespace fastconv {

template <typename T>
struct PointwiseBuffers {
  const T* a;
  const T* b;
  T* out;
  Epilogue<T> epilogue;
  float* partial;  // sums of slices, [slice][product][m][n], or null
};

// A block's tile, and its part of the depth.
struct PointwisePlace {
  int32_t m, n, image, slice;
};
template <int kM, int kN>
__device__ __forceinline__ PointwisePlace pointwise_place(const PointwiseParams& params) {
  int32_t rest, inner, outer;
  PointwisePlace place;
  params.by_inner.divmod(static_cast<int32_t>(blockIdx.x), rest, inner);
  params.by_outer.divmod(rest, rest, outer);
  params.by_images.divmod(rest, place.slice, place.image);
  place.m = (params.m_inner ? inner : outer) * kM, place.n = (params.m_inner ? outer : inner) * kN;
  return place;
}

// Of the tile's filters, for all threads once they have met.
template <typename T, int kM, int kN>
__device__ __forceinline__ void stage_epilogues(const Epilogue<T>& epilogue, const PointwisePlace& place,
                                                const PointwiseParams& params, uint32_t table) {
  const bool along_n = params.bias_along_n;
  const int32_t first = along_n ? place.n : place.m, count = along_n ? kN : kM;
  const int32_t filters = along_n ? params.out.length : params.out.lines.extent;
  static_assert(kM <= kPointwiseThreads && kN <= kPointwiseThreads);
  const auto i = static_cast<int32_t>(threadIdx.x);
  if (i < count) stage_epilogue(table, i, epilogue.of(first + i, first + i < filters));
}

template <typename T, PointwiseForm kForm, int kM, int kN>
__global__ void __launch_bounds__(kPointwiseThreads, PointwiseTile{kM, kN}.blocks_per_sm())
    pointwise(const __grid_constant__ PointwiseParams params, const __grid_constant__ PointwiseBuffers<T> buffers) {
#if __CUDA_ARCH__ >= 800
  constexpr PointwiseTile kTile{kM, kN};
  constexpr bool kRowsA = kForm == PointwiseForm::kRowsRows, kRowsB = kForm != PointwiseForm::kDepthDepth;
  constexpr int kStageBytes = kTile.stage_bytes(), kBytesA = kM * kPointwiseDepthBytes;
  constexpr int kDepth = kPointwiseDepthBytes / sizeof(T);
  using Products = PointwiseProducts<T, kRowsA, kRowsB, kM, kN>;
  extern __shared__ uint4 pointwise_smem[];
  const uint32_t smem = ptx::smem_address(pointwise_smem);
  const uint32_t ring = (smem + kPointwiseAlign - 1) & ~(kPointwiseAlign - 1);
  static_assert(2 * kTile.epilogue_bytes() <= kPointwiseAlign);
  const bool in_front = ring - smem >= static_cast<uint32_t>(kTile.epilogue_bytes());
  const uint32_t table = in_front ? smem : ring + kTile.ring_bytes(params.stages, params.slice_steps, sizeof(T));
  const PointwisePlace place = pointwise_place<kM, kN>(params);
  PointwiseLoader<T, kRowsA, kM> load_a(params.a, place.m);
  PointwiseLoader<T, kRowsB, kN> load_b(params.b, place.n);

  // Of a weight gradient a slice may begin and end in the middle of an image's product.
  const int32_t first = place.slice * params.slice_steps;
  const int32_t steps = min(params.slice_steps, params.steps - first);
  int32_t image = place.image, step_of_image = first;
  if (params.adds_images) image = first / params.image_steps, step_of_image = first % params.image_steps;
  const T* a = buffers.a + image * params.a.image;
  const T* b = buffers.b + image * params.b.image;
  int32_t depth = step_of_image * kDepth;
  auto start = [&](int slot) {
    const uint32_t stage = ring + slot * kStageBytes;
    load_a.start(stage, a, depth);
    load_b.start(stage + kBytesA, b, depth);
    depth += kDepth;
    if (params.adds_images && depth >= params.depth) depth = 0, a += params.a.image, b += params.b.image;
  };

  ptx::follow_previous_kernel();
#pragma unroll 1
  for (int slot = 0; slot < params.stages - 1; ++slot) {
    if (slot < steps) start(slot);
    ptx::async_copy_commit();
  }
  const bool finishes = buffers.partial == nullptr && !buffers.epilogue.does_nothing();
  if (finishes) stage_epilogues<T, kM, kN>(buffers.epilogue, place, params, table);
  const typename Products::Warp warp;
  typename Products::Warp::Sums sums = {};
  int slot = 0, free_slot = params.stages - 1;
#pragma unroll 1
  for (int32_t step = 0; step < steps; ++step) {
    if (params.stages == kTile.stages()) {
      ptx::async_copy_wait<kTile.stages() - 2>();
    } else {
      ptx::async_copy_wait<kTile.deep_stages() - 2>();
    }
    Products::publish_copies();
    Products::wait();
    __syncthreads();
    Products::start(ring + slot * kStageBytes, warp, sums, step > 0);
    if (step + params.stages - 1 < steps) start(free_slot);
    ptx::async_copy_commit();
    free_slot = slot;
    slot = slot + 1 == params.stages ? 0 : slot + 1;
  }

  ptx::async_copy_wait<0>();
  Products::wait();
  __syncthreads();
  const PointwiseOutput output{place.m, place.n, params.out.length};
  if (buffers.partial != nullptr) {
    const int64_t products = static_cast<int64_t>(params.by_images.divisor) * place.slice + place.image;
    const int64_t sums_of_one = static_cast<int64_t>(params.out.lines.extent) * params.out.length;
    store_pointwise_sums<kM, kN>(sums, warp, ring, output, params.out.lines.extent,
                                 buffers.partial + products * sums_of_one);
  } else {
    if (finishes) finish_sums(sums, warp, table, buffers.epilogue.bounds, params.bias_along_n);
    store_pointwise<T, kM, kN>(sums, warp, ring, output, params.out, buffers.out + place.image * params.out.image);
  }
#endif
}

}  // namespace fastconv
