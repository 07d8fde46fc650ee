// The schemas, and the ops that compute no convolution.
#include <array>
#include <tuple>

#include "fastconv/ops/conv2d_ops.h"
#include "fastconv/planner/gpus.h"
#include "fastconv/planner/registry.h"

namespace fastconv::ops {
namespace {

std::string explain_op(Ints input_size, Ints weight_size, Ints stride, Ints padding, Ints dilation, int64_t groups,
                       std::string dtype, std::string pass, std::string precision, bool channels_last, bool bias,
                       bool cuda, int64_t arch, int64_t sm_count, int64_t smem_optin_bytes, int64_t clock_mhz,
                       int64_t memory_gbps, int64_t l2_bytes, bool refusals) {
  if (input_size.size() == 3) input_size.insert(input_size.begin(), 1);
  const ConvArguments arguments = parse_arguments(stride, padding, dilation, groups, precision);
  const ConvGeometry geometry = make_geometry(std::move(input_size), std::move(weight_size), arguments);
  std::optional<Pass> wanted;
  for (const Pass candidate : {Pass::kFprop, Pass::kDgrad, Pass::kWgrad}) {
    if (pass == to_string(candidate)) wanted = candidate;
  }
  if (!wanted) fail("pass must be 'fprop', 'dgrad' or 'wgrad', but got '" + pass + "'");
  ConvProblem problem = make_problem(*wanted, geometry, parse_dtype(dtype), arguments.precision);
  problem.has_bias = bias && *wanted == Pass::kFprop;
  problem.x_strides = dense_strides(geometry.input, channels_last);
  problem.w_strides = dense_strides(geometry.weight, channels_last);
  problem.y_strides = dense_strides(output_size(geometry), channels_last);
  problem.x_align = problem.w_align = problem.y_align = 128;
  DeviceSpec device;
  device.is_cuda = cuda;
  device.arch = static_cast<int>(arch);
  device.sm_count = static_cast<int>(sm_count);
  device.smem_optin_bytes = smem_optin_bytes;
  device.clock_mhz = static_cast<double>(clock_mhz);
  device.memory_gbps = static_cast<double>(memory_gbps);
  device.l2_bytes = l2_bytes;
  device.threads = static_cast<int>(torch::stable::get_num_threads());
  return explain(problem, device, forced_kernels(), refusals);
}

// Of the output. Fails where there is no convolution, with the words of the ops that compute one.
Ints output_size_op(Ints input_size, Ints weight_size, Ints stride, Ints padding, Ints dilation, int64_t groups) {
  const bool batched = input_size.size() != 3;
  if (!batched) input_size.insert(input_size.begin(), 1);
  const ConvArguments arguments = parse_arguments(stride, padding, dilation, groups, std::nullopt);
  Ints size = output_size(make_geometry(std::move(input_size), std::move(weight_size), arguments));
  if (!batched) size.erase(size.begin());
  return size;
}

Ints gpu_op(std::string name_or_arch) { return ints_of(gpu_of(name_or_arch, "fastconv: arch")); }

std::string kernels() {
  std::string lines;
  for (const KernelEntry& kernel : kernel_table()) {
    lines +=
        std::string(kernel.name) + "\t" + to_string(kernel.pass) + "\t" + (kernel.is_cuda() ? "cuda" : "cpu") + "\n";
  }
  return lines;
}

Tensor undefined() {
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_new_uninitialized_tensor(&handle));
  return Tensor(handle);
}

bool has_tangent(const Tensor& tensor) {
  std::array<StableIValue, 2> stack{torch::stable::detail::from(tensor), torch::stable::detail::from(int64_t{0})};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::_unpack_dual", "", stack.data(), TORCH_ABI_VERSION));
  const Tensor primal = torch::stable::detail::to<Tensor>(stack[0]);
  return torch::stable::detail::to<Tensor>(stack[1]).defined();
}

// What the node of aten::convolution_overrideable calls, above autograd: aten's own kernel there would make a node
// whose gradients are aten's convolutions.
std::tuple<Tensor, Tensor, Tensor> convolution_backward(Tensor grad_output, Tensor input, Tensor weight,
                                                        Ints /*stride*/, Ints /*padding*/, Ints /*dilation*/,
                                                        bool /*transposed*/, Ints /*output_padding*/, int64_t groups,
                                                        std::vector<bool> mask) {
  const int64_t needs = mask[0] | mask[1] << 1 | mask[2] << 2;
  const bool graph = aoti_torch_grad_mode_is_enabled() || has_tangent(grad_output);
  using torch::stable::detail::from;
  std::array<StableIValue, 5> stack{from(input), from(weight), from(grad_output), from(groups), from(needs)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(
      graph ? "fastconv::_conv2d_backward_graph" : "fastconv::_conv2d_backward", "", stack.data(), TORCH_ABI_VERSION));
  const auto gradient = [&stack](int which) {
    auto found = torch::stable::detail::to<std::optional<Tensor>>(stack[which]);
    return found ? *found : undefined();
  };
  return {gradient(0), gradient(1), gradient(2)};
}

std::string cpu_build() { return "compiler\t" __VERSION__ "\n"; }

}  // namespace

STABLE_TORCH_LIBRARY(fastconv, library) {
  library.def(
      "conv2d(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] padding=0, int[2] dilation=1, "
      "int groups=1, *, str? precision=None) -> Tensor");
  library.def(
      "conv2d_input(SymInt[] input_size, Tensor weight, Tensor grad_output, int[2] stride=1, int[2] padding=0, "
      "int[2] dilation=1, int groups=1, *, str? precision=None, bool? channels_last=None) -> Tensor");
  library.def(
      "conv2d_weight(Tensor input, SymInt[] weight_size, Tensor grad_output, int[2] stride=1, int[2] padding=0, "
      "int[2] dilation=1, int groups=1, *, str? precision=None, bool? channels_last=None) -> Tensor");
  library.def("conv2d_bias(Tensor grad_output) -> Tensor");
  // The convolutions below autograd, with the other arguments in one integer (core/packed_arguments.h).
  library.def("_conv2d(Tensor input, Tensor weight, Tensor? bias, int arguments) -> Tensor");
  // needs: bits for the gradients of input, weight and bias. The second is differentiable, and Python.
  library.def(
      "_conv2d_backward(Tensor input, Tensor weight, Tensor grad_output, int arguments, int needs) -> "
      "(Tensor?, Tensor?, Tensor?)");
  library.def(
      "_conv2d_backward_graph(Tensor input, Tensor weight, Tensor grad_output, int arguments, int needs) -> "
      "(Tensor?, Tensor?, Tensor?)");
  // Batch normalisation, and what follows it: the batch's or the running statistics, [2, C]: mean and 1 / sqrt(variance
  // + eps). mask: for the backward pass, where it cannot tell by the input which gradients pass; else empty.
  library.def(
      "_batch_norm_act(Tensor input, Tensor? residual, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, "
      "Tensor(b!)? running_var, Tensor(c!)? num_batches_tracked, bool training, float? momentum, float eps, "
      "int activation, bool trains) -> (Tensor output, Tensor statistics, Tensor mask)");
  // needs: bits for the gradients of input, weight, bias and residual; of others empty tensors are returned.
  library.def(
      "_batch_norm_act_backward(Tensor grad_output, Tensor input, Tensor? residual, Tensor? weight, Tensor? bias, "
      "Tensor statistics, Tensor mask, bool training, int activation, int needs) -> (Tensor, Tensor, Tensor, Tensor)");
  // A convolution, a residual and an activation. kept: what the gradient reads of if it trains, y where that is none.
  // The filters may be of another type than the input, for which they are cast, and returned. needs: bits for input,
  // weight, bias and residual; where the activation is none, the residual's gradient is the output's.
  library.def(
      "_conv2d_act(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, int arguments, int activation, "
      "bool trains) -> (Tensor output, Tensor? filters, Tensor? kept)");
  library.def(
      "_conv2d_act_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor? filters, Tensor? kept, "
      "Tensor? residual, int arguments, int activation, int needs) -> (Tensor?, Tensor?, Tensor?, Tensor?)");
  library.def(
      "conv2d_act(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] padding=0, "
      "int[2] dilation=1, int groups=1, *, str? precision=None, str? activation=None, Tensor? residual=None) -> "
      "Tensor");
  // Both, of the convolution's output. Unless it trains all but the output may be missing. The filters may be of
  // another type than the input, for which they are cast, and returned. needs: bits for the first six tensors of the
  // forward pass.
  library.def(
      "_conv_bn_act(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, Tensor? norm_weight, "
      "Tensor? norm_bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor(c!)? num_batches_tracked, "
      "int arguments, bool training, float? momentum, float eps, int activation, bool trains) -> "
      "(Tensor output, Tensor? filters, Tensor? convolved, Tensor? statistics, Tensor? mask)");
  library.def(
      "_conv_bn_act_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor? filters, Tensor convolved, "
      "Tensor? residual, "
      "Tensor? norm_weight, Tensor? norm_bias, Tensor statistics, Tensor? mask, int arguments, bool training, "
      "int activation, int needs) -> (Tensor?, Tensor?, Tensor?, Tensor?, Tensor?, Tensor?)");
  library.def(
      "batch_norm_act(Tensor input, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor? weight=None, "
      "Tensor? bias=None, bool training=False, float? momentum=0.1, float eps=1e-05, *, str? activation=None, "
      "Tensor? residual=None, Tensor(c!)? num_batches_tracked=None) -> Tensor");
  library.def(
      "_explain(int[] input_size, int[] weight_size, int[2] stride, int[2] padding, int[2] dilation, int groups, *, "
      "str dtype, str pass_, str precision, bool channels_last, bool bias, bool cuda, int arch, int sm_count, "
      "int smem_optin_bytes, int clock_mhz, int memory_gbps, int l2_bytes, bool refusals) -> str");
  library.def(
      "_output_size(int[] input_size, int[] weight_size, int[2] stride, int[2] padding, int[2] dilation, int groups) "
      "-> int[]");
  library.def("_gpu(str name_or_arch) -> int[]");
  library.def("_kernels() -> str");
  library.def("_cpu_build() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(fastconv, CompositeExplicitAutograd, library) {
  library.impl("_explain", TORCH_BOX(&explain_op));
  library.impl("_output_size", TORCH_BOX(&output_size_op));
  library.impl("_gpu", TORCH_BOX(&gpu_op));
  library.impl("_kernels", TORCH_BOX(&kernels));
  library.impl("_cpu_build", TORCH_BOX(&cpu_build));
}

STABLE_TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) {
  library.impl("convolution_backward_overrideable", TORCH_BOX(&convolution_backward));
}
STABLE_TORCH_LIBRARY_IMPL(aten, AutogradCUDA, library) {
  library.impl("convolution_backward_overrideable", TORCH_BOX(&convolution_backward));
}

}  // namespace fastconv::ops
