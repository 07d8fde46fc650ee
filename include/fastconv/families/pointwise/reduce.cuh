// Second kernel of a pointwise product whose depth is split: adds the slices' sums in a fixed order.
#pragma once

#include "fastconv/families/pointwise/kernel.cuh"
#include "fastconv/tile/add_partials.cuh"

namespace fastconv {

struct PointwiseReduction {
  PointwiseMatrix out;
  PointwiseColumns columns;
  int64_t out_group;
  bool bias_along_n;
  int32_t group_filters;                      // of a product
  FastDivmod by_product, by_line, by_groups;  // sums of a product, and of a line; products of an image
  int64_t sums;                               // of a slice
  int32_t slices, strands;
};

template <typename T, typename Out>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_pointwise(const __grid_constant__ PointwiseReduction params,
                     const __grid_constant__ PointwiseBuffers<T, Out> buffers) {
  ptx::follow_previous_kernel();
  if (is_closed(buffers.gate)) return;
  add_partials(buffers.partial, params.sums, params.slices, params.strands, [&](int64_t at, float sum) {
    int32_t product, image, group, rest, m, n;
    params.by_product.divmod(static_cast<int32_t>(at), product, rest);
    params.by_groups.divmod(product, image, group);
    params.by_line.divmod(rest, m, n);
    const int64_t at_n = params.columns.at(n);
    if (at_n < 0) return;
    const auto finish = buffers.epilogue.of(group * params.group_filters + (params.bias_along_n ? n : m));
    buffers.out[image * params.out.image + group * params.out_group + params.out.lines.at(m) + at_n] =
        narrow<Out>(finish(sum));
  });
}

}  // namespace fastconv
