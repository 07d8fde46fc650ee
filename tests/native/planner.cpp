// Problems, what is legal, and what the planner says of them.
#include <sstream>

#include "fastconv/core/validate.h"
#include "fastconv/planner/cost.h"
#include "fastconv/planner/gpus.h"
#include "fastconv/planner/plan_cache.h"
#include "fastconv/planner/registry.h"
#include "native.h"

namespace fastconv {
namespace {

Strides dense_strides(const Sizes& size, bool channels_last) {
  const int64_t c = size[1], h = size[2], w = size[3];
  return channels_last ? Strides{h * w * c, 1, w * c, c} : Strides{c * h * w, h * w, w, 1};
}

template <typename Enum>
Enum parse(const char* what, const std::string& name, std::initializer_list<Enum> values) {
  for (const Enum value : values) {
    if (name == to_string(value)) return value;
  }
  throw py::value_error(std::string("unknown ") + what + ": " + name);
}

Pair pair(const Sizes& values) {
  if (values.size() != 2) throw py::value_error("2 values expected");
  return {values[0], values[1]};
}

ConvProblem make_problem(const Sizes& input, const Sizes& weight, const Sizes& stride, const Sizes& padding,
                         const Sizes& dilation, int64_t groups, const std::string& pass, const std::string& dtype,
                         const std::string& precision, bool bias, bool channels_last,
                         const std::optional<Quad>& x_strides, const std::optional<Quad>& w_strides,
                         const std::optional<Quad>& y_strides, int32_t align) {
  const ConvGeometry geometry{input, weight, pair(stride), pair(padding), pair(dilation), groups};
  if (const std::string error = validate(geometry); !error.empty()) throw py::value_error(error);
  ConvProblem problem{};
  problem.pass = parse("pass", pass, {Pass::kFprop, Pass::kDgrad, Pass::kWgrad});
  problem.dtype = parse("dtype", dtype, {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16});
  problem.precision = parse("precision", precision, {Precision::kIeee, Precision::kBf16x3, Precision::kTf32});
  problem.has_bias = bias;
  problem.n = input[0], problem.c = input[1], problem.h = input[2], problem.w = input[3];
  problem.k = weight[0], problem.r = weight[2], problem.s = weight[3];
  problem.groups = groups;
  problem.stride = geometry.stride;
  problem.padding = geometry.padding;
  problem.dilation = geometry.dilation;
  problem.x_strides = x_strides ? from_quad(*x_strides) : dense_strides(input, channels_last);
  problem.w_strides = w_strides ? from_quad(*w_strides) : dense_strides(weight, channels_last);
  problem.y_strides = y_strides ? from_quad(*y_strides) : dense_strides(output_size(geometry), channels_last);
  problem.x_align = problem.w_align = problem.y_align = align;
  return problem;
}

template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

void bind_problem(py::module_& m) {
  py::class_<ConvProblem>(m, "ConvProblem")
      .def(py::init(&make_problem), "input"_a, "weight"_a, "stride"_a = Sizes{1, 1}, "padding"_a = Sizes{0, 0},
           "dilation"_a = Sizes{1, 1}, "groups"_a = 1, py::kw_only(), "pass_"_a = "fprop", "dtype"_a = "float32",
           "precision"_a = "ieee", "bias"_a = false, "channels_last"_a = false, "x_strides"_a = py::none(),
           "w_strides"_a = py::none(), "y_strides"_a = py::none(), "align"_a = 128)
      .def_property_readonly("pass_", [](const ConvProblem& problem) { return to_string(problem.pass); })
      .def_property_readonly("dtype", [](const ConvProblem& problem) { return to_string(problem.dtype); })
      .def_readonly("n", &ConvProblem::n)
      .def_readonly("c", &ConvProblem::c)
      .def_readonly("h", &ConvProblem::h)
      .def_readonly("w", &ConvProblem::w)
      .def_readonly("k", &ConvProblem::k)
      .def_readonly("r", &ConvProblem::r)
      .def_readonly("s", &ConvProblem::s)
      .def_readonly("groups", &ConvProblem::groups)
      .def_property_readonly("p", &ConvProblem::p)
      .def_property_readonly("q", &ConvProblem::q)
      .def_property_readonly("c_per_group", &ConvProblem::c_per_group)
      .def_property_readonly("k_per_group", &ConvProblem::k_per_group)
      .def_property_readonly("x_strides", [](const ConvProblem& problem) { return to_quad(problem.x_strides); })
      .def_property_readonly("w_strides", [](const ConvProblem& problem) { return to_quad(problem.w_strides); })
      .def_property_readonly("y_strides", [](const ConvProblem& problem) { return to_quad(problem.y_strides); })
      .def_property_readonly("flops", &flops)
      .def_property_readonly("compulsory_bytes", &compulsory_bytes)
      .def("__repr__", &show<ConvProblem>);

  const auto geometry = [](const Sizes& input, const Sizes& weight, const Sizes& stride, const Sizes& padding,
                           const Sizes& dilation, int64_t groups) {
    return ConvGeometry{input, weight, pair(stride), pair(padding), pair(dilation), groups};
  };
  m.def(
      "validate",
      [=](const Sizes& input, const Sizes& weight, const Sizes& stride, const Sizes& padding, const Sizes& dilation,
          int64_t groups) { return validate(geometry(input, weight, stride, padding, dilation, groups)); },
      "input"_a, "weight"_a, "stride"_a, "padding"_a, "dilation"_a, "groups"_a);
  m.def(
      "validate_bias",
      [=](const Sizes& input, const Sizes& weight, const Sizes& stride, const Sizes& padding, const Sizes& dilation,
          int64_t groups, const Sizes& bias) {
        return validate_bias(geometry(input, weight, stride, padding, dilation, groups), bias);
      },
      "input"_a, "weight"_a, "stride"_a, "padding"_a, "dilation"_a, "groups"_a, py::kw_only(), "bias"_a);
  m.def(
      "validate_grad_output",
      [=](const Sizes& input, const Sizes& weight, const Sizes& stride, const Sizes& padding, const Sizes& dilation,
          int64_t groups, const Sizes& grad_output) {
        return validate_grad_output(geometry(input, weight, stride, padding, dilation, groups), grad_output);
      },
      "input"_a, "weight"_a, "stride"_a, "padding"_a, "dilation"_a, "groups"_a, py::kw_only(), "grad_output"_a);
  m.def(
      "output_size",
      [=](const Sizes& input, const Sizes& weight, const Sizes& stride, const Sizes& padding, const Sizes& dilation,
          int64_t groups) { return output_size(geometry(input, weight, stride, padding, dilation, groups)); },
      "input"_a, "weight"_a, "stride"_a, "padding"_a, "dilation"_a, "groups"_a);
}

void bind_planning(py::module_& m) {
  py::list gpus;
  for (const Gpu& known : known_gpus()) gpus.append(known.name);
  m.attr("GPUS") = gpus;
  py::class_<DeviceSpec>(m, "DeviceSpec")
      .def_static(
          "cpu",
          [](int threads) {
            DeviceSpec device;
            device.threads = threads;
            return device;
          },
          "threads"_a = 1)
      .def_static(
          "cuda",
          [](int arch, int sm_count, int64_t smem_optin_bytes) {
            DeviceSpec device{true, arch, sm_count, smem_optin_bytes};
            device.memory_gbps *= sm_count / 132.;  // as of a part of an H200
            return device;
          },
          "arch"_a, "sm_count"_a, "smem_optin_bytes"_a)
      .def_static(
          "gpu", [](const std::string& name_or_arch) { return gpu_of(name_or_arch, "the GPU"); }, "name_or_arch"_a)
      .def("acting_as",
           [](const DeviceSpec& device, const DeviceSpec& other) { return acting_as(device, other, "it"); })
      .def_readwrite("clock_mhz", &DeviceSpec::clock_mhz)
      .def_readwrite("memory_gbps", &DeviceSpec::memory_gbps)
      .def_readwrite("l2_bytes", &DeviceSpec::l2_bytes)
      .def_readonly("is_cuda", &DeviceSpec::is_cuda)
      .def_readonly("arch", &DeviceSpec::arch)
      .def_readonly("sm_count", &DeviceSpec::sm_count)
      .def_readonly("smem_optin_bytes", &DeviceSpec::smem_optin_bytes)
      .def_readonly("threads", &DeviceSpec::threads);

  py::class_<Choice>(m, "Plan")
      .def_property_readonly("kernel", [](const Choice& c) { return c.plan.kernel ? c.plan.kernel->name : ""; })
      .def_property_readonly("grid", [](const Choice& c) { return c.plan.grid; })
      .def_property_readonly("block_threads", [](const Choice& c) { return c.plan.block_threads; })
      .def_property_readonly("smem_bytes", [](const Choice& c) { return c.plan.smem_bytes; })
      .def_property_readonly("split", [](const Choice& c) { return c.plan.split; })
      .def_property_readonly("workspace_bytes", [](const Choice& c) { return c.plan.workspace_bytes; })
      .def_property_readonly("cost_us", [](const Choice& c) { return c.plan.cost_us; })
      .def_property_readonly("others",
                             [](const Choice& c) -> std::optional<Choice> {
                               if (c.plan.others.empty()) return std::nullopt;
                               return Choice{c.plan.others.front(), {}};
                             })
      .def_property_readonly("inner",
                             [](const Choice& c) -> std::optional<std::pair<ConvProblem, Choice>> {
                               if (c.plan.inner.empty()) return std::nullopt;
                               const InnerPlan& inner = c.plan.inner.front();
                               return std::pair{inner.problem, Choice{inner.plan, {}}};
                             })
      .def_readonly("reason", &Choice::reason)
      .def("__repr__", [](const Choice& c) { return c.plan.kernel ? show(c.plan) : c.reason; });

  py::class_<KernelEntry>(m, "Kernel")
      .def_readonly("name", &KernelEntry::name)
      .def_property_readonly("pass_", [](const KernelEntry& kernel) { return to_string(kernel.pass); })
      .def_property_readonly("family", [](const KernelEntry& kernel) { return kernel.family->name; })
      .def_property_readonly("is_cuda", &KernelEntry::is_cuda)
      .def_property_readonly("least_arch", [](const KernelEntry& kernel) { return kernel.archs.least; })
      .def_property_readonly(
          "tile", [](const KernelEntry& kernel) { return std::tuple{kernel.tile.m, kernel.tile.n, kernel.tile.k}; })
      .def(
          "why_not",
          [](const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) {
            return offer(kernel, problem, device).why_not;
          },
          "problem"_a, "device"_a);

  m.def(
      "make_plan",
      [](const ConvProblem& problem, const DeviceSpec& device, const std::string& force) {
        return make_plan(problem, device, force);
      },
      "problem"_a, "device"_a, "force"_a = "");
  py::class_<PlanCache>(m, "PlanCache")
      .def(py::init<size_t>(), "most"_a = 4096)
      .def("plan", &PlanCache::plan, "problem"_a, "device"_a, "force"_a = "")
      .def_property_readonly("made", &PlanCache::made);
  m.def(
      "explain",
      [](const ConvProblem& problem, const DeviceSpec& device, const std::string& force) {
        return explain(problem, device, force);
      },
      "problem"_a, "device"_a, "force"_a = "");
  m.def("costs", [] {
    std::map<std::string, std::vector<double>> costs;
    for (const FittedCost& cost : fitted_costs()) costs[cost.name].assign(cost.values, cost.values + cost.count);
    return costs;
  });
  m.def(
      "set_cost",
      [](const std::string& name, int index, double value) {
        for (const FittedCost& cost : fitted_costs()) {
          if (cost.name == name && 0 <= index && index < cost.count) cost.values[index] = value;
        }
      },
      "name"_a, "index"_a, "value"_a);
  // Infinite where a kernel refuses.
  m.def(
      "expected_us",
      [](const std::vector<std::tuple<const KernelEntry*, const ConvProblem*, const DeviceSpec*>>& questions) {
        std::vector<double> us;
        for (const auto& [kernel, problem, device] : questions) {
          const Offer offered = offer(*kernel, *problem, *device);
          us.push_back(offered.why_not ? std::numeric_limits<double>::infinity() : offered.plan.cost_us);
        }
        return us;
      },
      "questions"_a);
  m.def("arch_of_code", &arch_of_code, "archs"_a, "arch"_a);
  m.def("why_not_with_driver", &why_not_with_driver, "runtime_version"_a, "driver_version"_a);
  m.def("kernel_table", [] {
    py::list kernels;
    for (const KernelEntry& kernel : kernel_table()) {
      kernels.append(py::cast(&kernel, py::return_value_policy::reference));
    }
    return kernels;
  });
}

}  // namespace

void bind_planner(py::module_& m) {
  bind_problem(m);
  bind_planning(m);
}

}  // namespace fastconv
