// Pointwise convolutions as products of matrices on tensor cores, for any GPU from sm_80 on. A block computes a tile;
// several blocks share an SM, and one's loads hide behind another's products.
#pragma once

#include <type_traits>

#include "fastconv/families/pointwise/products.cuh"
#include "fastconv/families/pointwise/store.cuh"
#include "fastconv/families/pointwise/sums.cuh"
#include "fastconv/families/pointwise/taps_operand.cuh"
#include "fastconv/ptx/dependent_launch.cuh"

namespace fastconv {

template <typename T, typename Out = T>
struct PointwiseBuffers {
  const T* a;
  const T* b;
  Out* out;
  Epilogue<Out> epilogue;
  float* partial;  // sums of slices, [slice][product][m][n], or null
  RangeGate gate;
};

// A block's tile, and its part of the depth.
struct PointwisePlace {
  int32_t m, n, image, slice;
};
template <int kM, int kN, typename Params>
__device__ __forceinline__ PointwisePlace pointwise_place(const Params& params) {
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
                                                const PointwiseMatrix& out, bool along_n, int32_t first_filter,
                                                uint32_t table) {
  const int32_t first = along_n ? place.n : place.m, count = along_n ? kN : kM;
  const int32_t filters = along_n ? out.length : out.lines.extent;
  static_assert(kM <= kPointwiseThreads && kN <= kPointwiseThreads);
  const auto i = static_cast<int32_t>(threadIdx.x);
  if (i < count) stage_epilogue(table, i, epilogue.of(first_filter + first + i, first + i < filters));
}

// The oldest of a ring of so many stages, but for one that is free.
__device__ __forceinline__ void wait_for_stage(int32_t stages) {
  switch (stages) {
    case 2: return ptx::async_copy_wait<0>();
    case 3: return ptx::async_copy_wait<1>();
    case 4: return ptx::async_copy_wait<2>();
    default: return ptx::async_copy_wait<PointwiseTile::deep_stages() - 2>();
  }
}

// Operands of one tap: where a block's part of the depth begins, and how it goes on.
template <typename T, PointwiseForm kForm, bool kByWgmma>
struct PointwiseOperands {
  using Params = PointwiseParams;
  using Out = T;
  static constexpr OperandForm kOperands = OperandForm::kHalf;
  static constexpr bool kRowsA = kForm == PointwiseForm::kRowsRows, kRowsB = kForm != PointwiseForm::kDepthDepth;
  static constexpr bool kWgmma = kByWgmma;
  template <int kM>
  using LoaderA = PointwiseLoader<T, kRowsA, kM>;
  template <int kN>
  using LoaderB = PointwiseLoader<T, kRowsB, kN>;

  const Params& params;
  const T *a, *b;
  int32_t depth;

  // Of a weight gradient a slice may begin and end in the middle of an image's product.
  __device__ __forceinline__ PointwiseOperands(const Params& params, const PointwiseBuffers<T>& buffers,
                                               int32_t product, int32_t first_step, int32_t, int stage_depth)
      : params(params) {
    int32_t image = product, step_of_image = first_step;
    if (params.adds_images) image = first_step / params.image_steps, step_of_image = first_step % params.image_steps;
    a = buffers.a + image * params.a.image, b = buffers.b + image * params.b.image;
    depth = step_of_image * stage_depth;
  }
  __device__ __forceinline__ void advance(int stage_depth) {
    depth += stage_depth;
    if (params.adds_images && depth >= params.depth) depth = 0, a += params.a.image, b += params.b.image;
  }
  static __device__ __forceinline__ int64_t out_offset(const Params& params, int32_t product) {
    return product * params.out.image;
  }
  static __device__ __forceinline__ int32_t first_filter(const Params&, int32_t) { return 0; }
};

// Operands that taps move, of the form T; tensors are of Given. kTurned: rows of the product are the output's channels,
// columns an image's pixels.
template <typename T, typename Given, OperandForm kForm, bool kWgrad, bool kTurned>
struct TapOperands {
  using Params = TapParams;
  using Out = Given;
  static constexpr OperandForm kOperands = kForm;
  static constexpr bool kWgmma = false, kRowsA = kWgrad, kRowsB = kWgrad;
  static constexpr int kParts = value_parts(kForm);
  template <bool kWindows, int kRows, bool kLastThreads>
  using Loader = std::conditional_t<kWgrad, TapPixelLoader<T, kRows, kLastThreads>,
                                    std::conditional_t<kWindows, TapWindowLoader<T, kRows>, TapFilterLoader<T, kRows>>>;
  template <int kM>
  using LoaderA = Loader<!kTurned, kM, false>;
  template <int kN>
  using LoaderB = Loader<kTurned, kN, true>;

  const Params& params;
  const T *a, *b;
  int32_t depth;

  __device__ __forceinline__ TapOperands(const Params& params, const PointwiseBuffers<T, Out>& buffers, int32_t product,
                                         int32_t first_step, int32_t steps, int stage_depth)
      : params(params), depth(first_step * stage_depth), first_(depth), steps_(steps), left_(steps) {
    int32_t image, group;
    params.by_groups.divmod(product, image, group);
    a_ = buffers.a + image * params.a.image + group * params.a.group;
    b_ = buffers.b + image * params.b.image + group * params.b.group;
    of_parts();
  }
  __device__ __forceinline__ void advance(int stage_depth) {
    depth += stage_depth;
    if (kParts == 1 || --left_ > 0) return;
    left_ = steps_, depth = first_;
    if (++product_ < split_products(kParts)) of_parts();
  }
  static __device__ __forceinline__ int64_t out_offset(const Params& params, int32_t product) {
    int32_t image, group;
    params.by_groups.divmod(product, image, group);
    return image * params.out.image + group * params.out_group;
  }
  static __device__ __forceinline__ int32_t first_filter(const Params& params, int32_t product) {
    int32_t image, group;
    params.by_groups.divmod(product, image, group);
    return group * params.group_filters;
  }

 private:
  __device__ __forceinline__ void of_parts() {
    const SplitProduct parts(kParts, product_);
    a = a_ + parts.first * params.a.part, b = b_ + parts.second * params.b.part;
  }

  const T *a_, *b_;
  int32_t first_, steps_, left_, product_ = 0;
};

template <typename T, typename Operands, int kM, int kN>
__global__ void __launch_bounds__(kPointwiseThreads, PointwiseTile{kM, kN}.blocks_per_sm())
    pointwise(const __grid_constant__ typename Operands::Params params,
              const __grid_constant__ PointwiseBuffers<T, typename Operands::Out> buffers) {
#if __CUDA_ARCH__ >= 750
  using Out = typename Operands::Out;
  constexpr OperandForm kOperands = Operands::kOperands;
  constexpr int kProducts = split_products(value_parts(kOperands));
  constexpr PointwiseTile kTile{kM, kN};
  constexpr bool kRowsA = Operands::kRowsA, kRowsB = Operands::kRowsB;
  constexpr int kStageBytes = kTile.stage_bytes(), kBytesA = kM * kPointwiseDepthBytes;
  constexpr int kDepth = kPointwiseDepthBytes / sizeof(T);
  using Products = PointwiseProducts<T, kRowsA, kRowsB, kM, kN, Operands::kWgmma && kHasWgmma>;
  if ((Operands::kWgmma && !kHasWgmma) || (__CUDA_ARCH__ < 800 && !std::is_same_v<Out, __half>)) return;
  extern __shared__ uint4 pointwise_smem[];
  const uint32_t smem = ptx::smem_address(pointwise_smem);
  const uint32_t ring = (smem + kPointwiseAlign - 1) & ~(kPointwiseAlign - 1);
  static_assert(2 * kTile.epilogue_bytes() <= kPointwiseAlign);
  const bool in_front = ring - smem >= static_cast<uint32_t>(kTile.epilogue_bytes());
  const uint32_t behind = ring + kTile.ring_bytes(params.stages, params.slice_steps * kProducts, sizeof(Out));
  const uint32_t table = in_front ? smem : behind, pixels = behind + (in_front ? 0 : kTile.epilogue_bytes());
  const PointwisePlace place = pointwise_place<kM, kN>(params);
  using LoaderA = typename Operands::template LoaderA<kM>;
  using LoaderB = typename Operands::template LoaderB<kN>;
  LoaderA load_a(params.a, place.m, pixels);
  LoaderB load_b(params.b, place.n, pixels + LoaderA::kTableBytes);
  constexpr bool kTables = LoaderA::kTableBytes + LoaderB::kTableBytes > 0;

  const int32_t first = place.slice * params.slice_steps;
  const int32_t steps = min(params.slice_steps, params.steps - first), stages = steps * kProducts;
  Operands operands(params, buffers, place.image, first, steps, kDepth);
  auto start = [&](int slot) {
    const uint32_t stage = ring + slot * kStageBytes;
    load_a.start(stage, operands.a, operands.depth);
    load_b.start(stage + kBytesA, operands.b, operands.depth);
    operands.advance(kDepth);
    load_a.prepare(operands.depth);
    load_b.prepare(operands.depth);
  };

  ptx::follow_previous_kernel();
  if constexpr (promotes(kOperands)) {
    if (is_closed(buffers.gate)) return;
  }
  load_a.prepare(operands.depth);
  load_b.prepare(operands.depth);
#pragma unroll 1
  for (int slot = 0; slot < params.stages - 1; ++slot) {
    if constexpr (kTables) __syncthreads();
    if (slot < stages) start(slot);
    ptx::async_copy_commit();
  }
  const bool finishes = buffers.partial == nullptr && !buffers.epilogue.does_nothing();
  if (finishes) {
    const int32_t first_filter = Operands::first_filter(params, place.image);
    stage_epilogues<Out, kM, kN>(buffers.epilogue, place, params.out, params.bias_along_n, first_filter, table);
  }
  const typename Products::Warp warp;
  PointwiseSums<kOperands, typename Products::Warp::Sums> sums(steps);
  int slot = 0, free_slot = params.stages - 1;
#pragma unroll 1
  for (int32_t step = 0; step < stages; ++step) {
    wait_for_stage(params.stages);
    Products::publish_copies();
    Products::wait();
    __syncthreads();
    // Products that warps wait for hide copies that were started before them.
    if constexpr (Products::kAsync) Products::start(ring + slot * kStageBytes, warp, sums.products, step > 0);
    if (step + params.stages - 1 < stages) start(free_slot);
    ptx::async_copy_commit();
    if constexpr (!Products::kAsync) Products::start(ring + slot * kStageBytes, warp, sums.products, step > 0);
    sums.end_stage();
    free_slot = slot;
    slot = slot + 1 == params.stages ? 0 : slot + 1;
  }

  ptx::async_copy_wait<0>();
  Products::wait();
  __syncthreads();
  auto& total = sums.total();
  if constexpr (is_scaled(kOperands)) unscale(total, *buffers.gate.range);
  const PointwiseOutput output{place.m, place.n, params.out.length, params.columns};
  if (buffers.partial != nullptr) {
    const int64_t products = static_cast<int64_t>(params.by_images.divisor) * place.slice + place.image;
    const int64_t sums_of_one = static_cast<int64_t>(params.out.lines.extent) * params.out.length;
    store_pointwise_sums<kM, kN>(total, warp, ring, output, params.out.lines.extent,
                                 buffers.partial + products * sums_of_one);
  } else {
    if (finishes) finish_sums(total, warp, table, buffers.epilogue.bounds, params.bias_along_n);
    Out* out = buffers.out + Operands::out_offset(params, place.image);
    store_pointwise<Out, kM, kN>(total, warp, ring, output, params.out, out);
  }
#endif
}

}  // namespace fastconv
