// The pybind11 module of _fastconv_emulated.pyi.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "../native/measure.h"
#include "emulated/cuda.h"
#include "fastconv/launch/launch.h"
#include "fastconv/launch/launchers.h"
#include "fastconv/norm/activate.h"
#include "fastconv/norm/batch_norm.h"
#include "fastconv/norm/fold.h"
#include "fastconv/planner/planner.h"
#include "fastconv/planner/registry.h"
#include "fastconv/planner/scaled.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace fastconv {
namespace {

// From the first to the last element.
std::span<const char> extent(uintptr_t address, std::initializer_list<int64_t> sizes, const Strides& strides,
                             int64_t element_bytes) {
  int64_t last = 0;
  const int64_t* stride = &strides.n;
  for (const int64_t size : sizes) last += (size - 1) * *stride++;
  return {reinterpret_cast<const char*>(address), static_cast<size_t>((last + 1) * element_bytes)};
}

DType dtype_of(const std::string& name) {
  for (const DType it : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    if (name == to_string(it)) return it;
  }
  throw py::value_error("no dtype " + name);
}

bool is_compiled(const std::string& kernel, const std::string& dtype) {
  const KernelEntry* entry = find_kernel(kernel);
  return entry != nullptr && launcher_of(*entry, dtype_of(dtype)) != nullptr;
}

// With the plans that it holds.
bool is_compiled(const Plan& plan, DType dtype) {
  auto inner_is = [](const InnerPlan& inner) { return is_compiled(inner.plan, inner.problem.dtype); };
  auto other_is = [&](const Plan& other) { return is_compiled(other, dtype); };
  return launcher_of(*plan.kernel, dtype) != nullptr && std::ranges::all_of(plan.inner, inner_is) &&
         std::ranges::all_of(plan.others, other_is);
}

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

int64_t run(const std::string& name, const ConvProblem& p, const DeviceSpec& device, uintptr_t x, uintptr_t w,
            uintptr_t y, uintptr_t bias, int activation, bool wide_bias, bool haste) {
  const Choice choice = make_plan(p, device, name);
  const Plan& plan = choice.plan;
  if (plan.kernel == nullptr || plan.kernel->name != name) throw py::value_error(choice.reason);
  if (!is_compiled(plan, p.dtype)) throw py::value_error(name + " is not compiled for this dtype, or what it calls");
  std::vector<char> workspace(plan.workspace_bytes, '\xff');
  const int64_t bytes = element_size(p.dtype);
  emulated::Machine& machine = emulated::machine();
  machine.order = haste ? emulated::Order::kHaste : emulated::Order::kTurns;
  machine.columns_by_definition = 0;
  machine.memory = {extent(x, {p.n, p.c, p.h, p.w}, p.x_strides, bytes),
                    extent(w, {p.k, p.c_per_group(), p.r, p.s}, p.w_strides, bytes),
                    extent(y, {p.n, p.k, p.p(), p.q()}, p.y_strides, bytes),
                    extent(bias, {bias == 0 ? 0 : p.k}, {1}, wide_bias ? 4 : bytes), workspace};
  run_cuda(plan, p,
           {pointer(x),
            pointer(w),
            pointer(y),
            pointer(bias),
            workspace.data(),
            {},
            static_cast<Activation>(activation),
            wide_bias},
           nullptr);
  return machine.columns_by_definition;
}

// Addresses by name; 0 for what there is not.
using Addresses = std::map<std::string, uintptr_t>;
struct At {
  const Addresses& addresses;
  bool wide;

  void* operator()(const std::string& name) const {
    const auto found = addresses.find(name);
    return found == addresses.end() ? nullptr : pointer(found->second);
  }
  NormParameter parameter(const std::string& name) const { return {(*this)(name), wide}; }
  // That kernels may read past their registers.
  std::vector<std::span<const char>> images(const NormProblem& problem) const {
    std::vector<std::span<const char>> found;
    const int64_t bytes = problem.elements() * element_size(problem.dtype);
    for (const char* name : {"x", "residual", "grad_y"}) {
      const void* image = (*this)(name);
      if (image != nullptr) found.emplace_back(static_cast<const char*>(image), bytes);
    }
    return found;
  }
};

void batch_norm_forward(const NormProblem& problem, const DeviceSpec& device, Activation activation, bool training,
                        double momentum, double eps, bool wide, const Addresses& addresses) {
  const At at{addresses, wide};
  std::vector<char> workspace(batch_norm_workspace_bytes(problem, device), '\xff');
  const BatchNormForward call{at("x"),
                              at("residual"),
                              at.parameter("weight"),
                              at.parameter("bias"),
                              at.parameter("running_mean"),
                              at.parameter("running_var"),
                              activation,
                              training,
                              momentum,
                              eps,
                              static_cast<int64_t*>(at("batches")),
                              at("y"),
                              static_cast<uint8_t*>(at("mask")),
                              at("statistics"),
                              workspace.data()};
  emulated::machine().memory = at.images(problem);
  batch_norm_forward_cuda(problem, device, call, nullptr);
}

void batch_norm_backward(const NormProblem& problem, const DeviceSpec& device, Activation activation, bool training,
                         bool wide, const Addresses& addresses) {
  const At at{addresses, wide};
  std::vector<char> workspace(batch_norm_workspace_bytes(problem, device), '\xff');
  const BatchNormBackward call{at("x"),
                               at("residual"),
                               at("grad_y"),
                               at.parameter("weight"),
                               at.parameter("bias"),
                               activation,
                               training,
                               static_cast<const uint8_t*>(at("mask")),
                               at("statistics"),
                               at("grad_x"),
                               at("grad_residual"),
                               at.parameter("grad_weight"),
                               at.parameter("grad_bias"),
                               workspace.data()};
  emulated::machine().memory = at.images(problem);
  batch_norm_backward_cuda(problem, device, call, nullptr);
}

// Of addresses with grad_y the gradient.
void activate(const std::string& dtype, int64_t count, Activation activation, const Addresses& addresses) {
  const At at{addresses, false};
  emulated::machine().memory.clear();
  if (at("grad_y") == nullptr) {
    activate_cuda(dtype_of(dtype), count, {at("z"), at("residual"), at("y"), activation}, nullptr);
  } else {
    const ActivateBackward call{at("grad_y"), at("kept"), at("residual"), at("grad_z"), activation};
    activate_backward_cuda(dtype_of(dtype), count, call, nullptr);
  }
}

}  // namespace

// As src/launch/operand_range.cu does, whose kernel has static shared memory for each of several blocks at once.
const OperandRange* measure_operands(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers,
                                     Stream&) {
  const auto [first, second] = read_tensors(problem);
  auto range_of = [](const void* values, int64_t count) {
    return measure({static_cast<const float*>(values), static_cast<size_t>(count)});
  };
  const TensorRange input = range_of(problem.pass == Pass::kDgrad ? buffers.y : buffers.x, first.values);
  const TensorRange other = range_of(problem.pass == Pass::kWgrad ? buffers.y : buffers.w, second.values);
  auto* range = static_cast<OperandRange*>(buffers.workspace);
  *range = operand_range(input, other, widest_range(plan.kernel->scaled_parts));
  return range;
}

PYBIND11_MODULE(_fastconv_emulated, m) {
  py::module_::import("_fastconv_native");  // has the types
  m.def("is_compiled", py::overload_cast<const std::string&, const std::string&>(&is_compiled), "kernel"_a, "dtype"_a);
  m.def(
      "runs",
      [](const std::string& kernel, const ConvProblem& problem, const DeviceSpec& device) {
        const Choice choice = make_plan(problem, device, kernel);
        return choice.plan.kernel != nullptr && is_compiled(choice.plan, problem.dtype);
      },
      "kernel"_a, "problem"_a, "device"_a);
  m.def("run", &run, "kernel"_a, "problem"_a, "device"_a, py::kw_only(), "x"_a, "w"_a, "y"_a, "bias"_a = 0,
        "activation"_a = 0, "wide_bias"_a = false, "haste"_a = false);
  py::class_<NormProblem>(m, "NormProblem")
      .def(py::init([](const std::string& dtype, bool channels_last, int64_t n, int64_t c, int64_t pixels) {
             return NormProblem{dtype_of(dtype), channels_last, n, c, pixels};
           }),
           py::kw_only(), "dtype"_a, "channels_last"_a, "n"_a, "c"_a, "pixels"_a);
  m.def("norm_vector", &norm_vector, "problem"_a);
  m.def(
      "activate",
      [](const std::string& dtype, int64_t count, int activation, const Addresses& addresses) {
        activate(dtype, count, static_cast<Activation>(activation), addresses);
      },
      "dtype"_a, "count"_a, "activation"_a, "addresses"_a);
  m.def(
      "fold_norm",
      [](const std::string& dtype, const std::string& filters_type, int64_t count, int64_t values, bool wide,
         double eps, const Addresses& addresses) {
        const At at{addresses, wide};
        const NormFold fold{at("filters"),
                            count,
                            values,
                            dtype_of(filters_type),
                            at.parameter("bias"),
                            at.parameter("weight"),
                            at.parameter("norm_bias"),
                            at.parameter("mean"),
                            at.parameter("variance"),
                            eps,
                            at("folded"),
                            at("folded_bias")};
        fold_norm_cuda(dtype_of(dtype), fold, nullptr);
      },
      "dtype"_a, "filters_type"_a, "count"_a, "values"_a, "wide"_a, "eps"_a, "addresses"_a);
  m.def(
      "cast",
      [](const std::string& from_type, const std::string& to_type, uintptr_t from, uintptr_t to, int64_t count) {
        cast_cuda(dtype_of(from_type), dtype_of(to_type), pointer(from), pointer(to), count, nullptr);
      },
      "from_type"_a, "to_type"_a, "from_"_a, "to"_a, "count"_a);
  m.def("run_together", [](bool together) { emulated::machine().runs_together = together; }, "together"_a);
  m.def(
      "batch_norm_forward",
      [](const NormProblem& problem, const DeviceSpec& device, int activation, bool training, double momentum,
         double eps, bool wide, const Addresses& addresses) {
        batch_norm_forward(problem, device, static_cast<Activation>(activation), training, momentum, eps, wide,
                           addresses);
      },
      "problem"_a, "device"_a, py::kw_only(), "activation"_a, "training"_a, "momentum"_a, "eps"_a, "wide"_a,
      "addresses"_a);
  m.def(
      "batch_norm_backward",
      [](const NormProblem& problem, const DeviceSpec& device, int activation, bool training, bool wide,
         const Addresses& addresses) {
        batch_norm_backward(problem, device, static_cast<Activation>(activation), training, wide, addresses);
      },
      "problem"_a, "device"_a, py::kw_only(), "activation"_a, "training"_a, "wide"_a, "addresses"_a);
}

}  // namespace fastconv
