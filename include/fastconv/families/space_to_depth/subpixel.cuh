// Writes the filter, and the bias, of a convolution whose pixels are blocks of outputs.
#pragma once

#include <cstdint>

#include "fastconv/families/space_to_depth/subpixel.h"
#include "fastconv/ptx/dependent_launch.cuh"

namespace fastconv {

// T and Bias have the elements' size; nothing is computed with them, and zero is zero. No bias: null.
template <typename T, typename Bias>
__global__ void __launch_bounds__(kSubpixelThreads)
    write_subpixel_filter(const __grid_constant__ SubpixelFilter filter, const T* from, const Bias* bias, T* to,
                          Bias* to_bias) {
  ptx::follow_previous_kernel();
  const auto element = static_cast<int32_t>(blockIdx.x * kSubpixelThreads + threadIdx.x);
  if (element >= filter.elements) return;
  const int64_t place = filter.place(element);
  to[element] = place < 0 ? T{0} : from[place];
  if (bias != nullptr && element < filter.filters) {
    to_bias[element] = element < filter.outputs ? bias[filter.output(element).channel] : Bias{0};
  }
}

}  // namespace fastconv
