#include "fastconv/ops/conv2d_ops.h"

#include <cstdlib>
#include <stdexcept>

// Of torch 2.13 and newer; null before. It knows why a call failed.
extern "C" __attribute__((weak)) const char* torch_exception_get_what_without_backtrace();

namespace fastconv::ops {
namespace {

constexpr const char* kDtypes = "float32, float64, float16, bfloat16 or complex";

std::optional<DType> dtype_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::headeronly::ScalarType::Float:
    case torch::headeronly::ScalarType::ComplexFloat: return DType::kFloat32;
    case torch::headeronly::ScalarType::Double:
    case torch::headeronly::ScalarType::ComplexDouble: return DType::kFloat64;
    case torch::headeronly::ScalarType::Half:
    case torch::headeronly::ScalarType::ComplexHalf: return DType::kFloat16;
    case torch::headeronly::ScalarType::BFloat16: return DType::kBFloat16;
    default: return std::nullopt;
  }
}

std::string device_name(const Tensor& tensor) {
  return tensor.is_cuda() ? "cuda:" + std::to_string(tensor.get_device_index()) : tensor.is_cpu() ? "cpu" : "another";
}

DType check_dtype(const Operand& operand) {
  const std::optional<DType> dtype = dtype_of(operand.tensor);
  if (!dtype) fail(std::string(operand.name) + " must be " + kDtypes);
  return *dtype;
}

// torch's name.
std::string dtype_name(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::headeronly::ScalarType::ComplexHalf: return "complex32";
    case torch::headeronly::ScalarType::ComplexFloat: return "complex64";
    case torch::headeronly::ScalarType::ComplexDouble: return "complex128";
    default: return to_string(*dtype_of(tensor));
  }
}

int32_t alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<int32_t>(address % 128 == 0 ? 128 : address & -address);
}

int32_t type_of_sums(DType dtype) {
  return dtype == DType::kFloat64 ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
}

Tensor allocate(int64_t dims, const int64_t* sizes, const int64_t* strides, int32_t dtype, const Tensor& like) {
  int32_t device_type;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  AtenTensorHandle handle;
  if (aoti_torch_empty_strided(dims, sizes, strides, dtype, device_type, like.get_device_index(), &handle) ==
      AOTI_TORCH_SUCCESS) {
    return Tensor(handle);
  }
  std::string message = "not enough memory on " + device_name(like) + " for a tensor of size [";
  for (int64_t dim = 0; dim < dims; ++dim) message += (dim ? ", " : "") + std::to_string(sizes[dim]);
  message += "]";
  if (torch_exception_get_what_without_backtrace) {
    message += std::string(": ") + torch_exception_get_what_without_backtrace();
  }
  fail(message);
}

}  // namespace

void fail(const std::string& message) { throw std::runtime_error("fastconv: " + message); }

Precision parse_precision(const OptionalString& precision) {
  if (!precision || *precision == "ieee") return Precision::kIeee;
  if (*precision == "bf16x3") return Precision::kBf16x3;
  if (*precision == "tf32") return Precision::kTf32;
  if (*precision == "allow_tf32") return Precision::kAllowTf32;
  fail("precision must be 'ieee', 'bf16x3', 'tf32', 'allow_tf32' or None, but got '" + *precision + "'");
}

DType parse_dtype(const std::string& name) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    if (name == to_string(dtype)) return dtype;
  }
  fail("dtype must be " + std::string(kDtypes) + ", but got " + name);
}

Sizes sizes_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return {sizes.begin(), sizes.end()};
}

View::View(const Tensor& tensor, Role role) {
  const auto stride = tensor.strides();
  sizes = sizes_of(tensor);
  data = tensor.data_ptr();
  align = alignment(data);
  if (sizes.size() == 4) {
    strides = {stride[0], stride[1], stride[2], stride[3]};
  } else if (sizes.size() == 3 && role == Role::kImage) {
    sizes.insert(sizes.begin(), 1);
    strides = {sizes[1] * stride[0], stride[0], stride[1], stride[2]};
  }
}

bool is_channels_last(const View& view) {
  if (view.sizes.size() != 4 || view.strides.c == 0) return false;
  struct Dim {
    int64_t size, stride;
  };
  const Dim dims[] = {{view.sizes[1], view.strides.c},
                      {view.sizes[3], view.strides.w},
                      {view.sizes[2], view.strides.h},
                      {view.sizes[0], view.strides.n}};
  int64_t least = 0;
  for (const Dim& dim : dims) {
    if (dim.size == 0 || dim.stride < least) return false;
    if (&dim == &dims[3] && least == view.strides.c) return false;  // N111: contiguous by convention
    least = dim.stride * (dim.size > 1 ? dim.size : 1);
  }
  return true;
}

Strides dense_strides(const Sizes& sizes, bool channels_last) {
  const auto at_least_1 = [](int64_t size) { return size > 1 ? size : int64_t{1}; };
  const int64_t c = at_least_1(sizes[1]), h = at_least_1(sizes[2]), w = at_least_1(sizes[3]);
  return channels_last ? Strides{h * w * c, 1, w * c, c} : Strides{c * h * w, h * w, w, 1};
}

void check_same_device(const Operand& first, const Operand& second) {
  if (first.tensor.is_cpu() != second.tensor.is_cpu() ||
      first.tensor.get_device_index() != second.tensor.get_device_index()) {
    fail(std::string(first.name) + " and " + second.name + " must be on the same device, but got " +
         device_name(first.tensor) + " and " + device_name(second.tensor));
  }
}

DType check_operands(const Operand& first, const Operand& second) {
  const DType dtype = check_dtype(first);
  check_dtype(second);
  if (first.tensor.scalar_type() != second.tensor.scalar_type()) {
    fail(std::string(first.name) + " and " + second.name + " must have the same dtype, but got " +
         dtype_name(first.tensor) + " and " + dtype_name(second.tensor));
  }
  check_same_device(first, second);
  return dtype;
}

bool is_wide_bias(const Tensor& bias, const Tensor& input) {
  return bias.scalar_type() == torch::headeronly::ScalarType::Float && bias.is_cuda() == input.is_cuda() &&
         bias.get_device_index() == input.get_device_index();
}

Tensor empty(const Sizes& sizes, bool channels_last, bool batched, const Tensor& like) {
  const Strides s = dense_strides(sizes, channels_last);
  const int64_t strides[] = {s.n, s.c, s.h, s.w};
  const int skipped = batched ? 0 : 1;
  int32_t dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  return allocate(4 - skipped, sizes.data() + skipped, strides + skipped, dtype, like);
}

Tensor empty_vector(int64_t elements, const Tensor& like) {
  const int64_t stride = 1;
  int32_t dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  return allocate(1, &elements, &stride, dtype, like);
}

Tensor empty_bytes(int64_t bytes, const Tensor& like) {
  const int64_t stride = 1;
  return allocate(1, &bytes, &stride, aoti_torch_dtype_uint8(), like);
}

Tensor empty_sums(int64_t elements, DType dtype, const Tensor& like) {
  const int64_t stride = 1;
  return allocate(1, &elements, &stride, type_of_sums(dtype), like);
}

Tensor empty_matrix(int64_t rows, int64_t columns, DType dtype, const Tensor& like) {
  const int64_t sizes[] = {rows, columns}, strides[] = {columns, 1};
  return allocate(2, sizes, strides, type_of_sums(dtype), like);
}

ConvArguments parse_arguments(const Ints& stride, const Ints& padding, const Ints& dilation, int64_t groups,
                              const OptionalString& precision) {
  const auto pair = [](const char* name, const Ints& values) -> Pair {
    if (values.empty() || values.size() > 2) {
      fail(std::string(name) + " must have 1 or 2 values (rows, columns), but got " + std::to_string(values.size()));
    }
    return {values.front(), values.back()};
  };
  return {pair("stride", stride), pair("padding", padding), pair("dilation", dilation), groups,
          parse_precision(precision)};
}

ConvGeometry make_geometry(Sizes input, Sizes weight, const ConvArguments& arguments) {
  ConvGeometry geometry{std::move(input),  std::move(weight),  arguments.stride,
                        arguments.padding, arguments.dilation, arguments.groups};
  check(validate(geometry));
  return simplified(std::move(geometry));
}

ConvProblem make_problem(Pass pass, const ConvGeometry& g, DType dtype, Precision precision) {
  ConvProblem problem{};
  problem.pass = pass;
  problem.dtype = dtype;
  problem.precision = precision;
  problem.n = g.input[0], problem.c = g.input[1], problem.h = g.input[2], problem.w = g.input[3];
  problem.k = g.weight[0], problem.r = g.weight[2], problem.s = g.weight[3];
  problem.groups = g.groups;
  problem.stride = g.stride;
  problem.padding = g.padding;
  problem.dilation = g.dilation;
  return problem;
}

const char* forced_kernels() {
  const char* names = std::getenv("FASTCONV_KERNEL");
  return names ? names : "";
}

Ints ints_of(const DeviceSpec& gpu) {
  return {gpu.arch,
          gpu.sm_count,
          gpu.smem_optin_bytes,
          static_cast<int64_t>(gpu.clock_mhz),
          static_cast<int64_t>(gpu.memory_gbps),
          gpu.l2_bytes};
}

const Plan& plan_for(const ConvProblem& problem, const DeviceSpec& device) {
  static thread_local PlanCache cache;
  const Choice& choice = cache.plan(problem, device, forced_kernels());
  if (!choice.plan.kernel) fail(choice.reason);
  return choice.plan;
}

}  // namespace fastconv::ops
