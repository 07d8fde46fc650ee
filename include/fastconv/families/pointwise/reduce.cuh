// Second kernel of a pointwise product whose depth is split: adds the slices' sums in a fixed order.
#pragma once

#include "fastconv/families/pointwise/kernel.cuh"
#include "fastconv/tile/add_partials.cuh"

namespace fastconv {

struct PointwiseReduction {
  PointwiseMatrix out;
  bool bias_along_n;
  int32_t group_filters;           // of a product
  FastDivmod by_product, by_line;  // sums of a product, and of a line
  int64_t sums;                    // of a slice
  int32_t slices, strands;
};

template <typename T>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_pointwise(const __grid_constant__ PointwiseReduction params,
                     const __grid_constant__ PointwiseBuffers<T> buffers) {
  ptx::follow_previous_kernel();
  add_partials(buffers.partial, params.sums, params.slices, params.strands, [&](int64_t at, float sum) {
    int32_t image, rest, m, n;
    params.by_product.divmod(static_cast<int32_t>(at), image, rest);
    params.by_line.divmod(rest, m, n);
    const auto finish = buffers.epilogue.of(image * params.group_filters + (params.bias_along_n ? n : m));
    buffers.out[image * params.out.image + params.out.lines.at(m) + n] = narrow<T>(finish(sum));
  });
}

}  // namespace fastconv
