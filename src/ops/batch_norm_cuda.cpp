#include "fastconv/norm/batch_norm.h"
#include "fastconv/norm/fold.h"
#include "fastconv/ops/conv2d_ops.h"
#include "fastconv/ops/cuda_call.h"
#include "fastconv/ops/dense.h"

namespace fastconv::ops {
namespace {

struct Images {
  Tensor tensor;
  NormProblem problem;

  explicit Images(const Tensor& input, bool channels_last, DType dtype)
      : tensor(dense(input, channels_last)), problem{dtype, channels_last, 0, 0, 0} {
    const auto size = input.sizes();
    problem.n = size[0], problem.c = size[1], problem.pixels = size[2] * size[3];
    if (problem.n >= int64_t{1} << 31 || problem.c >= int64_t{1} << 28) fail("input has too many images or channels");
  }
};

Images images_of(const Tensor& input) {
  const DType dtype = check_operands({"input", input}, {"input", input});
  if (input.dim() != 4) fail("input must be 4-D (N, C, H, W), but is " + std::to_string(input.dim()) + "-D");
  if (is_complex(input)) fail("input must not be complex");
  if (input.numel() == 0) fail("input must have elements");
  const View view(input);
  return Images(input, is_channels_last(view), dtype);
}

Tensor same_as(const Images& images, const char* name, const Tensor& tensor) {
  return dense_like(images.tensor, images.problem.channels_last, name, tensor);
}

// What is only read may have gaps.
void close_gaps(std::initializer_list<OptionalTensor*> vectors) {
  for (OptionalTensor* vector : vectors) {
    if (!*vector || (*vector)->dim() != 1 || (*vector)->is_contiguous()) continue;
    Tensor copy = empty_vector((*vector)->numel(), **vector);
    *vector = torch::stable::copy_(copy, **vector);
  }
}

// Of so many channels of images like this one.
NormParameter parameter(const Tensor& images, int64_t channels, const char* name, const OptionalTensor& tensor) {
  if (!tensor) return {nullptr, true};
  const auto narrow = images.scalar_type(), found = tensor->scalar_type();
  const bool wide = found == torch::headeronly::ScalarType::Float && narrow != torch::headeronly::ScalarType::Double;
  if (found != narrow && !wide) fail(std::string(name) + " must be float32, or of the input's dtype");
  if (tensor->dim() != 1 || tensor->numel() != channels || !tensor->is_contiguous()) {
    fail(std::string(name) + " must be 1-D and contiguous, with as many elements as the input has channels, " +
         std::to_string(channels));
  }
  if (!tensor->is_cuda() || tensor->get_device_index() != images.get_device_index()) {
    fail(std::string(name) + " must be on the input's device");
  }
  return {tensor->data_ptr(), wide};
}
NormParameter parameter(const Images& images, const char* name, const OptionalTensor& tensor) {
  return parameter(images.tensor, images.problem.c, name, tensor);
}

void* data_of(const OptionalTensor& tensor) { return tensor ? tensor->data_ptr() : nullptr; }

struct Normalized {
  Tensor output, statistics;
  OptionalTensor mask;  // for gradients that could not be told without
};
Normalized normalize(const Tensor& input, OptionalTensor residual, const OptionalTensor& weight,
                     const OptionalTensor& bias, const OptionalTensor& running_mean, const OptionalTensor& running_var,
                     const OptionalTensor& num_batches_tracked, bool training, std::optional<double> momentum,
                     double eps, int64_t activation, bool trains, bool behind_ours) {
  const Images x = images_of(input);
  const NormProblem& problem = x.problem;
  BatchNormForward call{};
  call.activation = activation_of(activation);
  call.training = training, call.eps = eps, call.momentum = momentum.value_or(-1);
  if (residual) residual = same_as(x, "residual", *residual);
  call.weight = parameter(x, "weight", weight), call.bias = parameter(x, "bias", bias);
  call.running_mean = parameter(x, "running_mean", running_mean);
  call.running_var = parameter(x, "running_var", running_var);
  if (training && problem.of_channel() == 1) fail("more than one value a channel is needed in training");
  if (!training && (!running_mean || !running_var)) fail("running_mean and running_var are needed outside training");
  if (!momentum && !num_batches_tracked) fail("momentum=None needs num_batches_tracked");
  if (momentum && !(*momentum >= 0)) fail("momentum must not be negative");
  if (num_batches_tracked) {
    const Tensor& count = *num_batches_tracked;
    if (count.scalar_type() != torch::headeronly::ScalarType::Long || count.numel() != 1 || !count.is_cuda() ||
        count.get_device_index() != input.get_device_index()) {
      fail("num_batches_tracked must be one int64 on the input's device");
    }
  }

  const CudaCall gpu(input.get_device_index());
  Tensor output = empty(sizes_of(input), problem.channels_last, true, input);
  Tensor statistics = empty_matrix(2, problem.c, problem.dtype, input);
  const bool masks = trains && residual && cuts_off(call.activation) && call.activation != Activation::kNone;
  OptionalTensor mask, workspace;
  if (masks) mask = empty_bytes(problem.elements() / norm_vector(problem), input);
  if (training) workspace = empty_bytes(batch_norm_workspace_bytes(problem, gpu.device()), input);
  call.x = x.tensor.data_ptr(), call.residual = data_of(residual), call.y = output.data_ptr();
  call.batches = static_cast<int64_t*>(data_of(num_batches_tracked));
  call.mask = static_cast<uint8_t*>(data_of(mask));
  call.statistics = statistics.data_ptr(), call.workspace = data_of(workspace);
  batch_norm_forward_cuda(problem, gpu.device(), call, gpu.stream(), behind_ours);
  return {output, statistics, mask};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_act(Tensor input, OptionalTensor residual, OptionalTensor weight,
                                                  OptionalTensor bias, OptionalTensor running_mean,
                                                  OptionalTensor running_var, OptionalTensor num_batches_tracked,
                                                  bool training, std::optional<double> momentum, double eps,
                                                  int64_t activation, bool trains) {
  close_gaps({&weight, &bias});
  const Normalized found = normalize(input, residual, weight, bias, running_mean, running_var, num_batches_tracked,
                                     training, momentum, eps, activation, trains, /*behind_ours=*/false);
  return {found.output, found.statistics, found.mask ? *found.mask : empty_bytes(0, input)};
}

struct BatchNormGradients {
  OptionalTensor input, weight, bias, residual;
};
BatchNormGradients batch_norm_gradients(const Tensor& grad_output, const Tensor& input, OptionalTensor residual,
                                        const OptionalTensor& weight, const OptionalTensor& bias,
                                        const Tensor& statistics, OptionalTensor mask, bool training,
                                        int64_t activation, int64_t needs, bool behind_ours) {
  const Images x = images_of(input);
  const NormProblem& problem = x.problem;
  BatchNormBackward call{};
  call.activation = activation_of(activation), call.training = training;
  const Tensor grad_y = same_as(x, "grad_output", grad_output);
  if (residual) residual = same_as(x, "residual", *residual);
  call.weight = parameter(x, "weight", weight), call.bias = parameter(x, "bias", bias);
  if (mask && mask->numel() == 0) mask = std::nullopt;
  if (mask && mask->numel() != problem.elements() / norm_vector(problem)) fail("mask has another size");
  const auto wide =
      problem.dtype == DType::kFloat64 ? torch::headeronly::ScalarType::Double : torch::headeronly::ScalarType::Float;
  if (statistics.numel() != 2 * problem.c || statistics.scalar_type() != wide || !statistics.is_contiguous()) {
    fail("statistics must be those of the forward pass");
  }
  for (const Tensor* tensor : {mask ? &*mask : &statistics, &statistics}) {
    if (!tensor->is_cuda() || tensor->get_device_index() != input.get_device_index()) {
      fail("mask and statistics must be on the input's device");
    }
  }
  if (((needs & 2) && !weight) || ((needs & 4) && !bias)) fail("gradients of parameters need these");

  const CudaCall gpu(input.get_device_index());
  BatchNormGradients found;
  if (needs & 1) found.input = empty(sizes_of(input), problem.channels_last, true, input);
  if (needs & 2) found.weight = empty_vector(problem.c, *weight);
  if (needs & 4) found.bias = empty_vector(problem.c, *bias);
  if (needs & 8) found.residual = empty(sizes_of(input), problem.channels_last, true, input);
  const Tensor workspace = empty_bytes(batch_norm_workspace_bytes(problem, gpu.device()), input);
  call.x = x.tensor.data_ptr(), call.grad_y = grad_y.data_ptr(), call.residual = data_of(residual);
  call.mask = static_cast<const uint8_t*>(data_of(mask));
  call.statistics = statistics.data_ptr(), call.workspace = workspace.data_ptr();
  call.grad_x = data_of(found.input), call.grad_residual = data_of(found.residual);
  call.grad_weight = parameter(x, "weight", found.weight), call.grad_bias = parameter(x, "bias", found.bias);
  batch_norm_backward_cuda(problem, gpu.device(), call, gpu.stream(), behind_ours);
  return found;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_act_backward(Tensor grad_output, Tensor input,
                                                                   OptionalTensor residual, OptionalTensor weight,
                                                                   OptionalTensor bias, Tensor statistics, Tensor mask,
                                                                   bool training, int64_t activation, int64_t needs) {
  close_gaps({&weight, &bias});
  const BatchNormGradients found =
      batch_norm_gradients(grad_output, input, residual, weight, bias, statistics, mask, training, activation, needs,
                           /*behind_ours=*/false);
  const auto or_none = [&input](const OptionalTensor& gradient) {
    return gradient ? *gradient : torch::stable::new_empty(input, {0});
  };
  return {or_none(found.input), or_none(found.weight), or_none(found.bias), or_none(found.residual)};
}

// ---- with the convolution before it ----

using Backend = CudaBackendOf<true>;

struct Folded {
  Tensor filters, bias;
};
// Nothing for filters with gaps, or larger than the image, which are more to write than its pass. Nor of
// float16, whose range scaled filters may leave.
std::optional<Folded> fold(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                           const OptionalTensor& norm_weight, const OptionalTensor& norm_bias,
                           const OptionalTensor& mean, const OptionalTensor& variance, double eps) {
  const View view(weight, Role::kFilter);
  if (view.sizes.size() != 4 || weight.numel() == 0 || weight.numel() > input.numel()) return std::nullopt;
  const bool channels_last = is_channels_last(view);
  if (!is_dense(view, channels_last)) return std::nullopt;
  const DType dtype = check_operands({"input", input}, {"input", input});
  if (dtype == DType::kFloat16) return std::nullopt;
  check_same_device({"input", input}, {"weight", weight});
  const int64_t count = view.sizes[0];
  if (!mean || !variance) fail("running_mean and running_var are needed outside training");
  const Folded folded{empty(view.sizes, channels_last, true, input), empty_sums(count, dtype, input)};
  const NormFold call{weight.data_ptr(),
                      count,
                      weight.numel() / count,
                      check_operands({"weight", weight}, {"weight", weight}),
                      parameter(input, count, "bias", bias),
                      parameter(input, count, "norm_weight", norm_weight),
                      parameter(input, count, "norm_bias", norm_bias),
                      parameter(input, count, "running_mean", mean),
                      parameter(input, count, "running_var", variance),
                      eps,
                      folded.filters.data_ptr(),
                      folded.bias.data_ptr()};
  const CudaCall gpu(input.get_device_index());
  fold_norm_cuda(dtype, call, gpu.stream());
  return folded;
}

std::tuple<Tensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor> conv_bn_act(
    Tensor input, Tensor weight, OptionalTensor bias, OptionalTensor residual, OptionalTensor norm_weight,
    OptionalTensor norm_bias, OptionalTensor running_mean, OptionalTensor running_var,
    OptionalTensor num_batches_tracked, int64_t arguments, bool training, std::optional<double> momentum, double eps,
    int64_t activation, bool trains) {
  close_gaps({&bias, &norm_weight, &norm_bias});
  if (!training && !trains && !residual && cuts_off(activation_of(activation))) {
    const auto folded = fold(input, weight, bias, norm_weight, norm_bias, running_mean, running_var, eps);
    if (folded) {
      const Tensor output = forward<Backend>(input, folded->filters, folded->bias, unpack(arguments),
                                             activation_of(activation), /*may_be_wide=*/true);
      return {output, std::nullopt, std::nullopt, std::nullopt, std::nullopt};
    }
  }
  OptionalTensor filters = cast_filters(weight, input);
  const Tensor convolved = forward<Backend>(input, filters.value_or(weight), bias, unpack(arguments), Activation::kNone,
                                            /*may_be_wide=*/true);
  const Normalized found =
      normalize(convolved, residual, norm_weight, norm_bias, running_mean, running_var, num_batches_tracked, training,
                momentum, eps, activation, trains, /*behind_ours=*/true);
  return {found.output, filters, convolved, found.statistics, found.mask};
}

std::tuple<OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor>
conv_bn_act_backward(Tensor grad_output, Tensor input, Tensor weight, OptionalTensor filters, Tensor convolved,
                     OptionalTensor residual, OptionalTensor norm_weight, OptionalTensor norm_bias, Tensor statistics,
                     OptionalTensor mask, int64_t arguments, bool training, int64_t activation, int64_t needs) {
  close_gaps({&norm_weight, &norm_bias});
  const int64_t of_convolution = needs & 7;
  const BatchNormGradients found =
      batch_norm_gradients(grad_output, convolved, residual, norm_weight, norm_bias, statistics, mask, training,
                           activation, (of_convolution != 0) | (needs >> 3 & 6) | (needs & 8), /*behind_ours=*/true);
  Gradients grads;
  if (of_convolution) {
    grads = conv2d_backward_packed<Backend>(input, filters.value_or(weight), *found.input, arguments, of_convolution);
  }
  auto& [grad_input, grad_weight, grad_bias] = grads;
  if (grad_weight && filters) grad_weight = cast_filters(*grad_weight, weight);
  return {grad_input, grad_weight, grad_bias, found.residual, found.weight, found.bias};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fastconv, CUDA, library) {
  library.impl("_batch_norm_act", TORCH_BOX(&batch_norm_act));
  library.impl("_batch_norm_act_backward", TORCH_BOX(&batch_norm_act_backward));
  library.impl("_conv_bn_act", TORCH_BOX(&conv_bn_act));
  library.impl("_conv_bn_act_backward", TORCH_BOX(&conv_bn_act_backward));
}

}  // namespace fastconv::ops
