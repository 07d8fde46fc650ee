// What follows a convolution where its own kernel does not do it: y = activation(z + residual), and its gradient.
#pragma once

#include <cstdint>

#include "fastconv/core/activation.h"
#include "fastconv/core/problem.h"

namespace fastconv {

// Tensors of so many values side by side, at multiples of 16 bytes, all of one layout.
struct ActivateForward {
  const void *z, *residual;  // null where there is none
  void* y;                   // may be z
  Activation activation;
};
struct ActivateBackward {
  const void *grad_y, *kept, *residual;  // kept: y of an activation that cuts off, else z
  void* grad_z;
  Activation activation;
};

// Launch on `stream` (a cudaStream_t) of the current device, behind a kernel of ours.
void activate_cuda(DType dtype, int64_t count, const ActivateForward& call, void* stream);
void activate_backward_cuda(DType dtype, int64_t count, const ActivateBackward& call, void* stream);

}  // namespace fastconv
