// The pybind11 module of _fastconv_emulated.pyi.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "../native/measure.h"
#include "emulated/cuda.h"
#include "fastconv/launch/launch.h"
#include "fastconv/launch/launchers.h"
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

bool is_compiled(const std::string& kernel, const std::string& dtype) {
  const KernelEntry* entry = find_kernel(kernel);
  for (const DType it : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    if (dtype == to_string(it)) return entry != nullptr && launcher_of(*entry, it) != nullptr;
  }
  throw py::value_error("no dtype " + dtype);
}

// With the plans that it holds.
bool is_compiled(const Plan& plan, DType dtype) {
  auto inner_is = [](const InnerPlan& inner) { return is_compiled(inner.plan, inner.problem.dtype); };
  auto other_is = [&](const Plan& other) { return is_compiled(other, dtype); };
  return launcher_of(*plan.kernel, dtype) != nullptr && std::ranges::all_of(plan.inner, inner_is) &&
         std::ranges::all_of(plan.others, other_is);
}

int64_t run(const std::string& name, const ConvProblem& p, const DeviceSpec& device, uintptr_t x, uintptr_t w,
            uintptr_t y, uintptr_t bias, bool haste) {
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
                    extent(bias, {bias == 0 ? 0 : p.k}, {1}, bytes), workspace};
  const auto pointer = [](uintptr_t address) { return reinterpret_cast<void*>(address); };
  run_cuda(plan, p, {pointer(x), pointer(w), pointer(y), pointer(bias), workspace.data()}, nullptr);
  return machine.columns_by_definition;
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
        "haste"_a = false);
}

}  // namespace fastconv
