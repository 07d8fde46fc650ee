#include "fastconv/norm/activate.h"
#include "fastconv/ops/conv2d_ops.h"
#include "fastconv/ops/cuda_call.h"
#include "fastconv/ops/dense.h"

namespace fastconv::ops {
namespace {

using Backend = CudaBackendOf<true>;

void* data_of(const OptionalTensor& tensor) { return tensor ? tensor->data_ptr() : nullptr; }

// What cuts off is done by the convolution's own kernel, or over its output where a residual comes between. Any other
// activation is done over the output too, unless its gradient will read what the activation got.
std::tuple<Tensor, OptionalTensor, OptionalTensor> conv2d_act(Tensor input, Tensor weight, OptionalTensor bias,
                                                              OptionalTensor residual, int64_t arguments,
                                                              int64_t activation_index, bool trains) {
  const Activation activation = activation_of(activation_index);
  if (input.dim() != 4) fail("input must be 4-D (N, C, H, W), but is " + std::to_string(input.dim()) + "-D");
  if (is_complex(input)) fail("input must not be complex");
  OptionalTensor filters = cast_filters(weight, input);
  const bool cuts = cuts_off(activation), within = cuts && !residual;
  const Tensor z = forward<Backend>(input, filters.value_or(weight), bias, unpack(arguments),
                                    within ? activation : Activation::kNone, /*may_be_wide=*/true);
  if (within) return {z, filters, std::nullopt};
  const View view(z);
  const bool channels_last = is_channels_last(view);
  if (residual) residual = dense_like(z, channels_last, "residual", *residual, "output");
  const bool keeps = trains && !cuts;
  const Tensor y = keeps ? empty(view.sizes, channels_last, true, z) : z;
  const CudaCall gpu(input.get_device_index());
  activate_cuda(check_operands({"input", z}, {"input", z}), z.numel(),
                {view.data, data_of(residual), y.data_ptr(), activation}, gpu.stream());
  return {y, filters, keeps ? OptionalTensor(z) : OptionalTensor()};
}

std::tuple<OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor> conv2d_act_backward(
    Tensor grad_output, Tensor input, Tensor weight, OptionalTensor filters, OptionalTensor kept,
    OptionalTensor residual, int64_t arguments, int64_t activation_index, int64_t needs) {
  const Activation activation = activation_of(activation_index);
  Tensor grad_z = grad_output;
  if (activation != Activation::kNone) {
    if (!kept) fail("the gradient needs what the forward pass kept");
    const View view(*kept);
    const bool channels_last = is_channels_last(view);
    const Tensor z = dense(*kept, channels_last),
                 grad_y = dense_like(z, channels_last, "grad_output", grad_output, "output");
    if (residual) residual = dense_like(z, channels_last, "residual", *residual, "output");
    grad_z = empty(view.sizes, channels_last, true, z);
    const CudaCall gpu(input.get_device_index());
    activate_backward_cuda(check_operands({"input", z}, {"input", z}), z.numel(),
                           {grad_y.data_ptr(), z.data_ptr(), data_of(residual), grad_z.data_ptr(), activation},
                           gpu.stream());
  }
  Gradients grads;
  if (needs & 7) {
    grads = conv2d_backward_packed<Backend>(input, filters.value_or(weight), grad_z, arguments, needs & 7);
  }
  auto& [grad_input, grad_weight, grad_bias] = grads;
  if (grad_weight && filters) grad_weight = cast_filters(*grad_weight, weight);
  const bool other = needs & 8 && activation != Activation::kNone;
  return {grad_input, grad_weight, grad_bias, other ? OptionalTensor(grad_z) : std::nullopt};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fastconv, CUDA, library) {
  library.impl("_conv2d_act", TORCH_BOX(&conv2d_act));
  library.impl("_conv2d_act_backward", TORCH_BOX(&conv2d_act_backward));
}

}  // namespace fastconv::ops
