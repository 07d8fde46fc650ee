// What the CPU and the CUDA ops have in common, which is everything but the backend: checks, allocation, plan, run.
// A backend is a type with
//   static constexpr bool kIsCuda
//   explicit Backend(int device_index)        guards the device for the call
//   const DeviceSpec& device() const
//   void run(const Plan&, const ConvProblem&, const ConvBuffers&)
//   int64_t bias_grad_workspace_bytes(const ConvProblem&)
//   void bias_grad(const ConvProblem&, const void* grad_output, void* grad_bias, void* workspace)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "fastconv/core/buffers.h"
#include "fastconv/core/packed_arguments.h"
#include "fastconv/core/problem.h"
#include "fastconv/core/validate.h"
#include "fastconv/ops/complex.h"
#include "fastconv/ops/torch_stable.h"
#include "fastconv/planner/plan_cache.h"

namespace fastconv::ops {

using torch::stable::Tensor;
using Ints = std::vector<int64_t>;
using OptionalString = std::optional<std::string>;

// std::runtime_error arrives in Python as RuntimeError, the kind F.conv2d raises.
[[noreturn]] void fail(const std::string& message);

Precision parse_precision(const OptionalString& precision);
DType parse_dtype(const std::string& name);

Sizes sizes_of(const Tensor& tensor);

// A tensor as 4-D: an unbatched input or output gets a batch dimension of 1, a filter must have all four.
enum class Role { kImage, kFilter };
struct View {
  Sizes sizes;
  Strides strides{};
  void* data = nullptr;
  int32_t align = 128;

  View() = default;
  explicit View(const Tensor& tensor, Role role = Role::kImage);
};

// torch's rule (c10/core/MemoryFormat.h, is_channels_last_strides_2d), ambiguous cases included.
bool is_channels_last(const View& view);

// Dense strides of a 4-D size in torch's contiguous or channels_last memory format.
Strides dense_strides(const Sizes& sizes, bool channels_last);

// Checks what F.conv2d checks of two tensors that meet in an operator. Of complex numbers the dtype of their parts.
struct Operand {
  const char* name;
  const Tensor& tensor;
};
void check_same_device(const Operand& first, const Operand& second);
DType check_operands(const Operand& first, const Operand& second);

// Of float32, where the input is.
bool is_wide_bias(const Tensor& bias, const Tensor& input);

Tensor empty(const Sizes& sizes, bool channels_last, bool batched, const Tensor& like);
Tensor empty_vector(int64_t elements, const Tensor& like);
Tensor empty_bytes(int64_t bytes, const Tensor& like);
Tensor empty_sums(int64_t elements, DType dtype, const Tensor& like);
Tensor empty_matrix(int64_t rows, int64_t columns, DType dtype, const Tensor& like);

// torch takes a list of one value for both dimensions.
ConvArguments parse_arguments(const Ints& stride, const Ints& padding, const Ints& dilation, int64_t groups,
                              const OptionalString& precision);

// Fails if it is not legal.
ConvGeometry make_geometry(Sizes input, Sizes weight, const ConvArguments& arguments);

ConvProblem make_problem(Pass pass, const ConvGeometry& geometry, DType dtype, Precision precision);

// FASTCONV_KERNEL, or nothing.
const char* forced_kernels();

// A GPU's, as Device of python/fastconv/explain.py has them.
Ints ints_of(const DeviceSpec& gpu);

// make_plan under FASTCONV_KERNEL, by this thread's PlanCache, until its next call. Fails where nothing runs.
const Plan& plan_for(const ConvProblem& problem, const DeviceSpec& device);

inline void check(const std::string& error) {
  if (!error.empty()) fail(error);
}

inline void set_input(ConvProblem& problem, ConvBuffers& buffers, const View& x) {
  problem.x_strides = x.strides, problem.x_align = x.align, buffers.x = x.data;
}
inline void set_weight(ConvProblem& problem, ConvBuffers& buffers, const View& w) {
  problem.w_strides = w.strides, problem.w_align = w.align, buffers.w = w.data;
}
inline void set_output(ConvProblem& problem, ConvBuffers& buffers, const View& y) {
  problem.y_strides = y.strides, problem.y_align = y.align, buffers.y = y.data;
}

template <class Backend>
void plan_and_run(Backend& backend, const ConvProblem& problem, ConvBuffers& buffers, const Tensor& like,
                  const Tensor& result) {
  if (result.numel() == 0) return;
  const Plan plan = plan_for(problem, backend.device());
  // Freed when this scope ends: torch's allocator keeps the memory for this stream, so the kernels may still use it.
  std::optional<Tensor> workspace;
  if (plan.workspace_bytes > 0) workspace = empty_bytes(plan.workspace_bytes, like);
  buffers.workspace = workspace ? workspace->data_ptr() : nullptr;
  ConvProblem planned = problem;
  planned.precision = plan.precision;
  backend.run(plan, planned, buffers);
}

// activation: one that cuts off. may_be_wide: the bias, of tensors of 16 bits; both of CUDA's backend alone.
template <class Backend>
Tensor forward(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
               const ConvArguments& arguments, Activation activation = Activation::kNone, bool may_be_wide = false) {
  const DType dtype = check_operands({"input", input}, {"weight", weight});
  const View x(input), w(weight, Role::kFilter);
  const ConvGeometry geometry = make_geometry(x.sizes, w.sizes, arguments);
  std::optional<Tensor> dense_bias;
  bool wide_bias = false;
  if (bias) {
    wide_bias = may_be_wide && element_size(dtype) == 2 && is_wide_bias(*bias, input);
    if (!wide_bias) check_operands({"input", input}, {"bias", *bias});
    check(validate_bias(geometry, sizes_of(*bias)));
    dense_bias = bias->is_contiguous() ? *bias : torch::stable::contiguous(*bias);
  }

  Backend backend(input.get_device_index());
  ConvProblem problem = make_problem(Pass::kFprop, geometry, dtype, arguments.precision);
  problem.has_bias = bias.has_value();
  const bool channels_last = problem.n > 0 && (is_channels_last(x) || is_channels_last(w));
  Tensor output = empty({problem.n, problem.k, problem.p(), problem.q()}, channels_last, input.dim() == 4, input);
  if (is_complex(input)) {
    std::optional<Tensor> parts;
    if (bias) parts = real_bias(*bias);
    store_channels(output,
                   forward<Backend>(real_channels(input), real_filters(weight, /*conjugate=*/false), parts, arguments));
    return output;
  }
  ConvBuffers buffers{};
  set_input(problem, buffers, x);
  set_weight(problem, buffers, w);
  set_output(problem, buffers, View(output));
  buffers.bias = dense_bias ? dense_bias->data_ptr() : nullptr;
  buffers.activation = activation, buffers.wide_bias = wide_bias;
  plan_and_run(backend, problem, buffers, input, output);
  return output;
}

template <class Backend>
Tensor input_gradient(Sizes input_size, const Tensor& weight, const Tensor& grad_output, const ConvArguments& arguments,
                      std::optional<bool> channels_last) {
  const DType dtype = check_operands({"grad_output", grad_output}, {"weight", weight});
  const bool batched = input_size.size() != 3;
  if (!batched) input_size.insert(input_size.begin(), 1);
  const View w(weight, Role::kFilter), dy(grad_output);
  const ConvGeometry geometry = make_geometry(std::move(input_size), w.sizes, arguments);
  check(validate_grad_output(geometry, dy.sizes));

  Backend backend(grad_output.get_device_index());
  ConvProblem problem = make_problem(Pass::kDgrad, geometry, dtype, arguments.precision);
  Tensor grad_input =
      empty(geometry.input, channels_last.value_or(is_channels_last(w) || is_channels_last(dy)), batched, grad_output);
  if (is_complex(weight)) {
    Sizes parts = sizes_of(grad_input);
    parts[parts.size() - 3] *= 2;
    store_channels(grad_input, input_gradient<Backend>(std::move(parts), real_filters(weight, /*conjugate=*/true),
                                                       real_channels(grad_output), arguments, channels_last));
    return grad_input;
  }
  ConvBuffers buffers{};
  set_input(problem, buffers, View(grad_input));
  set_weight(problem, buffers, w);
  set_output(problem, buffers, dy);
  plan_and_run(backend, problem, buffers, grad_output, grad_input);
  return grad_input;
}

template <class Backend>
Tensor weight_gradient(const Tensor& input, Sizes weight_size, const Tensor& grad_output,
                       const ConvArguments& arguments, std::optional<bool> channels_last) {
  const DType dtype = check_operands({"grad_output", grad_output}, {"input", input});
  const View x(input), dy(grad_output);
  const ConvGeometry geometry = make_geometry(x.sizes, std::move(weight_size), arguments);
  check(validate_grad_output(geometry, dy.sizes));

  Backend backend(grad_output.get_device_index());
  ConvProblem problem = make_problem(Pass::kWgrad, geometry, dtype, arguments.precision);
  Tensor grad_weight =
      empty(geometry.weight, channels_last.value_or(is_channels_last(x) || is_channels_last(dy)), true, grad_output);
  if (is_complex(input)) {
    const Sizes& size = geometry.weight;
    store_filters(grad_weight,
                  weight_gradient<Backend>(real_channels(input), {2 * size[0], 2 * size[1], size[2], size[3]},
                                           real_channels(grad_output), arguments, channels_last));
    return grad_weight;
  }
  ConvBuffers buffers{};
  set_input(problem, buffers, x);
  set_weight(problem, buffers, View(grad_weight));
  set_output(problem, buffers, dy);
  plan_and_run(backend, problem, buffers, grad_output, grad_weight);
  return grad_weight;
}

template <class Backend>
Tensor conv2d_bias(Tensor grad_output) {
  const DType dtype = check_operands({"grad_output", grad_output}, {"grad_output", grad_output});
  const View dy(grad_output);
  if (dy.sizes.size() != 4) fail("grad_output must be 3-D (K, P, Q) or 4-D (N, K, P, Q)");
  if (is_complex(grad_output)) return complex_bias(conv2d_bias<Backend>(real_channels(grad_output)));
  // The sum over pixels is that of any convolution with this output; a 1x1 filter over one channel is the plainest.
  const ConvGeometry geometry{
      {dy.sizes[0], 1, dy.sizes[2], dy.sizes[3]}, {dy.sizes[1], 1, 1, 1}, {1, 1}, {0, 0}, {1, 1}, 1};
  ConvProblem problem = make_problem(Pass::kFprop, geometry, dtype, Precision::kIeee);
  problem.y_strides = dy.strides, problem.y_align = dy.align;

  Backend backend(grad_output.get_device_index());
  Tensor grad_bias = torch::stable::new_empty(grad_output, {dy.sizes[1]});
  if (grad_bias.numel() == 0) return grad_bias;
  const int64_t bytes = backend.bias_grad_workspace_bytes(problem);
  std::optional<Tensor> workspace;
  if (bytes > 0) workspace = empty_bytes(bytes, grad_output);
  backend.bias_grad(problem, dy.data, grad_bias.data_ptr(), workspace ? workspace->data_ptr() : nullptr);
  return grad_bias;
}

// The ops as the public schemas have them.

template <class Backend>
Tensor conv2d(Tensor input, Tensor weight, std::optional<Tensor> bias, Ints stride, Ints padding, Ints dilation,
              int64_t groups, OptionalString precision) {
  return forward<Backend>(input, weight, bias, parse_arguments(stride, padding, dilation, groups, precision));
}

template <class Backend>
Tensor conv2d_input(Ints input_size, Tensor weight, Tensor grad_output, Ints stride, Ints padding, Ints dilation,
                    int64_t groups, OptionalString precision, std::optional<bool> channels_last) {
  return input_gradient<Backend>(std::move(input_size), weight, grad_output,
                                 parse_arguments(stride, padding, dilation, groups, precision), channels_last);
}

template <class Backend>
Tensor conv2d_weight(Tensor input, Ints weight_size, Tensor grad_output, Ints stride, Ints padding, Ints dilation,
                     int64_t groups, OptionalString precision, std::optional<bool> channels_last) {
  return weight_gradient<Backend>(input, std::move(weight_size), grad_output,
                                  parse_arguments(stride, padding, dilation, groups, precision), channels_last);
}

// The same for eager calls. The gradients have the size and memory format that autograd wants.

template <class Backend>
Tensor conv2d_packed(Tensor input, Tensor weight, std::optional<Tensor> bias, int64_t arguments) {
  return forward<Backend>(input, weight, bias, unpack(arguments));
}

// needs: bits for input, weight and bias.
using Gradients = std::tuple<std::optional<Tensor>, std::optional<Tensor>, std::optional<Tensor>>;
template <class Backend>
Gradients conv2d_backward_packed(Tensor input, Tensor weight, Tensor grad_output, int64_t arguments, int64_t needs) {
  const ConvArguments unpacked = unpack(arguments);
  const bool filter_channels_last = is_channels_last(View(weight, Role::kFilter));
  Gradients gradients;
  if (needs & 1) {
    const bool channels_last = filter_channels_last || is_channels_last(View(input));
    std::get<0>(gradients) = input_gradient<Backend>(sizes_of(input), weight, grad_output, unpacked, channels_last);
  }
  if (needs & 2) {
    std::get<1>(gradients) =
        weight_gradient<Backend>(input, sizes_of(weight), grad_output, unpacked, filter_channels_last);
  }
  if (needs & 4) std::get<2>(gradients) = conv2d_bias<Backend>(grad_output);
  return gradients;
}

// aten's convolution for backends from outside, as its autograd node is C++ (docs/autograd.md). `groups` are our packed
// arguments, and the lists are empty.
template <class Backend>
Tensor convolution_overrideable(Tensor input, Tensor weight, std::optional<Tensor> bias, Ints stride, Ints /*padding*/,
                                Ints /*dilation*/, bool /*transposed*/, Ints /*output_padding*/, int64_t groups) {
  if (!stride.empty()) fail("aten::convolution_overrideable is fastconv's own here; call fastconv.conv2d");
  return forward<Backend>(input, weight, bias, unpack(groups));
}

template <class Backend>
void register_ops(torch::stable::detail::StableLibrary& library) {
  library.impl("conv2d", TORCH_BOX(&conv2d<Backend>));
  library.impl("conv2d_input", TORCH_BOX(&conv2d_input<Backend>));
  library.impl("conv2d_weight", TORCH_BOX(&conv2d_weight<Backend>));
  library.impl("conv2d_bias", TORCH_BOX(&conv2d_bias<Backend>));
  library.impl("_conv2d", TORCH_BOX(&conv2d_packed<Backend>));
  library.impl("_conv2d_backward", TORCH_BOX(&conv2d_backward_packed<Backend>));
}

template <class Backend>
void register_node(torch::stable::detail::StableLibrary& aten) {
  aten.impl("convolution_overrideable", TORCH_BOX(&convolution_overrideable<Backend>));
}

}  // namespace fastconv::ops
