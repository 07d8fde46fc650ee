// A batch norm by statistics that are known, as part of the convolution before it: filters times a scale, and a bias.
#pragma once

#include <cstdint>

#include "fastconv/norm/batch_norm.h"

namespace fastconv {

struct NormFold {
  // Filters side by side, of so many values each, at a multiple of 16 bytes; null bias: none.
  const void* filters;
  int64_t count, values;
  DType filters_type;
  NormParameter bias, weight, norm_bias, mean, variance;  // narrow ones: of the tensors' type
  double eps;
  // In the tensors' type, and in the one that they are summed in.
  void *folded, *folded_bias;
};

// For tensors of `dtype`. Launches on `stream` (a cudaStream_t) of the current device, behind a kernel of ours.
void fold_norm_cuda(DType dtype, const NormFold& fold, void* stream);

}  // namespace fastconv
