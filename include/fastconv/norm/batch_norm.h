// Batch normalisation and what follows it: y = activation((x - mean) / sqrt(variance + eps) * weight + bias +
// residual).
#pragma once

#include <cstdint>

#include "fastconv/norm/walk.h"

namespace fastconv {

// Of each channel a value of the tensor's type, or of the one that it is summed in.
struct NormParameter {
  void* data;  // null where there is none
  bool wide;
};

struct BatchNormForward {
  const void *x, *residual;  // null where there is none
  NormParameter weight, bias, running_mean, running_var;
  Activation activation;
  bool training;  // by the batch's statistics, which go into the running ones
  // of the batch in the running statistics; less than 0: the batches' share, whose number so far is `batches`
  double momentum, eps;
  int64_t* batches;  // one more after the call; null where nobody counts
  void* y;
  uint8_t* mask;     // a byte of a vector, with a bit of each element: whether its gradient passes; null: not wanted
  void* statistics;  // [2, channels] in the type of sums: mean, and 1 / sqrt(variance + eps)
  void* workspace;
};

struct BatchNormBackward {
  // residual: null where there is none, or a mask that tells as much.
  const void *x, *residual, *grad_y;
  NormParameter weight, bias;
  Activation activation;
  bool training;
  const uint8_t* mask;
  const void* statistics;
  // Null where they are not wanted. In training grad_x needs the sums of the parameters' gradients too.
  void *grad_x, *grad_residual;
  NormParameter grad_weight, grad_bias;
  void* workspace;

  FASTCONV_HOST_DEVICE bool has_images() const { return grad_x != nullptr || grad_residual != nullptr; }
  FASTCONV_HOST_DEVICE bool sums_for_input() const { return training && grad_x != nullptr; }
  FASTCONV_HOST_DEVICE bool has_sums() const {
    return sums_for_input() || grad_weight.data != nullptr || grad_bias.data != nullptr;
  }
};

int64_t batch_norm_workspace_bytes(const NormProblem& problem, const DeviceSpec& device);

// Launch on `stream` (a cudaStream_t) of the current device, for tensors with elements; in training of more than one
// element a channel. Sums are added in a fixed order. behind_ours: see launch/stream.h.
void batch_norm_forward_cuda(const NormProblem& problem, const DeviceSpec& device, const BatchNormForward& call,
                             void* stream, bool behind_ours = false);
void batch_norm_backward_cuda(const NormProblem& problem, const DeviceSpec& device, const BatchNormBackward& call,
                              void* stream, bool behind_ours = false);

}  // namespace fastconv
