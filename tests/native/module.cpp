// The pybind11 module of _fastconv_native.pyi.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"
#include "fastconv/core/validate.h"
#include "fastconv/families/depthwise/any_plan.h"
#include "fastconv/families/depthwise/banded_plan.h"
#include "fastconv/families/depthwise/cross_plan.h"
#include "fastconv/families/depthwise/diagonal_plan.h"
#include "fastconv/families/depthwise/pairs_plan.h"
#include "fastconv/families/depthwise/plan.h"
#include "fastconv/families/few_channels/embed_plan.h"
#include "fastconv/families/few_channels/quads_plan.h"
#include "fastconv/families/few_channels/ready_quads_plan.h"
#include "fastconv/families/few_channels/stem_plan.h"
#include "fastconv/families/grouped/plan.h"
#include "fastconv/families/grouped/walk.cuh"
#include "fastconv/families/halo/folded_filter.h"
#include "fastconv/families/halo/pixel_rows.h"
#include "fastconv/families/halo/plan.h"
#include "fastconv/families/halo/walk.cuh"
#include "fastconv/families/halo/work.h"
#include "fastconv/families/implicit_gemm/mma_config.h"
#include "fastconv/families/space_to_depth/patches_plan.h"
#include "fastconv/families/space_to_depth/subpixel_plan.h"
#include "fastconv/families/wgrad/plan.h"
#include "fastconv/families/wgrad/walk.cuh"
#include "fastconv/planner/device_spec.h"
#include "fastconv/planner/planner.h"
#include "fastconv/planner/registry.h"
#include "fastconv/tile/conv_coords.cuh"
#include "fastconv/tile/plan_reorder.h"
#include "fastconv/tile/plan_split.h"
#include "measure.h"
#include "products.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace fastconv {
namespace {

using Quad = std::tuple<int64_t, int64_t, int64_t, int64_t>;

Quad to_quad(const Strides& s) { return {s.n, s.c, s.h, s.w}; }
Strides from_quad(const Quad& quad) { return std::make_from_tuple<Strides>(quad); }

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

void bind_planner(py::module_& m) {
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
            return DeviceSpec{true, arch, sm_count, smem_optin_bytes};
          },
          "arch"_a, "sm_count"_a, "smem_optin_bytes"_a)
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
  m.def(
      "explain",
      [](const ConvProblem& problem, const DeviceSpec& device, const std::string& force) {
        return explain(problem, device, force);
      },
      "problem"_a, "device"_a, "force"_a = "");
  m.def("kernel_table", [] {
    py::list kernels;
    for (const KernelEntry& kernel : kernel_table()) {
      kernels.append(py::cast(&kernel, py::return_value_policy::reference));
    }
    return kernels;
  });
}

// Throws why there is none.
Plan plan_of(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) {
  Offer offered = offer(kernel, problem, device);
  if (offered.why_not != nullptr) throw py::value_error(offered.why_not);
  return std::move(offered.plan);
}

// What the depthwise kernels multiply for the first channel of the target, as their loops do.
Products depthwise_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const DepthwiseConfig &config = kernel.config.as<DepthwiseConfig>(), across = config.across();
  const DepthwiseParams params = depthwise_params(plan, problem);
  const bool turned = problem.pass == Pass::kDgrad && !config.transposed();
  Products products;
  // Of a thread's source column, where TMA puts the block's into shared memory.
  auto staged = [&](const DepthwisePlace& at, const DepthwisePlace& block, int32_t b) {
    const DepthwiseStages& stages = params.stages;
    const auto size = static_cast<int32_t>(element_size(problem.dtype));
    const int32_t offset = staged_offset(config, params, size, at, block) + b * staged_column_bytes(config, size);
    const bool by_channel = config.lanes == Lanes::kChannels;
    const int32_t column_bytes = by_channel ? stages.channels * size : size;
    const int32_t channel = by_channel ? offset % column_bytes / size : offset / stages.channel_bytes;
    const int32_t column = (by_channel ? offset : offset % stages.channel_bytes) / column_bytes;
    if (block.channel + channel != at.channel || column >= stages.columns || offset >= stages.box_bytes) return -1;
    // Where TMA may begin, and where accesses of several columns may.
    const int32_t first = staged_column(config, params, size, block);
    const RowAccesses read = RowAccesses::source(config);
    const int32_t whole = staged_offset(config, params, size, at, block) + read.lead * size;
    if (!by_channel && (first * size % 16 != 0 || whole % (read.vector * size) != 0)) return -1;
    return first + column;
  };
  auto add_run = [&](const DepthwisePlace& at, const DepthwisePlace& block) {
    const int32_t outputs = params.h.outputs(at.row);
    int32_t first = config.first_output();
    for (int32_t row = 0; row < config.seen(outputs); row += config.rows_a_shift(), first += config.shift()) {
      for (int32_t a = 0; a < config.rows_a_shift(); ++a) {
        for (int32_t slot = 0; slot < config.slots(); ++slot) {
          const int32_t r = config.row_tap(slot, a), output = first + slot;
          const int32_t h = params.h.source(at.row) + (row + a) * params.h.source_step;
          const int32_t to_h = at.row + output * params.h.target_step();
          if (r >= config.taps || output < 0 || output >= outputs || h < 0 || h >= params.h.source_extent) continue;
          const int32_t step = row / config.rows_a_shift();
          if (params.patch_boxes > 0 && (step < params.steps_before || step >= params.patch_steps)) continue;
          for (int32_t b = 0; b < across.seen(config.columns); ++b) {
            for (int32_t k = 0; k < config.columns; ++k) {
              const int32_t w =
                  config.staged() ? staged(at, block, b) : params.w.source(at.column) + b * params.w.source_step;
              const int32_t to_w = at.column + k * params.w.target_step();
              if (!across.meets(k, b) || w < 0 || w >= params.w.source_extent || to_w >= params.w.target_extent) {
                continue;
              }
              const int32_t s = across.tap(k, b);
              const int32_t tap_h = turned ? config.taps - 1 - r : r, tap_w = turned ? config.taps_w - 1 - s : s;
              products.emplace_back(
                  at.image * params.source_strides.n + h * params.source_strides.h + w * params.source_strides.w,
                  tap_h * params.filter_strides.h + tap_w * params.filter_strides.w,
                  at.image * params.target_strides.n + to_h * params.target_strides.h + to_w * params.target_strides.w);
            }
          }
        }
      }
    }
  };
  if (problem.pass == Pass::kWgrad) {
    for (int64_t begin = 0; begin < plan.split * params.slice_tiles; begin += params.slice_tiles) {
      for (int64_t tile = begin; tile < std::min(begin + params.slice_tiles, params.tiles); ++tile) {
        if (!config.staged()) {
          const DepthwisePlace at = depthwise_tile(params, 0, static_cast<int32_t>(tile));
          add_run(at, at);
          continue;
        }
        const DepthwisePlace block = depthwise_patch(params, 0, static_cast<int32_t>(tile));
        for (DepthwisePlace at = block; at.column < block.column + params.tiling.columns * config.columns;
             at.column += config.columns) {
          if (at.column < params.w.target_extent) add_run(at, block);
        }
      }
    }
    return products;
  }
  for (int32_t block = 0; block < plan.grid; ++block) {
    for (int32_t thread = 0; thread < plan.block_threads; ++thread) {
      const DepthwisePlace at = depthwise_place(config, params, block, thread);
      if (at.exists && at.channel == 0) add_run(at, depthwise_place(config, params, block, 0));
    }
  }
  return products;
}

// As the lanes of the banded depthwise kernels hold windows, taps and targets.
Products depthwise_banded_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const DepthwiseBandedConfig& config = kernel.config.as<DepthwiseBandedConfig>();
  const DepthwiseConfig rows = config.rows();
  const DepthwiseBandedParams params = depthwise_banded_params(plan, problem);
  const bool turned = problem.pass == Pass::kDgrad && !config.transposed();
  Products products;
  auto add_row = [&](const BandedTile& tile, int32_t h, int32_t to_h, int32_t r) {
    for (int32_t i = 0; i < kBandedTile * kBandedBlock * config.window(); ++i) {
      const int32_t k = i % config.window(), n = i / config.window() % kBandedBlock;
      const int32_t block = i / (config.window() * kBandedBlock);
      auto held = [&](int32_t column) {
        return banded_block(config, params, tile, block % 8 * 4 + column % 8 / 2, block / 8);
      };
      const BandedBlock from = held(k), to = held(n);
      const int32_t w = from.source + k / 8 * 8 + k % 2, to_w = to.target + n % 2, s = banded_tap(config, params, k, n);
      if (!from.exists || s < 0 || s >= params.taps_w || w < 0 || w >= params.source_w || to_w >= params.target_w) {
        continue;
      }
      const int32_t last_h = params.taps_h - 1, last_w = params.taps_w - 1;
      products.emplace_back(
          from.image * params.source_strides.n + h * params.source_strides.h + w * params.source_strides.w,
          (turned ? last_h - r : r) * params.filter_strides.h + (turned ? last_w - s : s) * params.filter_strides.w,
          to.image * params.target_strides.n + to_h * params.target_strides.h + to_w * params.target_strides.w);
    }
  };
  auto add_tile = [&](const BandedTile& tile) {
    const int32_t outputs = std::min(params.run_rows, params.target_h - tile.row);
    if (config.any_rows()) {
      for (int32_t i = 0; i < outputs * params.taps_h; ++i) {
        const int32_t output = i % outputs, r = i / outputs, h = params.first_row(config, tile.row) + output + r;
        if (h >= 0 && h < params.source_h) add_row(tile, h, tile.row + output, r);
      }
      return;
    }
    int32_t first = rows.first_output();
    for (int32_t row = 0; row < rows.seen(outputs); row += rows.rows_a_shift(), first += rows.shift()) {
      for (int32_t i = 0; i < rows.rows_a_shift() * rows.slots(); ++i) {
        const int32_t a = i / rows.slots(), slot = i % rows.slots(), output = first + slot;
        const int32_t h = params.first_row(config, tile.row) + row + a, r = rows.row_tap(slot, a);
        if (r >= params.taps_h || output < 0 || output >= outputs || h < 0 || h >= params.source_h) continue;
        add_row(tile, h, tile.row + output, r);
      }
    }
  };
  if (problem.pass == Pass::kWgrad) {
    for (int32_t begin = 0; begin < plan.split * params.slice_tiles; begin += params.slice_tiles) {
      for (int32_t i = begin; i < std::min(begin + params.slice_tiles, params.tiles); ++i) {
        add_tile(banded_tile(params, 0, i));
      }
    }
    return products;
  }
  for (int32_t warp = 0; warp < params.channels * params.tiles; ++warp) {
    const BandedTile tile = banded_tile(params, warp);
    if (tile.channel == 0) add_tile(tile);
  }
  return products;
}

// As the warps of the depthwise weight gradient stage pixels of a step, load them and multiply.
Products depthwise_diagonal_wgrad_products(const ConvProblem& problem, const KernelEntry& kernel,
                                           const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const DiagonalWgradConfig config{kernel.config.as<DepthwiseDiagonalConfig>()};
  const DepthwiseConfig rows = config.rows();
  const DiagonalWgradParams params = depthwise_diagonal_wgrad_params(plan, problem);
  Products products;
  // Of filter 0.
  auto add_channels = [&](int64_t from, int64_t filter, int64_t to) {
    for (int32_t c = 0; c < 1 << params.group_log2; ++c) {
      products.emplace_back(from + c * params.source_strides.c, filter + c * params.filter_strides.c, to);
    }
  };
  for (int32_t index = 0; config.boxed() && index < params.boxes.units; ++index) {
    const DiagonalWgradUnit unit(params, index);
    for (int32_t i = 0; i < unit.steps * config.taps * config.columns() * params.taps_w; ++i) {
      const int32_t s = i % params.taps_w, column = i / params.taps_w % config.columns();
      const int32_t r = i / params.taps_w / config.columns() % config.taps;
      const int32_t step = i / params.taps_w / config.columns() / config.taps;
      const int32_t image = unit.image + column / params.boxes.columns, q = unit.column + column % params.boxes.columns;
      const int32_t h = unit.source_row + step, w = q * config.stride - params.padding_w + s;
      const int32_t p = (step - r) / config.stride;
      if (params.boxes.source_pixel(column, params.target_w - unit.column) % params.boxes.pitch + s / config.stride >=
          params.boxes.pitch) {
        throw std::runtime_error("a pixel that is not staged");
      }
      if (r >= params.taps_h || step < r || (step - r) % config.stride != 0 || p >= unit.outputs || h < 0 ||
          h >= params.source_h || w < 0 || w >= params.source_w || q >= params.target_w || image >= params.images) {
        continue;
      }
      const Strides &source = params.source_strides, &target = params.target_strides;
      add_channels(image * source.n + h * source.h + w * source.w,
                   r * params.filter_strides.h + s * params.filter_strides.w,
                   image * target.n + (unit.row + p) * target.h + q * target.w);
    }
  }
  if (config.boxed()) return products;
  if (params.positions > config.most_positions()) throw std::runtime_error("more positions than threads copy");
  auto add_row = [&](const DiagonalWgradTile& tile, int32_t h, int32_t to_h, int32_t r) {
    for (int32_t i = 0; i < config.columns() * params.taps_w; ++i) {
      const int32_t column = i / params.taps_w, s = i % params.taps_w;
      // A product has two taps, and pairs of taps lie equally far apart.
      const int32_t position = diagonal_wgrad_position(config, params, tile, column) +
                               diagonal_wgrad_distance(config, params, s % 2) + s / 2 * (2 / config.stride);
      if (position >= params.positions) throw std::runtime_error("a position that is not staged");
      const DiagonalPixel from = diagonal_wgrad_source(config, params, tile, position);
      const DiagonalPixel to = diagonal_wgrad_target(params, tile, column);
      if (!from.exists || !to.exists) continue;
      const Strides &source = params.source_strides, &target = params.target_strides;
      add_channels((tile.image + from.image) * source.n + h * source.h + from.column * source.w,
                   r * params.filter_strides.h + s * params.filter_strides.w,
                   (tile.image + to.image) * target.n + to_h * target.h + to.column * target.w);
    }
  };
  for (int32_t slice = 0; slice < plan.split; ++slice) {
    for (DiagonalWgradWalk walk(config, params, slice); walk.exists(); walk.next(config, params)) {
      const DiagonalWgradTile tile(params, walk.tile(params));
      for (int32_t i = 0; i < config.stride * rows.slots(); ++i) {
        const int32_t a = i / rows.slots(), slot = i % rows.slots(), r = rows.row_tap(slot, a);
        const int32_t h = walk.source_row(config, params, a), output = walk.step - (rows.slots() - 1 - slot);
        if (r >= params.taps_h || output < 0 || output >= walk.outputs || h < 0 || h >= params.source_h) continue;
        add_row(tile, h, walk.row + output, r);
      }
    }
  }
  return products;
}

// As the lanes of the depthwise kernels with products of pairs of channels read pixels of a box and multiply them.
Products depthwise_pairs_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const DepthwisePairsConfig& config = kernel.config.as<DepthwisePairsConfig>();
  const DepthwisePairsParams params = depthwise_pairs_params(plan, problem);
  const DepthwisePairsTiling& tiling = params.tiling;
  const bool turned = problem.pass == Pass::kDgrad;
  const int32_t last_h = params.taps_h - 1, last_w = params.taps_w - 1;
  const Strides &from = params.source_strides, &tap = params.filter_strides, &to = params.target_strides;
  Products products;
  auto add_row = [&](const PairsShare& share, const PairsUnit& unit, int32_t row, int32_t output, int32_t r) {
    const int32_t h = unit.source_row + row;
    for (int32_t i = 0; i < tiling.images * tiling.runs * tiling.targets * kRunPositions; ++i) {
      const int32_t position = run_position(i / 4 % 4, i % 4), target = i / kRunPositions % tiling.targets;
      const int32_t run = i / kRunPositions / tiling.targets, s = position - target;
      const int32_t pixel = params.source_pixel(run, config.box_rows()) + position;
      const int32_t image_pixels = config.box_rows() * tiling.pitch(), column = pixel % image_pixels;
      if (column >= tiling.pitch()) throw std::runtime_error("a pixel of another row");
      const int32_t image = unit.image + pixel / image_pixels, w = share.column - params.padding_w + column;
      const int32_t to_pixel = params.target_pixel(run) + target;
      const int32_t to_image = unit.image + to_pixel / tiling.columns();
      const int32_t to_w = share.column + to_pixel % tiling.columns();
      if (image != to_image) throw std::runtime_error("a target of another image");
      if (s < 0 || s > last_w || image >= params.images || to_w >= params.target_w || w < 0 || w >= params.source_w) {
        continue;
      }
      products.emplace_back(image * from.n + h * from.h + w * from.w,
                            (turned ? last_h - r : r) * tap.h + (turned ? last_w - s : s) * tap.w,
                            image * to.n + (unit.row + output) * to.h + to_w * to.w);
    }
  };
  for (int32_t block = 0; block < plan.grid; ++block) {
    const PairsShare share(params, block);
    if (share.channel != 0) continue;
    for (int32_t index = share.first_unit; index < params.units; index += tiling.shares) {
      const PairsUnit unit(config, params, index);
      for (int32_t i = 0; i < unit.boxes * config.box_rows() * config.taps; ++i) {
        const int32_t slot = i % config.taps, row = i / config.taps, output = unit.output + row + slot;
        const int32_t r = config.taps - 1 - slot, h = unit.source_row + row;
        if (r > last_h || output < 0 || output >= unit.outputs || h < 0 || h >= params.source_h) continue;
        if (row / config.box_rows() >= unit.row_boxes) throw std::runtime_error("a row that no box brings");
        if (output >= unit.output + unit.boxes * config.box_rows()) {
          throw std::runtime_error("a target that no box stores");
        }
        add_row(share, unit, row, output, r);
      }
    }
  }
  return products;
}

// As the lanes of the depthwise weight gradient by products of rows go through boxes of x and of dy.
Products depthwise_cross_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const DepthwiseCrossConfig& config = kernel.config.as<DepthwiseCrossConfig>();
  const DepthwiseCrossParams params = depthwise_cross_params(plan, problem);
  const DepthwiseCrossTiling& tiling = params.tiling;
  const Strides &from = params.source_strides, &to = params.target_strides, &tap = params.filter_strides;
  if (tiling.images * tiling.columns % kCrossColumns != 0 || tiling.plane_bytes() % kCrossBanksBytes != 0 ||
      tiling.target_bytes(config) % kCrossBanksBytes != 0) {
    throw std::runtime_error("boxes are not whole steps and patterns of banks");
  }
  // Of a box, image and column of the pixel of its first row that lies there.
  struct Pixel {
    int32_t image, column;
  };
  auto pixel = [&](int32_t offset, int32_t image_bytes, int32_t pitch) {
    const int32_t apart = tiling.apart(image_bytes), image = offset / apart, column = offset % apart / kCrossPixelBytes;
    if (image >= tiling.images || column >= pitch) throw std::runtime_error("a pixel that is not staged");
    return Pixel{image, column};
  };
  // What the lanes multiply that have these columns of a step.
  struct Column {
    Pixel source, target;
    int32_t w, q, s;  // from the run's column on
  };
  std::vector<Column> columns;
  auto add_columns = [&](int32_t of_lane, int32_t half) {
    int32_t source = 0, target = 0;
    CrossColumns walk(config, tiling, of_lane);
    for (int32_t step = 0; step < tiling.steps(); ++step) {
      for (int32_t i = 0; i < 2 * config.shifts(half); ++i) {
        const int32_t shift = i / 2, column = of_lane + i % 2;
        const int32_t target_column = column + params.first_shift(config, half) + shift;
        const Pixel x = pixel(source + column * kCrossPixelBytes, tiling.source_image_bytes(), tiling.source_pitch());
        const Pixel dy = pixel(target + target_column * kCrossPixelBytes, tiling.target_image_bytes(config),
                               tiling.target_pitch(config));
        if (x.image != dy.image) throw std::runtime_error("a target of another image");
        columns.push_back({x, dy, config.stride * x.column + config.plane(half, params.padding_w),
                           params.lead(config) + dy.column, config.tap(half, shift)});
        if (config.half_of(config.tap(half, shift)) != half || config.shift_of(config.tap(half, shift)) != shift) {
          throw std::runtime_error("a tap's sum is looked for elsewhere");
        }
      }
      int32_t source_step, target_step;
      walk.next(source_step, target_step);
      source += source_step, target += target_step;
    }
  };
  for (int32_t i = 0; i < kCrossColumns; ++i) add_columns(i / 2 * 2, i % 2);
  Products products;
  auto add_rows = [&](const CrossRun& run, int32_t h, int32_t p, int32_t r) {
    for (const Column& column : columns) {
      const int32_t image = run.image + column.source.image, w = config.stride * run.column + column.w;
      const int32_t q = run.column + column.q, s = column.s;
      if (image >= params.images || s >= params.taps_w || w >= params.source_w || q < 0 || q >= params.target_w) {
        continue;
      }
      products.emplace_back(image * from.n + h * from.h + w * from.w, r * tap.h + s * tap.w,
                            image * to.n + p * to.h + q * to.w);
    }
  };
  auto add_box = [&](const CrossRun& run, int32_t box) {
    for (int32_t i = 0; i < kCrossSourceRows * tiling.rows; ++i) {
      const int32_t row = i % tiling.rows, product_row = i / tiling.rows, r = product_row - config.stride * row;
      const CrossSourceRow x_row(config, tiling, product_row);
      const int32_t p = run.row + box * tiling.rows + row;
      const int32_t h = run.source_row + (box * tiling.new_boxes(config) + x_row.box) * tiling.source_rows + x_row.row;
      if (r < 0 || r >= params.taps_h || h < 0 || h >= params.source_h || p >= params.target_h) continue;
      add_rows(run, h, p, r);
    }
  };
  for (int32_t slice = 0; slice < plan.split; ++slice) {
    for (CrossRun run(config, params, slice); run.exists(); run = run.next(config, params, slice)) {
      for (int32_t box = 0; box < run.boxes; ++box) add_box(run, box);
    }
  }
  return products;
}

// As the warps of the depthwise kernels with diagonal products stage columns, load them and multiply: row by row, or
// box by box.
Products depthwise_diagonal_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  if (problem.pass == Pass::kWgrad) return depthwise_diagonal_wgrad_products(problem, kernel, device);
  const Plan plan = plan_of(kernel, problem, device);
  const DepthwiseDiagonalConfig& config = kernel.config.as<DepthwiseDiagonalConfig>();
  const DepthwiseConfig rows = config.rows();
  const DepthwiseDiagonalParams params = depthwise_diagonal_params(plan, problem);
  const bool turned = problem.pass == Pass::kDgrad && !config.transposed();
  const int32_t last_h = params.taps_h - 1, last_w = params.taps_w - 1;
  Products products;
  auto add_row = [&](const DiagonalBlock& block, int32_t h, int32_t to_h, int32_t r) {
    for (int32_t pair = 0; pair < kPairs * plan.tiling.as<DepthwiseDiagonalTiling>().groups; ++pair) {
      for (int32_t i = 0; i < kPairColumns * config.read_positions() * config.reads(); ++i) {
        const int32_t target = i % kPairColumns, position = i / kPairColumns;
        const int32_t staged = pair * config.advance() + position, s = diagonal_tap(config, params, position, target);
        if (staged >= params.staged.columns) throw std::runtime_error("a column that is not staged");
        const int32_t w = diagonal_source_column(config, params, block) + staged;
        const int32_t to_w = block.column + pair * kPairColumns + target;
        if (s < 0 || s > last_w || w < 0 || w >= params.source_w || to_w >= params.target_w) continue;
        for (int32_t c = 0; c < params.group_channels; ++c) {
          products.emplace_back(
              block.image * params.source_strides.n + c * params.source_strides.c + h * params.source_strides.h +
                  w * params.source_strides.w,
              c * params.source_channel_step + (turned ? last_h - r : r) * params.filter_strides.h +
                  (turned ? last_w - s : s) * params.filter_strides.w,
              block.image * params.target_strides.n + to_h * params.target_strides.h + to_w * params.target_strides.w);
        }
      }
    }
  };
  const DepthwiseDiagonalTiling& tiling = plan.tiling.as<DepthwiseDiagonalTiling>();
  for (int32_t unit_index = 0; config.boxed() && unit_index < params.units; ++unit_index) {
    const DiagonalUnit unit(config, params, unit_index);
    for (int32_t i = 0; i < unit.boxes * config.box_rows * rows.slots(); ++i) {
      const int32_t slot = i % rows.slots(), row = i / rows.slots(), r = rows.row_tap(slot, row % config.stage_rows());
      const int32_t output = unit.output + row / config.stage_rows() * rows.shift() + slot, h = unit.source_row + row;
      if (r > last_h || output < 0 || output >= unit.outputs || h < 0 || h >= params.source_h) continue;
      if (row / config.box_rows >= unit.row_boxes) throw std::runtime_error("a row that no box brings");
      if (output >= unit.output + unit.boxes * config.box_targets()) {
        throw std::runtime_error("a target that no box stores");
      }
      for (int32_t column = 0; column < params.target_w; column += kDiagonalColumns * tiling.groups) {
        add_row({unit.image, unit.row, column, 0}, h, unit.row + output, r);
      }
    }
  }
  for (int32_t index = 0; !config.boxed() && index < plan.grid; ++index) {
    const DiagonalBlock block = diagonal_block(params, index, tiling.groups);
    if (block.chunk != 0) continue;
    const int32_t outputs = std::min(params.run_rows, params.target_h - block.row);
    const int32_t stages = params.stages(config, outputs), stage_rows = config.stage_rows();
    for (int32_t i = 0; i < stages * stage_rows * rows.slots(); ++i) {
      const int32_t slot = i % rows.slots(), row = i / rows.slots(), r = rows.row_tap(slot, row % stage_rows);
      const int32_t output = params.first_output + row / stage_rows * rows.shift() + slot;
      const int32_t h = params.first_row(config, block.row) + row;
      if (r > last_h || output < 0 || output >= outputs || h < 0 || h >= params.source_h) continue;
      if (row >= params.seen(config, outputs)) throw std::runtime_error("a row that is not staged");
      add_row(block, h, block.row + output, r);
    }
  }
  return products;
}

Products direct_products(const ConvProblem& problem, bool channels_inner) {
  const ConvMap map = make_conv_map(problem, channels_inner);
  Products products;
  for (int32_t i = 0; i < map.h.phases * map.w.phases; ++i) {
    const ConvPhase phase = map.phase(i / map.w.phases, i % map.w.phases);
    const ConvView view{map, phase};
    for (int64_t pixel = 0; pixel < map.pixels; ++pixel) {
      const Pixel at = view.pixel(view.origin(pixel), 0);
      const int64_t target = view.target_pixel(at);
      if (target < 0) continue;
      const Coord base = view.source_pixel(at);
      for (int32_t tap = 0; tap < view.taps(); ++tap) {
        const Coord step = view.source_tap(tap);
        const int32_t row = base.h + step.h, column = base.w + step.w;
        if (row < 0 || row >= map.h.source_extent || column < 0 || column >= map.w.source_extent) continue;
        products.emplace_back(base.offset + step.offset, view.filter_tap(tap), target);
      }
    }
  }
  return products;
}

Products im2col_products(const ConvProblem& problem) {
  const Columns columns = make_columns(problem);
  Products products;
  for (int64_t pixel = 0; pixel < columns.pixels(); ++pixel) {
    for (int64_t tap = 0; tap < columns.taps(); ++tap) {
      const int64_t source = columns.source_element(pixel, tap);
      if (source >= 0) products.emplace_back(source, columns.filter_tap(tap), columns.target_pixel(pixel));
    }
  }
  return products;
}

// What a block of the kernels for narrow groups stages: [plane][pixel][channel], elements of the source, kOutside where
// there is none.
constexpr int64_t kOutside = -1, kNotStaged = -2;

std::vector<int64_t> grouped_rows(const GroupedWalk& params, const GroupedRows& rows, const GroupedTile& tile,
                                  int32_t first_row, int32_t first_column) {
  const int32_t pixels = rows.plane_bytes / kGroupedRowBytes, planes = tile.groups * rows.chunks;
  const int32_t all = rows.tile_h * rows.tile_w, vector = rows.pairs ? 2 : 1;
  std::vector<int64_t> staged(static_cast<size_t>(planes * pixels * params.chunk), kNotStaged);
  auto stage = [&](int32_t plane, int32_t row, int32_t column) {
    const int32_t h = first_row + row, w = first_column + column, chunk = plane % rows.chunks;
    const bool exists = h >= 0 && h < rows.extent_h && w >= 0 && w < rows.extent_w;
    for (int32_t c = 0; c < params.chunk; ++c) {
      const int64_t channel = chunk * params.chunk + c;
      int64_t& to = staged.at((int64_t{plane} * pixels + row * rows.tile_w + column) * params.chunk + c);
      if (to != kNotStaged) throw py::index_error("staged twice");
      to = exists && channel < rows.channels
               ? tile.image * rows.stride.n +
                     ((tile.first_group + plane / rows.chunks) * rows.channels + channel) * rows.stride.c +
                     h * rows.stride.h + w * rows.stride.w
               : kOutside;
    }
  };
  if (rows.copy_bytes > 0) {
    // As threads do: each copies some pixels of a plane.
    const int32_t lanes = 1 << rows.lanes_log2, step = kGroupedThreads / lanes;
    for (int32_t plane = 0; plane < planes; ++plane) {
      for (int32_t first = 0; first < step; ++first) {
        int32_t row, column;
        rows.copied.find(first, row, column);
        for (int32_t pixel = first; pixel < all; pixel += step) {
          stage(plane, row, column);
          rows.copied.advance(row, column);
        }
      }
    }
    return staged;
  }
  for (int32_t i = 0; i < rows.units + 2 * kGroupedThreads; ++i) {
    const GroupedUnit unit(rows, i, first_column);
    if (unit.plane >= planes || unit.row >= rows.tile_h) continue;
    if (i >= rows.units) throw py::index_error("a unit too many");
    if (rows.pairs && (first_column + unit.column) % 2 != 0) throw py::index_error("a pair that is not aligned");
    for (int32_t column = unit.column; column < unit.column + vector; ++column) {
      if (column >= 0 && column < rows.tile_w) stage(unit.plane, unit.row, column);
    }
  }
  return staged;
}

std::vector<std::pair<int32_t, int32_t>> grouped_pixels(int32_t width, int32_t step, int32_t first, int32_t count) {
  const GroupedPixels pixels(width, step);
  std::vector<std::pair<int32_t, int32_t>> places;
  int32_t row, column;
  pixels.find(first, row, column);
  for (int32_t i = 0; i < count; ++i) {
    places.emplace_back(row, column);
    pixels.advance(row, column);
  }
  return places;
}

// By its own tiling, or one that is given: pixels, groups, sets stored together. Offsets are those of the first filter
// of group 0 if `group` is, else as far from them as its tensors are.
Products grouped_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device,
                          int32_t group, std::optional<std::array<int32_t, 4>> tiles) {
  const Plan plan = plan_of(kernel, problem, device);
  GroupedTiling tiling = plan.tiling.as<GroupedTiling>();
  if (tiles) tiling = {(*tiles)[0], (*tiles)[1], (*tiles)[2], (*tiles)[3]};
  const GroupedParams params = grouped_params(kernel.config.as<GroupedConfig>(), problem, tiling);
  const GroupedRows& rows = params.rows;
  const int32_t blocks =
      static_cast<int32_t>(problem.n) * params.h.phases * params.w.phases *
      static_cast<int32_t>(params.by_group_blocks.divisor * params.by_tiles_h.divisor * params.by_tiles_w.divisor);
  if (!tiles && blocks != plan.grid) throw py::index_error("not the plan's blocks");
  const int32_t size = static_cast<int32_t>(element_size(problem.dtype));
  const int32_t vector = params.store == GroupedStore::kPixels ? params.store_bytes / size : 1;
  Products products;
  for (int32_t block = 0; block < blocks; ++block) {
    const GroupedTile tile(params, block);
    if (tile.rows <= 0 || tile.columns <= 0) continue;
    const GroupedTargets targets(params, tile);
    const int32_t of_tile = group - tile.first_group;
    if (of_tile < 0 || of_tile >= tile.groups) continue;
    const std::vector<int64_t> staged = grouped_rows(params, rows, tile, tile.halo_h, tile.halo_w);
    const int64_t first = tile.first_target(params) - tile.first_group * params.filters * params.target.c;
    if (tile.reduction(params) * kernel.config.as<GroupedConfig>().filters * kGroupedRowBytes > params.set_bytes) {
      throw py::index_error("more taps than have room");
    }
    for (int32_t pixel = 0; pixel < params.tile_p * params.tile_q; ++pixel) {
      const int32_t piece = pixel % vector;
      int32_t row, column;
      params.stored.find(pixel - piece, row, column);
      if (!targets.exists(row, column)) continue;
      const int64_t target = targets.offset(params, row, column);
      if ((first + target) * size % params.store_bytes != 0 && vector > 1) throw py::index_error("not aligned");
      for (int32_t i = 0; i < tile.reduction(params); ++i) {
        const GroupedTap tap = tile.tap(params, i);
        params.named.find(pixel, row, column);
        const int32_t at =
            of_tile * rows.chunks * rows.plane_bytes + GroupedTile::row_of(params, row, column) + tap.row;
        for (int32_t c = 0; c < params.chunk; ++c) {
          const int64_t from = staged.at(at / kGroupedRowBytes * params.chunk + c);
          if (from < kOutside) throw py::index_error("not staged");
          if (c >= tap.channels && from != kOutside) throw py::index_error("a channel of the next group");
          if (from == kOutside) continue;
          products.emplace_back(from - group * rows.channels * rows.stride.c, tap.filter + c * params.filter.c,
                                first + target + piece);
        }
      }
    }
  }
  return products;
}

// As grouped_products(), of the weight gradient; given are pixels, groups and parts.
Products grouped_wgrad_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device,
                                int32_t group, std::optional<std::array<int32_t, 4>> tiles) {
  const GroupedConfig& config = kernel.config.as<GroupedConfig>();
  const Plan plan = plan_of(kernel, problem, device);
  GroupedTiling tiling = plan.tiling.as<GroupedTiling>();
  int64_t parts = plan.split;
  if (tiles) {
    tiling.tile_p = (*tiles)[0], tiling.tile_q = (*tiles)[1];
    tiling.tile_g = std::min((*tiles)[2], tiling.tile_g), parts = (*tiles)[3];
  }
  const GroupedWgradParams params = grouped_wgrad_params(config, problem, tiling, parts);
  const auto jobs = static_cast<int32_t>(params.by_jobs.divisor);
  if (!tiles && jobs * parts != plan.grid) throw py::index_error("not the plan's blocks");
  const int32_t threads = config.unit_threads();
  Products products;
  std::set<std::pair<int64_t, int64_t>> elements;  // part, and of the group's dW
  for (int32_t block = 0; block < jobs * parts; ++block) {
    const GroupedJob job(params, block);
    // Of every thread's sums, those of the first filter: rows, channels and elements of dW.
    std::vector<std::tuple<int32_t, int32_t, int64_t>> sums;
    const GroupedTile first = job.pixels(params, 0);
    const int32_t of_job = group - first.first_group;
    int32_t index, rest;
    for (int32_t i = 0; i < params.job_quads * 4; ++i) {
      params.by_job_threads.divmod(i / 4, index, rest);
      const GroupedWgradUnit unit(params, config, job, rest / threads);
      const GroupedSum sum(config, rest % threads, index, i % 4);
      const int64_t element = sum.element(params, first, unit);
      if (element < 0 || unit.group != of_job) continue;
      if (!elements.emplace(job.part, element - of_job * params.filter_group).second) {
        throw py::index_error("two sums of an element");
      }
      if (unit.first_filter + sum.filter == 0) {
        sums.emplace_back(unit.first_row + sum.row, sum.channel, element - of_job * params.filter_group);
      }
    }
    if (sums.empty()) continue;
    for (int32_t at = job.tile; at < job.end; ++at) {
      const GroupedTile tile = job.pixels(params, at);
      const std::vector<int64_t> x = grouped_rows(params, params.rows, tile, tile.halo_h, tile.halo_w);
      const std::vector<int64_t> y = grouped_rows(params, params.y_rows, tile, tile.p, tile.q);
      const int32_t step = config.step_pixels();
      for (int32_t begin = 0; begin < params.slices * step; begin += step) {
        for (int32_t pixels = begin; pixels < tile.rows * params.tile_q; pixels += params.slices * step) {
          for (int32_t pixel = pixels; pixel < pixels + step; ++pixel) {
            const GroupedWgradPixel place(params, tile, pixel);
            if (pixel >= tile.rows * params.tile_q) continue;
            const int32_t y_row = of_job * params.y_rows.chunks * params.y_rows.plane_bytes / kGroupedRowBytes + pixel;
            if (place.exists == (y.at(int64_t{y_row} * params.chunk) == kOutside)) throw py::index_error("not zeros");
            if (!place.exists) continue;
            const int64_t gradient =
                y.at(int64_t{y_row} * params.chunk) - group * params.filters * params.y_rows.stride.c;
            for (const auto& [row, channel, element] : sums) {
              const int32_t bytes = of_job * params.rows.chunks * params.rows.plane_bytes + place.row;
              const int32_t x_row = (bytes + tile.tap(params, row).row) / kGroupedRowBytes;
              const int64_t from = x.at(int64_t{x_row} * params.chunk + channel);
              if (from < kOutside) throw py::index_error("not staged");
              if (from == kOutside) continue;
              products.emplace_back(from - group * params.rows.channels * params.rows.stride.c, element, gradient);
            }
          }
        }
      }
    }
  }
  const int64_t all = problem.k_per_group() * problem.c_per_group() * problem.r * problem.s;
  if (static_cast<int64_t>(elements.size()) != parts * all) throw py::index_error("an element without a sum");
  return products;
}

template <int kElement>
int mma_chunk_of(bool along_rows, bool is_b, int line, int chunk, int length) {
  if (along_rows && is_b) return MmaLayout<kElement, true, true>::chunk(line, chunk, length);
  if (along_rows) return MmaLayout<kElement, true, false>::chunk(line, chunk, length);
  if (is_b) return MmaLayout<kElement, false, true>::chunk(line, chunk, length);
  return MmaLayout<kElement, false, false>::chunk(line, chunk, length);
}

int mma_chunk(int element, bool along_rows, bool is_b, int line, int chunk, int length) {
  return (element == 2 ? mma_chunk_of<2> : mma_chunk_of<4>)(along_rows, is_b, line, chunk, length);
}

// What a block of the kernels for images of few channels stages: elements of the tensor by words of shared memory.
std::vector<int64_t> stem_words(const StemBox& box, int32_t image, int32_t first_channel, int32_t first_row,
                                int32_t first_column) {
  std::vector<int64_t> words(static_cast<size_t>(box.words), kNotStaged);
  const int32_t first = first_column * box.folded - box.lead(first_column);
  std::vector<StemCopy> threads;
  for (int32_t unit = 0; unit < box.units; ++unit) {
    if (unit < kStemThreads) {
      threads.emplace_back(box, unit);
    } else {
      threads[unit % kStemThreads].next(box);
    }
    const StemCopy& copy = threads[unit % kStemThreads];
    const int32_t row = first_row + copy.row(box), column = first + copy.column(box);
    const int32_t channel = first_channel + copy.channel(box), place = copy.place(box);
    const bool exists =
        row >= 0 && row < box.extent_h && column >= 0 && column < box.extent_w && channel < box.channels;
    const int64_t from = image * box.stride.n + channel * box.stride.c + row * box.stride.h +
                         column * (box.folded > 1 ? 1 : box.stride.w);
    if ((exists && from % box.vector != 0) || place % box.vector != 0) throw py::index_error("not aligned");
    for (int32_t i = 0; i < box.vector; ++i) {
      int64_t& to = words.at(static_cast<size_t>(place + i));
      if (to != kNotStaged) throw py::index_error("staged twice");
      to = exists ? from + i : kOutside;
    }
  }
  return words;
}

// By its own tiling, or one that is given: pixels, sets, stages, walkers.
StemTiling stem_tiling(const Plan& plan, const std::optional<std::array<int32_t, 5>>& given) {
  if (!given) return plan.tiling.as<StemTiling>();
  return {(*given)[0], (*given)[1], std::min((*given)[2], plan.tiling.as<StemTiling>().sets), (*given)[3], (*given)[4]};
}

// Of filter 0, as the others.
Products stem_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device,
                       std::optional<std::array<int32_t, 5>> given) {
  const Plan plan = plan_of(kernel, problem, device);
  const StemParams params = stem_params(kernel.config.as<StemConfig>(), problem, stem_tiling(plan, given));
  if (!given && params.walkers * params.by_set_blocks.divisor != plan.grid) {
    throw py::index_error("not the plan's blocks");
  }
  const int32_t run = stem_run(params.stores);
  Products products;
  for (int32_t walker = 0; walker < params.walkers; ++walker) {
    for (int32_t index = walker; index < params.tiles; index += params.walkers) {
      const StemTile tile(params, index);
      const std::vector<int64_t> words = stem_words(params.x, tile.image, 0, tile.source_h, tile.source_w);
      const int64_t first = tile.image * params.target.n + tile.p * params.target.h + tile.q * params.target.w;
      constexpr int32_t kUnit = StemConfig::unit_pixels();
      for (int32_t i = 0; i < round_up(tile.pixels(params), kUnit); ++i) {
        // A warp's, of which every fourth lane has others.
        const int32_t lane = i % kUnit / 4 * 4, row = i % 4;
        const int32_t pixel = i / kUnit * kUnit + stem_pixel(run, lane, row);
        const int32_t target = tile.target_of(params, params.target, pixel);
        const int32_t before = tile.target_of(params, params.target, pixel - row % run);
        if (target >= 0 ? before < 0 || target != before + row % run || (first + before) % run != 0 : before >= 0) {
          throw py::index_error("a run of pixels that do not lie side by side");
        }
        const int32_t place = params.x.lead(tile.source_w) + StemTile::source_of(params, pixel);
        for (int32_t k = 0; k < params.steps * kStemStep; ++k) {
          const int32_t depth = stem_depth(k / kStemStep, k / 4, k % 4);
          if (depth >= params.depth) continue;
          const StemTap tap(params, depth);
          const int64_t from = words.at(static_cast<size_t>(place + tap.place));
          if (from == kNotStaged) throw py::index_error("not staged");
          if (target >= 0 && from != kOutside) products.emplace_back(from, tap.filter, first + target);
        }
      }
    }
  }
  return products;
}

// How many neighbours a lane of the planner's tiling stores at once: filters, and pixels.
std::pair<int32_t, int32_t> stem_neighbours(const ConvProblem& problem, const KernelEntry& kernel,
                                            const DeviceSpec& device) {
  const StemParams params =
      stem_params(kernel.config.as<StemConfig>(), problem, plan_of(kernel, problem, device).tiling.as<StemTiling>());
  return {params.stores == StemStores::kFilters ? 4 : 1, stem_run(params.stores)};
}

// What warpgroups multiply of a tile whose quads lie side by side.
void add_squares(const ConvProblem& problem, const QuadsParams& params, const QuadsTile& tile, int64_t first,
                 const std::vector<std::array<int64_t, kQuadChannels>>& quads, Products& products) {
  const QuadsCells& cells = params.cells;
  if (params.tile_p % kQuadsSquare != 0 || params.tile_q % kQuadsSquare != 0) throw py::index_error("no squares");
  const auto columns = static_cast<int32_t>(cells.by_columns.divisor);
  for (int32_t pixel = 0; pixel < tile.rows * tile.columns; ++pixel) {
    const int32_t p = pixel / tile.columns, q = pixel % tile.columns;
    const int32_t place = params.cell_place(p * params.h.source_step, tile.lead + cells.shift) + q * kQuadsCellBytes;
    if (place % kQuadsCellBytes != 0) throw py::index_error("a cell that is not aligned");
    for (int32_t cell = 0; cell < problem.r * columns; ++cell) {
      const uint32_t step = cells.step[cell / 2];
      const auto at =
          static_cast<int32_t>((step & 0xffff) + (cell % 2 == 0 ? 0 : step >> 16)) * kQuadsCellBytes + place;
      for (int32_t t = 0; t < kQuadsCellTaps; ++t) {
        const int32_t r = cell / columns, s = cell % columns * kQuadsCellTaps + t;
        for (int32_t c = 0; c < params.channels && s < problem.s; ++c) {
          const int64_t from =
              quads.at(static_cast<size_t>(at * kQuadsCellTaps / kQuadsCellBytes + t))[static_cast<size_t>(c)];
          if (from == kOutside) continue;
          products.emplace_back(from, r * params.filter.h + s * params.filter.w + c * params.filter.c,
                                first + p * params.target.h + q * params.target.w);
        }
      }
    }
  }
}

// As the warps of the kernels that stage quads bring pixels, find taps and store runs, of filter 0. By its own tiling,
// or one that is given: pixels, sets, walkers.
Products quads_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device,
                        std::optional<std::array<int32_t, 4>> given) {
  const Plan plan = plan_of(kernel, problem, device);
  QuadsTiling tiling = plan.tiling.as<QuadsTiling>();
  const auto run_length = static_cast<int32_t>(16 / element_size(problem.dtype));
  if (given) {
    const bool squares = kernel.config.as<QuadsConfig>().squares;
    tiling = {(*given)[0] * (squares ? kQuadsSquare : 1), (*given)[1] * (squares ? kQuadsSquare : run_length),
              squares ? kQuadsSquareSets : std::min((*given)[2], tiling.sets), (*given)[3]};
  }
  const QuadsParams params = quads_params(kernel.config.as<QuadsConfig>(), problem, tiling);
  if (!given && params.walkers * params.by_set_blocks.divisor != plan.grid) {
    throw py::index_error("not the plan's blocks");
  }
  if (params.bringing == QuadsBringing::kLines && params.stage_bytes % 128 != 0) {
    throw py::index_error("lines of the filter that lie in two of shared memory");
  }
  if (!given && params.units > quads_staged(params.words != QuadsWords::kNone) * plan.block_threads) {
    throw py::index_error("more than threads bring");
  }
  const int64_t unit_pixels = quads_pixels(kernel.config.as<QuadsConfig>().operands);
  const int32_t vector = params.unit_pixels, units_w = params.by_units_w.divisor;
  Products products;
  for (int32_t index = 0; index < params.tiles; ++index) {
    const QuadsTile tile(params, index);
    const int64_t image = tile.image * params.source.n;
    // Where each channel of a staged pixel comes from.
    const int32_t row_quads = params.place(1, 0) / params.quad_bytes, shift = params.cells.shift;
    std::vector<std::array<int64_t, kQuadChannels>> quads(
        static_cast<size_t>(params.units / units_w * row_quads + shift));
    for (int32_t unit = 0; unit < params.units; ++unit) {
      const int32_t h = tile.source_h + unit / units_w, w = tile.source_w + unit % units_w * vector;
      const bool exists = h >= 0 && h < params.h.source_extent && w >= 0 && w < params.w.source_extent;
      const int64_t from = image + h * params.source.h + w * params.source.w;
      if (exists && from % vector != 0) throw py::index_error("a word that is not aligned");
      for (int32_t i = 0; i < vector * params.channels; ++i) {
        // Element i of a unit's words, in the order in which they are put together.
        const int32_t word = i / vector, element = i % vector;
        const bool whole = params.words == QuadsWords::kInner;
        const int32_t pixel = whole ? i / params.channels : element, channel = whole ? i % params.channels : word;
        quads.at(static_cast<size_t>(unit / units_w * row_quads + unit % units_w * vector + pixel + shift))[channel] =
            exists ? from + word * (whole ? vector : params.source.c) + element : kOutside;
      }
    }
    const int64_t first = tile.image * params.target.n + tile.p * params.target.h + tile.q * params.target.w;
    if (kernel.config.as<QuadsConfig>().squares) {
      add_squares(problem, params, tile, first, quads, products);
      continue;
    }
    for (int32_t pixel = 0; pixel < round_up(tile.rows * params.tile_q, unit_pixels); ++pixel) {
      // A lane finds each by its run.
      const int32_t of_run = pixel % params.run;
      const QuadsRun run(params, pixel / params.run);
      if (pixel / params.run >= params.runs) throw py::index_error("a run that is not known");
      const int32_t place = tile.lead + (run.place + of_run * params.place_step()) / params.quad_bytes;
      for (int32_t i = 0; i < params.taps; ++i) {
        const int32_t tap = quads_tap(params, i);
        for (int32_t c = 0; c < params.channels; ++c) {
          const int64_t from = quads.at(static_cast<size_t>(place + tap / params.quad_bytes))[static_cast<size_t>(c)];
          if (from == kOutside || of_run >= run.left(tile)) continue;
          products.emplace_back(from,
                                i / problem.s * params.filter.h + i % problem.s * params.filter.w + c * params.filter.c,
                                first + run.offset + of_run * params.target.w);
        }
      }
    }
  }
  return products;
}

// As lanes find quads that lie in memory, of filter 0.
Products ready_quads_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const ReadyQuadsParams params = ready_quads_params(problem, plan.tiling.as<QuadsTiling>());
  if (plan.grid != int64_t{plan.tiling.as<QuadsTiling>().walkers} * params.by_sets.divisor)
    throw py::index_error("not the plan's blocks");
  const int64_t all = problem.n * problem.h * problem.w;
  Products products;
  for (int32_t number = 0; number < plan.tiling.as<QuadsTiling>().walkers; ++number) {
    const ReadyRange range(params, number);
    const int64_t copied = round_up(int64_t{range.after} - range.first, int64_t{kReadyCopied});
    if (range.first % kReadyCopied != 0 || range.first + copied > all) {
      throw py::index_error("copies what is not there");
    }
    if (ready_rows_at(kernel.config.as<ReadyQuadsConfig>().steps) + copied * kReadyQuadBytes > plan.smem_bytes) {
      throw py::index_error("copies more than there is room for");
    }
    // Whole passes, as lanes look for pixels that do not exist, too.
    for (int32_t pixel = range.begin; pixel < range.begin + params.block_pixels; ++pixel) {
      const ReadyPlace place = ReadyPlace::of_pixel(params, pixel, range.end);
      for (int32_t i = 0; i < kernel.config.as<ReadyQuadsConfig>().steps * kQuadsStepTaps; ++i) {
        const ReadyPlace tap = ReadyPlace::of_tap(params, i);
        if (!place.has(params, tap)) continue;
        const uint32_t quad = place.quad + tap.quad;
        if (quad < range.first || quad >= range.after) throw py::index_error("reads what is not copied");
        for (int32_t c = 0; c < kQuadChannels; ++c) {
          products.emplace_back(int64_t{quad} * kQuadChannels + c,
                                i / problem.s * problem.w_strides.h + i % problem.s * problem.w_strides.w + c,
                                int64_t{pixel} * params.target_w);
        }
      }
    }
  }
  return products;
}

// How often shared memory is accessed for the quads of a tile's first 32 pixels, over the least for so many bytes.
double quads_accesses(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const QuadsParams params = quads_params(kernel.config.as<QuadsConfig>(), problem, plan.tiling.as<QuadsTiling>());
  constexpr int32_t kBankWords = 32;
  const int32_t at_once = kBankWords * 4 / params.quad_bytes;  // lanes
  int32_t accesses = 0, least = 0;
  for (int32_t step = 0; step < params.steps; ++step) {
    for (int32_t first = 0; first < 4 * 32; first += at_once, ++least) {
      std::map<int32_t, std::set<int32_t>> words;  // of a bank
      for (int32_t i = first; i < first + at_once; ++i) {
        const int32_t lane = i % 32,
                      pixel = quads_pixel(kernel.config.as<QuadsConfig>().channels_inner, params.run, i / 32, lane / 4);
        const int32_t tap = step * kQuadsStepTaps + lane % 4;
        const int32_t place = QuadsRun(params, pixel / params.run).place + pixel % params.run * params.place_step();
        const bool exists =
            tap < params.taps || kernel.config.as<QuadsConfig>().operands == QuadsOperands::kScaledParts;
        const int32_t from = exists ? place + quads_tap(params, tap) : params.zeros_at();
        for (int32_t word = from / 4; word < (from + params.quad_bytes) / 4; ++word)
          words[word % kBankWords].insert(word);
      }
      size_t most = 0;
      for (const auto& [bank, of_bank] : words) most = std::max(most, of_bank.size());
      accesses += static_cast<int32_t>(most);
    }
  }
  return double(accesses) / least;
}

// As the warps of the kernels for patch embeddings read chunks of pixels, and know what they sum up, of filter 0.
Products embed_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const EmbedConfig& config = kernel.config.as<EmbedConfig>();
  const Plan plan = plan_of(kernel, problem, device);
  const EmbedParams params = embed_params(config, problem, plan.tiling.as<EmbedTiling>());
  if (int64_t{params.walkers} * params.by_set_blocks.divisor != plan.grid)
    throw py::index_error("not the plan's blocks");
  const bool wgrad = problem.pass == Pass::kWgrad;
  Products products;
  auto add_pixel = [&](int32_t pixel, int32_t stored, int32_t chunk) {
    if (pixel >= params.pixels || chunk >= params.chunks) return;
    const EmbedPixel at(params, pixel);
    for (int32_t value = 0; value < kEmbedChunk; ++value) {
      const EmbedTap tap(params, chunk, value);
      if (at.source % kEmbedChunk != 0) throw py::index_error("a chunk that is not aligned");
      const int64_t from = at.source + embed_chunk(params, chunk) + value;
      products.emplace_back(from,
                            tap.channel * params.filter.c + tap.row * params.filter.h + tap.column * params.filter.w,
                            EmbedPixel(params, stored).target);
    }
  };
  for (int64_t first = 0; first < params.pixels; first += kEmbedUnitPixels) {
    for (int32_t lane = 0; lane < 32; ++lane) {
      for (int32_t i = 0; i < (wgrad ? kEmbedChunk : 2); ++i) {
        const auto unit = static_cast<int32_t>(first);
        if (wgrad) {
          // A lane's chunks: every eighth.
          const int32_t pixel = unit + embed_wgrad_pixel(config.channels_inner, i, lane);
          for (int32_t chunk = lane / 4; chunk < kEmbedMostChunks; chunk += 8) add_pixel(pixel, pixel, chunk);
          continue;
        }
        // What is summed up as column 2 * t and the next of two products is stored by lane t as four pixels.
        const int32_t column = lane / 4;
        const int32_t stored = config.channels_inner ? i * 8 + column : column / 2 * 4 + i * 2 + column % 2;
        for (int32_t step = 0; step < params.rounds * kEmbedSteps; ++step) {
          add_pixel(unit + embed_pixel(config.channels_inner, i, lane), unit + stored,
                    step * kEmbedStepChunks + lane % 4);
        }
      }
    }
  }
  return products;
}

Products stem_wgrad_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device,
                             std::optional<std::array<int32_t, 5>> given) {
  const StemConfig& config = kernel.config.as<StemConfig>();
  const Plan plan = plan_of(kernel, problem, device);
  const StemWgradParams params = stem_wgrad_params(config, problem, stem_tiling(plan, given));
  const auto jobs = static_cast<int32_t>(params.by_jobs.divisor);
  if (!given && jobs * params.walkers != plan.grid) throw py::index_error("not the plan's blocks");
  std::map<int64_t, StemTap> taps;  // of filter 0, by elements of dW
  for (int32_t i = 0; i < params.depth; ++i) taps.emplace(StemTap(params, i).filter, StemTap(params, i));
  Products products;
  std::set<std::pair<int32_t, int64_t>> elements;  // of a walker
  for (int32_t block = 0; block < jobs * params.walkers; ++block) {
    const StemJob job(config, params, block);
    std::vector<int64_t> sums;  // of filter 0
    for (int32_t i = 0; i < params.job_quads * 4; ++i) {
      int32_t quad, thread;
      params.by_job_threads.divmod(i / 4, quad, thread);
      const int64_t element = stem_element(config, params, job, thread / 32, thread % 32, quad, i % 4);
      if (element < 0) continue;
      if (!elements.emplace(job.walker, element).second) throw py::index_error("an element of two sums");
      if (job.first_filter == 0 && taps.contains(element)) sums.push_back(element);
    }
    for (int32_t index = job.walker; index < params.tiles && !sums.empty(); index += params.walkers) {
      const StemTile tile(params, index);
      const std::vector<int64_t> x = stem_words(params.x, tile.image, 0, tile.source_h, tile.source_w);
      const std::vector<int64_t> y = stem_words(params.y, tile.image, job.first_filter, tile.p, tile.q);
      for (int32_t pixel = 0; pixel < tile.pixels(params); ++pixel) {
        const int32_t row = pixel / params.tile_q, column = pixel % params.tile_q;
        const int64_t target = y.at(static_cast<size_t>(params.y.lead(tile.q) + params.y.place(row, column)));
        if (target == kNotStaged) throw py::index_error("not staged");
        if (target == kOutside) continue;
        for (const int64_t element : sums) {
          const int32_t place = params.x.lead(tile.source_w) + StemTile::source_of(params, pixel);
          const int64_t from = x.at(static_cast<size_t>(place + taps.at(element).place));
          if (from == kNotStaged) throw py::index_error("not staged");
          if (from != kOutside) products.emplace_back(from, element, target);
        }
      }
    }
  }
  if (static_cast<int64_t>(elements.size()) != params.walkers * problem.k * problem.c * problem.r * problem.s) {
    throw py::index_error("an element without a sum");
  }
  return products;
}

// The most pixels that one sum of a thread, or of a warp, adds up before others are added to it.
int64_t grouped_wgrad_chain(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const GroupedConfig& config = kernel.config.as<GroupedConfig>();
  const GroupedWgradParams params = grouped_wgrad_params(config, problem, plan.tiling.as<GroupedTiling>(), plan.split);
  const int32_t step = config.step_pixels();
  int64_t chain = 0;
  for (int32_t pixel = 0; pixel < params.tile_p * params.tile_q; pixel += params.slices * step) chain += step;
  return params.part_tiles * chain;
}

// As a block of the depthwise kernels for any filter stages a tensor's planes: offsets of elements, kOutside where
// there is none.
void stage_depthwise_any(const DepthwiseAnyPlanes& planes, const DepthwiseAnyParams& params, const DepthwiseAnySpan& h,
                         const DepthwiseAnySpan& w, int32_t first_image, int32_t images,
                         const std::function<int64_t(int32_t)>& channel_of, int64_t channels, int32_t at,
                         std::vector<int64_t>& smem) {
  const int32_t slots_h = static_cast<int32_t>(planes.by_slots_h.divisor);
  auto in = [](const DepthwiseAnySpan& span, int32_t row) { return row >= span.low && row < span.high; };
  for (int32_t plane = 0; plane < planes.planes(); ++plane) {
    const int32_t c = plane / planes.images, image = plane % planes.images;
    for (int32_t row = 0; row < planes.rows; ++row) {
      for (int32_t i = 0; i < planes.classes_w * planes.slots_w; ++i) {
        const int32_t y = params.h.row(row % slots_h, row / slots_h);
        const int32_t x = params.w.row(i % planes.slots_w, i / planes.slots_w);
        int64_t& to = smem.at(at + plane * planes.plane_pitch + row * planes.row_pitch +
                              i / planes.slots_w * planes.class_pitch + i % planes.slots_w);
        if (to != kNotStaged) throw py::index_error("staged twice");
        const bool exists = in(h, y) && in(w, x) && image < images && c < channels;
        to = exists ? (first_image + image) * planes.strides.n + channel_of(c) * planes.strides.c +
                          (h.first + h.step * y) * planes.strides.h + (w.first + w.step * x) * planes.strides.w
                    : kOutside;
        const bool begins = i % planes.piece == 0, follows = to == (exists ? (&to)[-1] + 1 : (&to)[-1]);
        if (begins ? exists && to % planes.piece != 0 : !follows) throw py::index_error("not a whole, aligned piece");
      }
    }
  }
}

// By its own tiling, or one that is given: the members of DepthwiseAnyTiling.
Products depthwise_any_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device,
                                std::optional<std::array<int32_t, 8>> tiles) {
  const Plan plan = plan_of(kernel, problem, device);
  DepthwiseAnyTiling tiling = plan.tiling.as<DepthwiseAnyTiling>();
  if (tiles) {
    const auto& t = *tiles;
    tiling = {t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]};
  }
  const int64_t split = tiles ? 1 : plan.split;
  const DepthwiseAnyConfig config = kernel.config.as<DepthwiseAnyConfig>();
  const DepthwiseAnyParams params = depthwise_any_params(config, problem, tiling, split);
  const DepthwiseAnyPlanes &source = params.source_planes, &taps = params.tap_planes, &targets = params.target_planes;
  const int64_t blocks = int64_t{params.h.all_strands()} * params.by_tiles_h.divisor * params.by_tiles_w.divisor *
                         params.by_channels.divisor *
                         (params.wgrad ? split : (problem.n + tiling.images - 1) / tiling.images);
  if (!tiles && blocks != plan.grid) throw py::index_error("not the plan's blocks");
  Products products;
  for (int32_t block = 0; block < blocks; ++block) {
    const DepthwiseAnyTile tile(params, block);
    if (!tile.exists() || tile.channel != 0) continue;
    for (int32_t i = 0; i < params.w.all_strands(); ++i) {
      const DepthwiseAnyStrand strand = params.w.strand(i);
      if (tile.column >= strand.targets || tile.h.taps == 0 || strand.taps == 0) continue;
      for (int32_t number = tile.begin; number < tile.end; ++number) {
        const DepthwiseAnyStep step(params, tile, number);
        const DepthwiseAnySpan tap_rows = params.h.tap_span(tile.h, step.tap_h);
        const DepthwiseAnySpan tap_columns = params.w.tap_span(strand, step.tap_w);
        std::vector<int64_t> smem(static_cast<size_t>(params.tap_at + taps.floats()), kNotStaged);
        stage_depthwise_any(
            source, params, params.h.source_span(tile.h, tile.row, step.tap_h),
            params.w.source_span(strand, tile.column, step.tap_w), step.first_image, step.images,
            [&](int32_t c) { return params.source_channel(c, step.source_index); }, params.channels, 0, smem);
        stage_depthwise_any(
            taps, params, tap_rows, tap_columns, params.wgrad ? step.first_image : 0, params.wgrad ? step.images : 1,
            [&](int32_t c) { return params.tap_channel(c, step.source_index); }, params.channels, params.tap_at, smem);
        for (int32_t thread = 0; thread < kDepthwiseAnyThreads; ++thread) {
          const DepthwiseAnyPlace place(params, config, thread);
          if (!place.exists || place.channel != 0) continue;
          for (int32_t of_h = 0; of_h < params.h.classes(); ++of_h) {
            for (int32_t of_w = 0; of_w < params.w.classes(); ++of_w) {
              const int32_t last =
                  std::min(place.first_tap_row + params.part_rows, params.h.slots_before(tap_rows.high, of_h));
              for (int32_t y = place.first_tap_row; y < last; ++y) {
                for (int32_t x = 0; x < params.w.slots_before(tap_columns.high, of_w); ++x) {
                  const int64_t tap =
                      smem.at(params.tap_at + (params.wgrad ? place.plane : place.channel) * taps.plane_pitch +
                              (of_h * params.h.tap_slots() + y) * taps.row_pitch + of_w * taps.class_pitch + x);
                  if (tap < kOutside) throw py::index_error("taps not staged");
                  if (tap == kOutside) continue;  // of an image that does not exist
                  for (int32_t j = 0; j < config.rows * config.columns; ++j) {
                    const int32_t row = place.row + j / config.columns, column = place.column + j % config.columns;
                    const int64_t from = smem.at(place.plane * source.plane_pitch +
                                                 (of_h * params.h.source_slots() + row + y) * source.row_pitch +
                                                 of_w * source.class_pitch + column + x);
                    if (from < kOutside) throw py::index_error("source not staged");
                    const bool exists = tile.row + row < tile.h.targets && tile.column + column < strand.targets;
                    if (from == kOutside || !exists) continue;
                    const int64_t to =
                        (params.wgrad ? 0 : step.first_image + place.plane % tiling.images) * targets.strides.n +
                        (tile.h.target + tile.h.target_step * (tile.row + row)) * targets.strides.h +
                        (strand.target + strand.target_step * (tile.column + column)) * targets.strides.w;
                    products.emplace_back(from, params.wgrad ? to : tap, params.wgrad ? tap : to);
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  return products;
}

// Offsets in the workspace's rows of pixels as offsets in the tensor that they are read from, or written to.
int64_t in_planes(const Reorder& order, int64_t offset) {
  if (order.units == 0) return offset;
  const int64_t pixel = offset / order.row;
  return pixel / order.pixels.divisor * order.plane_n + offset % order.row * order.plane_c +
         pixel % order.pixels.divisor;
}

// The workspace's rows of pixels as elements of the tensor, kZero or kNothing, by the same steps as the kernels; beside
// it what they should be. With `to_planes` the tensor as elements of the rows.
constexpr int64_t kZero = -1, kNothing = -2;

void once(int64_t& to, int64_t value) {
  if (to != kNothing) throw py::index_error("written twice");
  to = value;
}

template <int kVector>
void reorder_by_matrices(const Reorder& order, const ReorderUnit& unit, bool to_planes, std::vector<int64_t>& rows,
                         std::vector<int64_t>& planes) {
  std::vector<int64_t> smem(kReorderBytes / 2, kNothing);
  auto for_planes = [&](auto f) {  // f(place in shared memory, place in the planes)
    for (int32_t lane = 0; lane < 32; ++lane) {
      for (int32_t i = 0; i < ReorderAccess<kVector>::kCount; ++i) {
        const ReorderAccess<kVector> of(lane, i);
        for (int32_t p = of.pixel; p < of.pixel + kVector; ++p) {
          const bool exists = of.channel < unit.channels && of.pixel < unit.pixels;
          const int64_t at = unit.plane + of.channel * order.plane_c + p;
          if (exists && p == of.pixel && at % kVector != 0) throw py::index_error("not aligned");
          f(reorder_place(of.channel, of.pixel) / 2 + p - of.pixel, exists ? at : kZero);
        }
      }
    }
  };
  auto for_rows = [&](auto f) {
    for (int32_t lane = 0; lane < 32; ++lane) {
      for (int32_t group = 0; group < kReorderPixels / 8; ++group) {
        if (group * 8 + lane / 4 >= unit.pixels || lane % 4 >= unit.chunks) continue;
        for (int32_t i = 0; i < 8; ++i) {  // element i % 2 of register i / 2: that row of matrix i / 2, column lane / 4
          const int32_t named = i / 2 * 8 + lane % 4 * 2 + i % 2;
          const int32_t place = reorder_place(reorder_matrix_row(named), group * 8) / 2 + lane / 4;
          f(place, unit.row + (group * 8 + lane / 4) * int64_t{order.row} + lane % 4 * 8 + i);
        }
      }
    }
  };
  if (to_planes) {
    for_rows([&](int32_t place, int64_t row) { once(smem.at(place), row); });
    for_planes([&](int32_t place, int64_t plane) {
      if (plane != kZero) once(planes.at(plane), smem.at(place));
    });
  } else {
    for_planes([&](int32_t place, int64_t plane) { once(smem.at(place), plane); });
    for_rows([&](int32_t place, int64_t row) { once(rows.at(row), smem.at(place)); });
  }
}

void reorder_by_runs(const Reorder& order, const ReorderUnit& unit, std::vector<int64_t>& rows, int64_t elements) {
  std::vector<int64_t> smem(kReorderBarrier / 2, kNothing);
  for (int32_t channel = 0; channel < std::min(kReorderChannels, unit.channels); ++channel) {
    const int32_t lead = reorder_lead(order, unit, channel), count = (lead + unit.pixels + 7) / 8 * 8;
    const int64_t from = unit.plane + channel * order.plane_c - lead;
    if (from % 8 != 0 || reorder_run(channel) % 16 != 0) throw py::index_error("cannot be copied");
    if (from < 0 || from + count > elements) throw py::index_error("beyond the tensor");
    for (int32_t i = 0; i < count; ++i) once(smem.at(reorder_run(channel) / 2 + i), from + i);
  }
  for (int32_t pixel = 0; pixel < unit.pixels; ++pixel) {
    for (int32_t channel = 0; channel < std::min(kReorderChannels, 8 * unit.chunks); ++channel) {
      once(rows.at(unit.row + pixel * int64_t{order.row} + channel),
           smem.at(reorder_run(channel) / 2 + reorder_lead(order, unit, channel) + pixel));
    }
  }
}

// TMA's boxes, swizzled as it does, on their way to rows or from them.
void reorder_by_boxes(const Reorder& order, const TensorMapSpec& map, const ReorderUnit& unit, bool to_planes,
                      std::vector<int64_t>& rows, std::vector<int64_t>& planes) {
  std::vector<int64_t> smem(kReorderBarrier / 2, kNothing);
  if (map.box[0] * 2 != 128 || map.swizzle_bytes != 128) throw py::index_error("another swizzle");
  auto for_boxes = [&](auto f) {  // f(place in shared memory, element of the planes or kZero)
    for (int half = 0; half < 2; ++half) {
      const uint64_t first = unit.pixel + half * kReorderBoxPixels, channel = unit.channel / 8, image = unit.image;
      int32_t row = 0;
      for (uint32_t j = 0; j < map.box[2]; ++j) {
        for (uint32_t i = 0; i < map.box[1]; ++i, ++row) {
          for (uint32_t pixel = 0; pixel < map.box[0]; ++pixel) {
            const uint64_t at[] = {first + pixel, channel + i, j, image};
            bool inside = true;
            uint64_t element = at[0];
            for (int d = 0; d < 4; ++d) inside = inside && at[d] < map.size[d];
            for (int d = 1; d < 4; ++d) element += at[d] * map.stride[d - 1] / 2;
            const int64_t place = half * kReorderBoxBytes + row * 128 + (((pixel / 8) ^ (row % 8)) * 8 + pixel % 8) * 2;
            f(place / 2, inside ? static_cast<int64_t>(element) : kZero);
          }
        }
      }
    }
  };
  auto for_rows = [&](auto f) {  // f(place in shared memory, element of the rows)
    for (int32_t lane = 0; lane < 32; ++lane) {
      for (int32_t pixel = lane / 4; pixel < unit.pixels; pixel += 8) {
        for (int32_t i = 0; i < 8 && lane % 4 < unit.chunks; ++i) {  // as reorder_by_matrices
          const int32_t channel = reorder_matrix_row(i / 2 * 8 + lane % 4 * 2 + i % 2);
          const int32_t place = reorder_box_place(reorder_box_row(channel), pixel / 8) / 2 + lane / 4;
          f(place, unit.row + pixel * int64_t{order.row} + lane % 4 * 8 + i);
        }
      }
    }
  };
  if (to_planes) {
    for_rows([&](int64_t place, int64_t row) { once(smem.at(place), row); });
    for_boxes([&](int64_t place, int64_t element) {
      if (element != kZero) once(planes.at(element), smem.at(place));
    });
  } else {
    for_boxes([&](int64_t place, int64_t element) { once(smem.at(place), element); });
    for_rows([&](int64_t place, int64_t row) { once(rows.at(row), smem.at(place)); });
  }
}

std::tuple<std::vector<int64_t>, std::vector<int64_t>, Reorder> reorder(std::array<int64_t, 4> size, int32_t align,
                                                                        bool to_planes) {
  const auto [n, c, h, w] = size;
  const Side side{n, c, h, w, {c * h * w, h * w, w, 1}, align};
  const Reorder order = make_reorder(side, 1);
  const int64_t row = order.row, pixels = h * w;
  std::vector<int64_t> rows(n * pixels * row, kNothing), planes(n * c * pixels, kNothing);
  for (int32_t index = 0; index < order.units; ++index) {
    const ReorderUnit unit(order, index);
    if (order.copy == ReorderCopy::kRuns && !to_planes) {
      reorder_by_runs(order, unit, rows, n * c * pixels);
    } else if (order.copy == ReorderCopy::kBoxes) {
      reorder_by_boxes(order, reorder_boxes(side, 1), unit, to_planes, rows, planes);
    } else if (order.vector != 1) {
      reorder_by_matrices<2>(order, unit, to_planes, rows, planes);
    } else {
      reorder_by_matrices<1>(order, unit, to_planes, rows, planes);
    }
  }
  std::vector<int64_t> expected;
  if (to_planes) {
    for (int64_t i = 0; i < n * c * pixels; ++i) {
      expected.push_back((i / (c * pixels) * pixels + i % pixels) * row + i / pixels % c);
    }
    return {planes, expected, order};
  }
  for (int64_t i = 0; i < n * pixels * row; ++i) {
    const int64_t channel = i % row, pixel = i / row;
    expected.push_back(channel < c ? (pixel / pixels * c + channel) * pixels + pixel % pixels : kZero);
  }
  return {rows, expected, order};
}

// Turns that the banks of shared memory take for what a warp accesses at once, `bytes` a lane: 128 bytes together.
int bank_turns(const std::vector<int>& addresses, int bytes) {
  const int lanes = std::min(32, 128 / bytes);
  size_t turns = 0;
  for (size_t first = 0; first < addresses.size(); first += lanes) {
    std::array<std::set<int>, 32> words;
    for (size_t i = first; i < first + lanes; ++i) {
      for (int byte = 0; byte < bytes; byte += 2) {
        const int word = (addresses.at(i) + byte) / 4;
        words[word % 32].insert(word);
      }
    }
    for (const std::set<int>& bank : words) turns = std::max(turns, bank.size());
  }
  return static_cast<int>(turns);
}

// For each accumulator that a lane stores, which it should be, and which it is; and turns of the slowest access.
struct Turned {
  std::vector<std::pair<int64_t, int64_t>> stored;
  int turns = 0;
};

// A warp's accesses to a buffer whose elements are numbered as they come.
struct TurningBuffer {
  std::vector<int64_t> elements;
  int element_bytes;

  // Lane i stores `values` from address i on.
  int store(const std::vector<std::pair<int, std::vector<int64_t>>>& lanes) {
    std::vector<int> addresses;
    const int bytes = static_cast<int>(lanes[0].second.size()) * element_bytes;
    for (const auto& [at, values] : lanes) {
      if (at % bytes != 0) throw py::index_error("not aligned");
      addresses.push_back(at);
      for (size_t i = 0; i < values.size(); ++i) once(elements.at(at / element_bytes + i), values[i]);
    }
    return bank_turns(addresses, bytes);
  }
};

// Accumulators on their way through rows of pixels, numbered (M-block * 64 + pixel) * channels + channel.
template <int kVector, int kTogether, int kBlockK, int kElementBytes, bool kPairs = false>
Turned pixel_rows(const HaloParams& params) {
  using Rows = PixelRows<kVector, kTogether, kBlockK, kElementBytes>;
  const Rows rows(params);
  auto number = [](int m, int pixel, int channel) { return int64_t{m * 64 + pixel} * kBlockK + channel; };
  TurningBuffer smem{std::vector<int64_t>(kEpilogueBytes / kElementBytes, kNothing), kElementBytes};
  Turned out;
  std::vector<std::pair<int, std::vector<int64_t>>> lanes(32);
  for (int m = 0; m < kTogether; ++m) {
    for (int warp = 0; warp < 4; ++warp) {
      if constexpr (kPairs) {
        for (int i = 0; i < Rows::kPass / 2; ++i) {
          for (int lane = 0; lane < 32; ++lane) {
            const int pixel = fragment_sum(warp, lane, i % 2, 0).pixel, c = i / 2 * 4, channel = lane % 4;
            const uint32_t at = Rows::further(static_cast<uint32_t>(rows.sum(m, {pixel, channel})), c);
            lanes[lane] = {static_cast<int>(at), {number(m, pixel, c + channel)}};
          }
          out.turns = std::max(out.turns, smem.store(lanes) / 2);  // eight pixels of two channels in the same banks
        }
      } else if constexpr (kElementBytes == 2) {
        for (int c = 0; c < Rows::kPass; c += 16) {
          for (int lane = 0; lane < 32; ++lane) {  // names row lane % 8 of matrix lane / 8: a channel of eight pixels
            auto& [at, values] = lanes[lane];
            at = rows.matrix_row(m, warp, lane) + c * Rows::kRowBytes, values.clear();
            for (int i = 0; i < 8; ++i) {
              values.push_back(number(m, warp * 16 + lane / 8 % 2 * 8 + i, c + lane / 16 * 8 + lane % 8));
            }
          }
          out.turns = std::max(out.turns, smem.store(lanes));
        }
      } else {
        for (int i = 0; i < Rows::kPass / 2; ++i) {  // accumulators
          for (int lane = 0; lane < 32; ++lane) {
            const FragmentSum at = fragment_sum(warp, lane, i / 2 % 2, i % 2);
            const int c = i / 4 * 8;
            lanes[lane] = {rows.sum(m, at) + c * Rows::kRowBytes, {number(m, at.pixel, c + at.channel)}};
          }
          out.turns = std::max(out.turns, smem.store(lanes));
        }
      }
    }
  }
  for (int warp = 0; warp < 4; ++warp) {
    for (int i = 0; i < Rows::kParts; ++i) {
      for (int k = 0; k < Rows::kPass; k += Rows::kStep) {
        const int ahead = k % (Rows::kStep * Rows::kBatch);
        std::vector<int> addresses;
        for (int lane = 0; lane < 32; ++lane) {
          const int first = Rows::first_channel(warp, lane);
          const auto pixel = rows.pixel(i, lane, first);
          const int at = static_cast<int>(Rows::further(pixel.from, ahead)) + (k - ahead) * Rows::kRowBytes;
          addresses.push_back(at);
          for (int v = 0; v < kVector; ++v) {
            out.stored.emplace_back(number(pixel.m, pixel.pixel + v, first + k),
                                    smem.elements.at(at / kElementBytes + v));
          }
        }
        out.turns = std::max(out.turns, bank_turns(addresses, kVector * kElementBytes));
      }
    }
  }
  return out;
}

Turned pixel_rows(int vector, int together, int block_k, int element_bytes, bool narrow, int across_log2) {
  HaloParams params{};
  params.block_q = narrow ? 8 : 64, params.blocks_q_log2 = across_log2;
  auto is = [&](int v, int t, int k, int bytes) {
    return vector == v && together == t && block_k == k && element_bytes == bytes;
  };
  if (is(1, 2, 64, 8)) return pixel_rows<1, 2, 64, 8, true>(params);
  if (is(1, 1, 64, 8)) return pixel_rows<1, 1, 64, 8, true>(params);
  if (is(1, 2, 64, 4)) return pixel_rows<1, 2, 64, 4, true>(params);
  if (is(8, 4, 64, 2)) return pixel_rows<8, 4, 64, 2>(params);
  if (is(8, 2, 128, 2)) return pixel_rows<8, 2, 128, 2>(params);
  if (is(8, 1, 256, 2)) return pixel_rows<8, 1, 256, 2>(params);
  if (is(2, 4, 32, 2)) return pixel_rows<2, 4, 32, 2>(params);
  if (is(2, 2, 16, 2)) return pixel_rows<2, 2, 16, 2>(params);
  if (is(1, 2, 128, 2)) return pixel_rows<1, 2, 128, 2>(params);
  if (is(1, 1, 256, 2)) return pixel_rows<1, 1, 256, 2>(params);
  if (is(4, 4, 64, 4)) return pixel_rows<4, 4, 64, 4>(params);
  if (is(4, 2, 128, 4)) return pixel_rows<4, 2, 128, 4>(params);
  if (is(4, 1, 256, 4)) return pixel_rows<4, 1, 256, 4>(params);
  if (is(2, 4, 32, 4)) return pixel_rows<2, 4, 32, 4>(params);
  if (is(2, 2, 64, 4)) return pixel_rows<2, 2, 64, 4>(params);
  if (is(2, 1, 128, 4)) return pixel_rows<2, 1, 128, 4>(params);
  if (is(1, 2, 128, 4)) return pixel_rows<1, 2, 128, 4>(params);
  if (is(1, 1, 256, 4)) return pixel_rows<1, 1, 256, 4>(params);
  throw py::value_error("not compiled");
}

// The same of rows of channels, warp 0: numbered pixel * channels + channel.
template <int kBlockK, int kElementBytes>
Turned channel_rows() {
  using Rows = ChannelRows<kBlockK, kElementBytes>;
  TurningBuffer smem{std::vector<int64_t>(kEpilogueBytes / 4 / kElementBytes, kNothing), kElementBytes};
  Turned out;
  std::vector<std::pair<int, std::vector<int64_t>>> lanes(32);
  if constexpr (kElementBytes == 2) {
    for (int c = 0; c < Rows::kChunk; c += 16) {
      for (int lane = 0; lane < 32; ++lane) {  // names row lane % 8 of matrix lane / 8: a pixel of eight channels
        auto& [at, values] = lanes[lane];
        at = Rows::run(lane % 16, c / 8 + lane / 16), values.clear();
        for (int i = 0; i < 8; ++i) values.push_back(int64_t{lane % 16} * kBlockK + c + lane / 16 * 8 + i);
      }
      out.turns = std::max(out.turns, smem.store(lanes));
    }
  } else {
    for (int i = 0; i < Rows::kChunk / 2; i += 2) {  // accumulators
      for (int lane = 0; lane < 32; ++lane) {
        const FragmentSum at = fragment_sum(0, lane, i / 2 % 2, 0);
        const int64_t first = int64_t{at.pixel} * kBlockK + i / 4 * 8 + at.channel;
        lanes[lane] = {Rows::sum(i / 4 * 8, at), {first, first + 1}};
      }
      out.turns = std::max(out.turns, smem.store(lanes));
    }
  }
  for (int first = 0; first < 16; first += Rows::kRows) {
    std::vector<int> addresses;
    for (int lane = 0; lane < 32; ++lane) {
      const int row = first + lane / Rows::kRuns, run = lane % Rows::kRuns;
      addresses.push_back(Rows::run(row, run));
      for (int i = 0; i < Rows::kRun; ++i) {
        out.stored.emplace_back(int64_t{row} * kBlockK + run * Rows::kRun + i,
                                smem.elements.at(addresses.back() / kElementBytes + i));
      }
    }
    out.turns = std::max(out.turns, bank_turns(addresses, 16));
  }
  return out;
}

Turned channel_rows(int block_k, int element_bytes) {
  auto is = [&](int k, int bytes) { return block_k == k && element_bytes == bytes; };
  if (is(64, 2)) return channel_rows<64, 2>();
  if (is(256, 2)) return channel_rows<256, 2>();
  if (is(32, 4)) return channel_rows<32, 4>();
  if (is(128, 4)) return channel_rows<128, 4>();
  throw py::value_error("not compiled");
}

// Turns that a warp's sums of eight streams take on their way to lines, when planes are so far apart.
int stream_turns(uint32_t plane, int element_bytes) {
  const int pitch = stream_pitch(line_pitch(1, element_bytes), plane);
  std::vector<int> addresses;
  for (int lane = 0; lane < 32; ++lane) {  // two 16-bit pixels of a stream, or one float of two
    const FragmentSum at = fragment_sum(0, lane, 0, 0);
    const int stream = element_bytes == 2 ? at.pixel : at.channel, pixel = element_bytes == 2 ? at.channel : at.pixel;
    addresses.push_back(stream * pitch + StreamLines(stream * plane, 0).lead + pixel * element_bytes);
  }
  return bank_turns(addresses, 4);
}

// Whether those who make operands of a copy of raw planes find each channel's pixels where TMA puts them.
void check_raw_floats(const HaloParams& params, const HaloConfig& config, const RawRun& run, int32_t first) {
  const RawFloats from(params, run, first, config.channels);
  const int32_t phases_log2 = params.raw.phases_log2;
  const auto channels_log2 = std::countr_zero(static_cast<uint32_t>(config.channels));
  for (int32_t at = 0; at < config.channels; ++at) {  // place of a plane in the stage
    const int32_t c = params.raw.whole ? at : staged_channel(phases_log2, channels_log2, at);
    const int32_t lead = raw_lead(params, run, first, c & ((1 << phases_log2) - 1), raw_unit(sizeof(float)));
    const int32_t copied = params.raw.whole ? at * static_cast<int32_t>(params.in_c) + run.flat(params) + first
                                            : at * params.raw.box_w + lead;
    int32_t read = from.first + first;
    for (int32_t i = 0; i < c; ++i) read += from.next[i % RawFloats::kPeriod];
    if (read != copied) throw py::index_error("another channel's pixels");
  }
}

// What a staged halo holds: for each pixel its offset in the input, of channel 0, or kZero. By the same steps as the
// producers.
std::vector<int64_t> staged_halo(const HaloParams& params, const HaloConfig& config, const Tile& tile,
                                 const TapGroup& group) {
  const HaloStaging staging = config.staging;
  const int32_t unit = raw_unit(config.operands == OperandForm::kHalf ? 2 : 4);
  std::vector<int64_t> halo(params.halo_rows * params.halo_pitch, kNothing);
  auto put = [&](int32_t row, int32_t column, int32_t n, int32_t h, int32_t w) {
    int64_t& pixel = halo.at(row * params.halo_pitch + column);
    if (pixel != kNothing) throw py::index_error("staged twice");
    const bool inside = n < params.n && h >= 0 && h < params.height && w >= 0 && w < params.width;
    pixel = inside ? n * params.in_n + h * params.in_h + w * params.in_w : kZero;
  };
  auto put_copy = [&](int32_t i) {
    const bool large = is_large_tile(config.m_blocks, config.block_k), pieces = large && params.raw.advance > 0;
    const int32_t pixels = large ? params.raw.box_w : params.load_rows * params.halo_pitch;
    const int32_t columns = pieces ? pixels : params.halo_pitch, left = pieces ? i * params.raw.advance : 0;
    if (i > 0 && pixels * config.pixel_bytes() % 128 != 0) throw py::index_error("a copy begins within 128 bytes");
    const HaloRow first = halo_row(params, tile, group, i * params.load_rows);
    for (int32_t j = 0; j < pixels; ++j) {
      const int32_t place = i * pixels + j;
      put(place / params.halo_pitch, place % params.halo_pitch, first.n, first.h + j / columns * params.in_step_h,
          halo_col(params, tile, group) + left + j % columns * params.in_step_w);
    }
  };
  auto put_row = [&](int32_t i) {
    const HaloRow row = halo_row(params, tile, group, i);
    for (int32_t column = 0; column < params.halo_pitch; ++column) {
      put(i, column, row.n, row.h, halo_col(params, tile, group) + column * params.in_step_w);
    }
  };
  if (staged_as_planes(staging)) {
    if (staging == HaloStaging::kShifted) {
      // What a row of the copy's tensor has there: the first plane, and the second as copied, kShift pixels early.
      const auto plane = static_cast<int32_t>(params.in_c);
      if (plane != params.width || params.c % 2 != 0) throw py::index_error("no pairs of planes without gaps");
      if (tile.q % unit != 0 || (tile.q + plane - kShift) % unit != 0) throw py::index_error("no column of a copy");
      if (kShift + 64 > params.raw.box_w || params.raw.box_w % unit != 0) throw py::index_error("not copied");
    }
    for (int32_t i = 0; i < params.loads * 64; ++i) put(0, i, tile.n, tile.p, tile.q + i);
  } else if (staging == HaloStaging::kTma) {
    for (int32_t i = 0; i < params.loads; ++i) put_copy(i);
    if (std::count(halo.begin(), halo.end(), kNothing) > 0) throw py::index_error("not copied");
  } else if (staging == HaloStaging::kTransposed) {
    const int32_t w0 = halo_col(params, tile, group);
    const HaloColumns inside(params, w0);
    for_each_raw_run(params, tile, group, [&](const RawRun& run) {
      for (int32_t row = run.row; row < run.row + run.rows; ++row) {
        for (int32_t column = 0; column < params.halo_pitch; ++column) {
          if (run.count == 0 || column < inside.begin || column >= inside.end) put(row, column, params.n, 0, 0);
        }
      }
      for (int32_t first = 0; first < run.count; first += params.raw.advance) {
        const int32_t end = std::min(run.count, first + params.raw.advance);
        for (int32_t phase = 0; phase < 1 << params.raw.phases_log2; ++phase) {
          const int32_t lead = raw_lead(params, run, first, phase, unit), start = run.flat(params) + first - lead;
          if ((start + raw_shift(params.in_c, phase, unit)) % unit != 0) {
            throw py::index_error("no column of TMA");
          }
          if ((phase * params.in_c + start) % unit != 0) throw py::index_error("no 16-byte address");
          if (end - first + lead > params.raw.box_w) throw py::index_error("not copied");
          if (params.raw.whole && end < run.count) throw py::index_error("another copy of the same planes");
        }
        if (config.operands != OperandForm::kHalf) check_raw_floats(params, config, run, first);
        for (int32_t i = first; i < end; ++i) {
          const int32_t pixel = halo_pixel(params, run, w0, i), flat = run.flat(params) + i;
          if (pixel < 0) continue;
          put(pixel / params.halo_pitch, pixel % params.halo_pitch, run.n, flat / params.width, flat % params.width);
        }
      }
    });
  } else {
    for (int32_t i = 0; i < params.halo_rows; ++i) put_row(i);
  }
  return halo;
}

// Pixels of a folded input by their number, since they may begin outside the image.
HaloParams counting_pixels(HaloParams params) {
  params.in_w = 1, params.in_h = params.width, params.in_n = int64_t{params.width} * params.height;
  return params;
}
struct FoldedPixel {
  int64_t n;
  int32_t h, w;
};
FoldedPixel folded_pixel(int64_t number, int32_t width, int32_t height) {
  const int64_t row = number / width;
  return {row / height, static_cast<int32_t>(row % height), static_cast<int32_t>(number % width)};
}

// Of channels from `begin` up to `end` of a pixel; filter(channel) is an element of the filter or -1. Channels that are
// read as a pair must be one.
template <typename F>
void folded_products(const ConvProblem& p, const Fold& fold, FoldedPixel pixel, int32_t begin, int32_t end, F filter,
                     int64_t target, Products& products) {
  const int32_t h0 = fold.h.pixel(pixel.h, 0), w0 = fold.w.pixel(pixel.w, 0);
  const int64_t source = pixel.n * p.x_strides.n + h0 * p.x_strides.h + w0 * p.x_strides.w;
  auto inside = [&](const FoldedChannel& c) { return fold.h.has_pixel(h0 + c.h) && fold.w.has_pixel(w0 + c.w); };
  for (int32_t i = begin; i < end; ++i) {
    const FoldedChannel &channel = fold.channel[i], &first = fold.channel[i & ~1];
    if (fold.pairs && (inside(channel) != inside(first) || (source + first.offset) % 2 != 0 ||
                       channel.offset != first.offset + i % 2)) {
      throw py::index_error("no pair");
    }
    const int64_t at = filter(i);
    if (inside(channel) && at >= 0) products.emplace_back(source + channel.offset, at, target);
  }
}

// Element of a float32 tensor whose part the first group's rows hold at this offset, 16-bit elements; see split.h.
int64_t split_element(const Side& side, int64_t groups, Operand operand, int32_t parts, int32_t part, int64_t offset) {
  const int64_t group = split_channels(side.c, operand), row = parts * groups * group;
  const int64_t pixel = offset / row, c = offset % row - part * groups * group;
  if (c < 0 || c >= side.c) throw py::index_error("another part, or group");
  return pixel / (side.h * side.w) * side.stride.n + pixel / side.w % side.h * side.stride.h +
         pixel % side.w * side.stride.w + c * side.stride.c;
}

// Element of the tensor that is channel c of a pixel, by the pixel's first element as the products meet it.
int64_t in_tensor(const ConvProblem& problem, const HaloParams& params, Operand operand, int64_t pixel, int32_t c) {
  if (params.in_split.parts == 0) return in_planes(params.in_order, pixel + c * params.in_c);
  const Side side = problem.pass == Pass::kDgrad ? output_side(problem) : input_side(problem);
  return split_element(side, problem.groups, operand, params.in_split.parts, 0, pixel + c * params.in_c);
}

// Blocks of the grid and, in their order, its tiles: phase, group, filter tile, share, and where the pixels begin.
std::tuple<int64_t, std::vector<std::tuple<int32_t, std::array<int32_t, 7>>>> halo_tiles(const ConvProblem& problem,
                                                                                         const KernelEntry& kernel,
                                                                                         const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const HaloParams params = halo_launch(plan, problem).params;
  std::vector<std::tuple<int32_t, std::array<int32_t, 7>>> tiles;
  for (int32_t i = 0; i < params.tiles; ++i) {
    const Tile tile(params, i);
    tiles.emplace_back(tile.phase,
                       std::array{tile.group, tile.k_tile, tile.share, tile.n, tile.p, tile.q, tile.linear});
  }
  return {plan.grid, tiles};
}

int32_t halo_copy_warps(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  return halo_launch(plan_of(kernel, problem, device), problem).params.copy_warps;
}

// Which blocks of the reduction a tile of group 0 goes through: channels, part of the input and part of the filter.
std::vector<std::tuple<int32_t, int32_t, int32_t>> halo_blocks(const ConvProblem& problem, const KernelEntry& kernel,
                                                               const DeviceSpec& device) {
  const HaloParams params = halo_launch(plan_of(kernel, problem, device), problem).params;
  const Tile tile(params, 0);
  std::vector<std::tuple<int32_t, int32_t, int32_t>> blocks;
  for_each_halo(params, tile, [&](const TapGroup& taps, int c_block) {
    if (&taps != &params.group[params.phase[0].group_begin]) return;
    for (int32_t share = 0; share < static_cast<int32_t>(params.shares.divisor); ++share) {
      const HaloBlock block(params, Tile(params, share), c_block);
      if (block.in_group % params.groups != 0 || block.filter_group % params.groups != 0) {
        throw py::index_error("another group");
      }
      blocks.emplace_back(block.c_block, block.in_group / params.groups, block.filter_group / params.groups);
    }
  });
  if (!params.filter_resident) return blocks;
  // What a block of the reduction finds where it looks for its part of the filter: phase, channels and group.
  std::vector<std::tuple<int32_t, int32_t, int32_t>> stages;
  auto for_each_block = [&](auto f) {  // f(block, stages that it takes, what they should hold)
    for (int32_t phase = 0; phase < params.phase_count; ++phase) {
      Tile first = tile;
      first.phase = phase;
      for (int32_t i = 0; i < params.c_blocks; ++i) {
        const HaloBlock block(params, first, i);
        f(i, params.phase[phase], params.phase[phase].taps / kernel.config.as<HaloConfig>().columns,
          std::tuple{phase, block.c_block, block.filter_group});
      }
    }
  };
  for_each_block([&](int32_t i, const OutputPhase&, int32_t count, auto held) {
    if (fills_stages(params, i)) stages.insert(stages.end(), count, held);
  });
  if (static_cast<int32_t>(stages.size()) != params.b_stages) throw py::index_error("not as many stages");
  for_each_block([&](int32_t i, const OutputPhase& phase, int32_t count, auto held) {
    const int32_t first = resident_stage(params, phase, i) / kernel.config.as<HaloConfig>().columns;
    for (int32_t step = 0; step < count; ++step) {
      if (stages.at(first + step) != held) throw py::index_error("another part");
    }
  });
  return blocks;
}

// HaloStaging::kFloats: what lanes load of a tile's halos of planes and multiply, group 0.
template <int kDepth>
void float_products(const ConvProblem& p, const KernelEntry& kernel, const HaloParams& params, const Tile& tile,
                    const TapGroup& taps, Products& products) {
  using Fragment = FloatFragment<kDepth>;
  const int32_t channels = kernel.config.as<HaloConfig>().channels, pitch = params.raw.box_w;
  const int64_t filter_c = p.pass == Pass::kDgrad ? p.w_strides.n : p.w_strides.c;
  const FloatRows rows(params, tile, taps);
  for (int32_t c_block = 0; c_block < params.c_blocks; ++c_block) {
    std::vector<int64_t> halo(params.halo_rows * channels * pitch, kNothing);
    for (int32_t row = 0; row < params.halo_rows; ++row) {
      if (!rows.exists(row)) continue;
      if (rows.start(row) % 4 != 0) throw py::index_error("no column of TMA");
      for (int32_t i = 0; i < channels * pitch; ++i) {
        const int32_t c = c_block * channels + i / pitch, flat = rows.start(row) + i % pitch;
        const bool exists = c < params.c && flat >= 0 && flat < params.height * params.width;
        halo.at(row * channels * pitch + i) = exists ? tile.n * params.in_n + c * params.in_c + flat : kZero;
      }
    }
    for_each_float_padding(params, tile, rows, [&](int32_t row, int32_t first, int32_t count) {
      for (int32_t c = 0; c < channels; ++c) {
        if (first + count > pitch) throw py::index_error("clears another channel");
        std::fill_n(halo.begin() + (row * channels + c) * pitch + first, count, kZero);
      }
    });
    // Value i of each lane, for tap (r, s) of M-block `block`.
    auto multiply = [&](int32_t block, int32_t step, int32_t r, int32_t s, int32_t i) {
      std::vector<int> addresses;
      for (int32_t thread = 0; thread < 128; ++thread) {
        const Fragment fragment(thread / 32, thread % 32);
        const int32_t m = fragment.pixel + Fragment::pixels(i);
        const FloatPlace first = float_block(params, block), pixel = float_pixel(params, m);
        const int32_t row = first.row + pixel.row + r * taps.row_step;
        const int32_t column = first.column + pixel.column + s * taps.col_step;
        const int32_t channel = step * kDepth + fragment.channel + Fragment::channels(i);
        const int32_t at = (row * channels + channel) * pitch + column + rows.lead(row);
        addresses.push_back(4 * at);
        const int64_t target = output_element(params, tile, output_pixel(params, tile, block, m));
        if (target < 0) continue;
        const int64_t source = halo.at(at), c = c_block * channels + channel;
        if (source == kNothing || column + rows.lead(row) >= pitch) throw py::index_error("nothing staged");
        if (source == kZero) continue;
        const int64_t filter = (taps.r0 + r * taps.dr) * p.w_strides.h + (taps.s0 + s * taps.ds) * p.w_strides.w;
        products.emplace_back(source, filter + c * filter_c, target);
      }
      const std::vector<int> warp(addresses.begin(), addresses.begin() + 32);
      if (bank_turns(warp, 4) > 1) throw py::index_error("lanes wait for each other's banks");
    };
    for (int32_t block = 0; block < params.tile_pixels / 64; ++block) {
      for (int32_t step = 0; step < channels / kDepth; ++step) {
        for (int32_t tap = 0; tap < taps.rows * taps.cols; ++tap) {
          for (int32_t i = 0; i < Fragment::kValues; ++i) multiply(block, step, tap / taps.cols, tap % taps.cols, i);
        }
      }
    }
  }
}

// As the halo engine forms them: rows of matrix operands are pixels of a staged halo, shifted by the tap.
Products halo_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const HaloLaunch launch = halo_launch(plan, problem);
  const HaloParams& params = launch.params;
  const bool folds = kernel.config.as<HaloConfig>().staging == HaloStaging::kFolded;
  const int32_t parts = kernel.config.as<HaloConfig>().parts_a_stage(),
                pattern = 8 * kernel.config.as<HaloConfig>().pixel_bytes();  // of swizzling
  const int32_t filter_bytes =
      parts * kernel.config.as<HaloConfig>().n() * kernel.config.as<HaloConfig>().pixel_bytes();
  const int32_t stages = params.a_stages * params.a_stage_bytes + params.b_stages * filter_bytes;
  const int32_t raw_bytes =
      kernel.config.as<HaloConfig>().staging == HaloStaging::kTransposed ? params.raw.stage_bytes : 0;
  if (params.a_stage_bytes % pattern != 0 || (parts > 1 && params.part_bytes % pattern != 0) ||
      filter_bytes % pattern != 0) {
    throw py::index_error("rows lie elsewhere in their pattern");
  }
  if (stages % 128 != 0 || (!params.raw.whole && (raw_bytes >> params.raw.phases_log2) % 128 != 0)) {
    throw py::index_error("TMA or the epilogue would meet no multiple of 128");
  }
  if (parts > 1 && parts * params.part_bytes > params.a_stage_bytes &&
      kernel.config.as<HaloConfig>().staging == HaloStaging::kTransposed) {
    throw py::index_error("parts overlap the next stage");
  }
  const Strides& w = problem.w_strides;
  const int64_t filter_c = problem.pass == Pass::kDgrad ? w.n : w.c;
  const int32_t channels = kernel.config.as<HaloConfig>().channels,
                pixel_bytes = kernel.config.as<HaloConfig>().pixel_bytes();
  const int32_t channels_log2 = std::countr_zero(static_cast<uint32_t>(channels));
  Products products;
  auto multiply = [&](const Tile& tile, const TapGroup& taps, const std::vector<int64_t>& halo, int32_t m) {
    const int32_t block = m / 64, row = m % 64;
    const int64_t target = output_element(params, tile, output_pixel(params, tile, block, row));
    if (target < 0) return;
    const int32_t first =
        block_offset(params, tile, block, pixel_bytes) + row / 8 * params.group_pitch + row % 8 * pixel_bytes;
    for (int32_t tap = 0; tap < taps.rows * taps.cols; ++tap) {
      const int32_t i = tap / taps.cols, j = tap % taps.cols;
      // Side by side on N, a column's sums are those of the pixel that it shifts to.
      const int32_t column = (block & ((1 << params.blocks_q_log2) - 1)) * params.block_q + row % 8;
      if (column + j % kernel.config.as<HaloConfig>().columns * params.column_step >= params.block_q
                                                                                          << params.blocks_q_log2 &&
          kernel.config.as<HaloConfig>().columns > 1) {
        throw py::index_error("no sums of this strip");
      }
      const int64_t source = halo.at((first + i * taps.row_step + j * taps.col_step) / pixel_bytes);
      if (source == kNothing) throw py::index_error("nothing staged");
      if (source == kZero) continue;
      if (folds) {
        const Fold& fold = launch.fold;
        auto filter = [&](int32_t c) -> int64_t {
          const FoldedChannel& channel = fold.channel[c];
          const int32_t r = fold.h.tap(taps.r0 + i * taps.dr, channel.h),
                        s = fold.w.tap(taps.s0 + j * taps.ds, channel.w);
          return fold.h.has_tap(r) && fold.w.has_tap(s) ? channel.c * w.c + r * w.h + s * w.w : -1;
        };
        const FoldedPixel pixel = folded_pixel(source, params.width, params.height);
        folded_products(problem, fold, pixel, 0, params.c, filter, target, products);
        continue;
      }
      const int32_t share = static_cast<int32_t>(params.part_blocks.divisor) * channels;
      for (int32_t at = tile.share * share; at < (tile.share + 1) * share; ++at) {
        const int32_t phases_log2 =
            kernel.config.as<HaloConfig>().operands == OperandForm::kHalf ? params.raw.phases_log2 : 0;
        const int32_t c = at - at % channels + staged_channel(phases_log2, channels_log2, at % channels);
        if (c >= params.c) continue;
        const int64_t in = in_tensor(problem, params, operand_of(kernel.config.as<HaloConfig>().operands), source, c);
        for (int32_t beside = 0; beside < columns_at_once(kernel.config.as<HaloConfig>().filter); ++beside) {
          const int32_t r = taps.r0 + i * taps.dr, s = taps.s0 + j * taps.ds + beside;
          if (s < 0 || s >= problem.s) continue;  // TMA brings zeros
          products.emplace_back(in, r * w.h + s * w.w + c * filter_c, in_planes(params.out_order, target + beside));
        }
      }
    }
  };
  auto walk_tiles = [&](auto walk) {
    for (; walk.more(); walk.next()) {
      const Tile tile(params, walk.index);
      if (tile.group != 0 || tile.k_tile != 0) continue;
      for_each_halo(params, tile, [&](const TapGroup& taps, int c_block) {
        if (c_block != 0) return;
        if (kernel.config.as<HaloConfig>().staging == HaloStaging::kFloats) {
          return kernel.config.as<HaloConfig>().operands != OperandForm::kTf32
                     ? float_products<16>(problem, kernel, params, tile, taps, products)
                     : float_products<8>(problem, kernel, params, tile, taps, products);
        }
        const HaloParams staged = folds ? counting_pixels(params) : params;
        const std::vector<int64_t> halo = staged_halo(staged, kernel.config.as<HaloConfig>(), tile, taps);
        for (int32_t m = 0; m < params.tile_pixels; ++m) multiply(tile, taps, halo, m);
      });
    }
  };
  const auto pipelines = static_cast<int32_t>(plan.grid * halo_pipelines(kernel.config.as<HaloConfig>().lines));
  for (int32_t i = 0; i < pipelines; ++i) {
    if (kernel.config.as<HaloConfig>().lines) {
      walk_tiles(TileWalk<true>(params, i, pipelines));
    } else {
      walk_tiles(TileWalk<false>(params, i, pipelines));
    }
  }
  return products;
}

// What a kernel that stores lines writes, filter by filter: first byte and number of bytes, by the same steps as its
// epilogue.
std::vector<std::tuple<int64_t, int64_t>> line_stores(const ConvProblem& problem, const KernelEntry& kernel,
                                                      const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const HaloParams params = halo_launch(plan, problem).params;
  const auto bytes_each = static_cast<int32_t>(element_size(problem.dtype));
  std::vector<std::tuple<int64_t, int64_t>> stores;
  auto store = [&](int64_t at, int64_t bytes) {
    if (bytes > 0) stores.emplace_back(at, bytes);
  };
  const auto pipelines = static_cast<int32_t>(plan.grid * halo_pipelines(kernel.config.as<HaloConfig>().lines));
  for (int32_t pipeline = 0; pipeline < pipelines; ++pipeline) {
    std::vector<int32_t> waiting(params.k);  // bytes of each stream
    for (TileWalk<true> walk(params, pipeline, pipelines); walk.more(); walk.next()) {
      const Tile tile(params, walk.index);
      const StreamPart part(params, tile, walk, bytes_each);
      for (int32_t k = 0; k < params.k; ++k) {
        const int64_t at = bytes_each * (tile.n * params.out_n + tile.p * params.out_h + tile.q + k * params.out_k);
        const StreamLines lines(static_cast<uint32_t>(at), part.bytes);
        const int64_t line = at - lines.lead, rest = line + lines.whole * kLineBytes;
        if (!part.begins && lines.lead != waiting[k]) throw py::index_error("not where the last tile ended");
        const int64_t begin = part.begins ? at : line;
        if (lines.whole == 0 && part.begins) throw py::index_error("a run's first tile ends no line");
        for (int64_t i = begin; i < rest; i = i / kLineBytes * kLineBytes + kLineBytes) {
          store(i, kLineBytes - i % kLineBytes);
        }
        if (part.ends) store(rest, lines.rest);
        waiting[k] = lines.rest;
      }
    }
  }
  return stores;
}

// halo_packed_filter() where the input is folded.
std::tuple<std::vector<int64_t>, std::vector<int64_t>> folded_packed_filter(const ConvProblem& problem,
                                                                            const HaloConfig& config,
                                                                            const HaloLaunch& launch) {
  const HaloParams& params = launch.params;
  const Fold& fold = launch.fold;
  const int64_t channels = config.channels, step_size = config.block_k * channels, steps = params.steps_per_filter_tile;
  std::vector<int64_t> expected(params.k_tiles.divisor * steps * step_size, kZero), packed(expected.size(), kNothing);
  int64_t step = 0;
  auto expect = [&](const TapGroup& taps, int32_t c_block) {
    for (int32_t t = 0; t < taps.rows * taps.cols; ++t, ++step) {
      for (int64_t k = 0; k < problem.k; ++k) {
        for (int64_t c = 0; c < channels && c_block * channels + c < fold.channels; ++c) {
          const FoldedChannel& channel = fold.channel[c_block * channels + c];
          const int64_t r = (taps.r0 + t / taps.cols * taps.dr) * problem.stride.h + channel.h - fold.h.lead,
                        s = (taps.s0 + t % taps.cols * taps.ds) * problem.stride.w + channel.w - fold.w.lead;
          if (r < 0 || r >= problem.r || s < 0 || s >= problem.s) continue;
          const int64_t bytes = (k % config.block_k * channels + c) * 2,
                        swizzled = bytes ^ ((bytes >> 7 & (channels / 8 - 1)) << 4);
          const Strides& w = problem.w_strides;
          expected.at((k / config.block_k * steps + step) * step_size + swizzled / 2) =
              k * w.n + channel.c * w.c + r * w.h + s * w.w;
        }
      }
    }
  };
  for_each_halo(params, Tile(params, 0), expect);
  for (int32_t index = 0; index < params.pack.pieces; ++index) {
    const FoldedPackChunk chunk(params, index);
    for (int32_t i = 0; i < 8; ++i) {
      if (packed.at(chunk.at + i) != kNothing) throw py::index_error("packed twice");
      packed.at(chunk.at + i) = chunk.source(params.pack, fold, i);
    }
  }
  return {packed, expected};
}

// Whether so many bytes for what writes the filter to the workspace are nobody else's meanwhile.
bool prepares_in_its_room(const HaloParams& params, const HaloConfig& config, int32_t bytes) {
  const int32_t begin = params.prepare_buffer, end = begin + bytes;
  if (params.prepare != Prepare::kFilter) return end <= params.data_bytes;
  const int32_t halos = params.a_stages * params.a_stage_bytes;  // which are staged
  return begin >= halos && end <= halos + params.b_stages * config.parts_a_stage() * config.n() * config.pixel_bytes();
}

// The packed filter as elements of the filter, kZero or kNothing, by the same steps as the kernel that packs it; empty
// if none is packed. Beside it what it should be, by the order in which tiles use it.
std::tuple<std::vector<int64_t>, std::vector<int64_t>> halo_packed_filter(const ConvProblem& problem,
                                                                          const KernelEntry& kernel,
                                                                          const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const HaloLaunch launch = halo_launch(plan, problem);
  const HaloParams& params = launch.params;
  if (params.filter_direct) return {};
  if (kernel.config.as<HaloConfig>().staging == HaloStaging::kFolded)
    return folded_packed_filter(problem, kernel.config.as<HaloConfig>(), launch);
  const PackParams& pack = params.pack;
  const int64_t channels = int64_t{1} << pack.channels_log2, block_k = int64_t{1} << pack.block_k_log2;
  const int64_t step_size = block_k * channels, all_taps = pack.step_taps.divisor,
                columns = columns_at_once(kernel.config.as<HaloConfig>().filter);
  const int64_t tiles = problem.groups * params.k_tiles.divisor;
  const Strides& w = problem.w_strides;
  const int64_t row_stride = problem.pass == Pass::kDgrad ? w.c : w.n,
                col_stride = problem.pass == Pass::kDgrad ? w.n : w.c;
  std::vector<int64_t> expected(tiles * params.steps_per_filter_tile * step_size, kZero),
      packed(expected.size(), kNothing);
  const int32_t c_blocks = params.c_blocks * static_cast<int32_t>(params.shares.divisor);
  std::vector<int64_t> step_of(c_blocks * all_taps, kNothing), filter_taps(all_taps);
  for (int32_t p = 0; p < params.phase_count; ++p) {
    int64_t step = params.phase[p].first_step;
    for (int32_t c_block = 0; c_block < c_blocks; ++c_block) {
      for (int32_t g = params.phase[p].group_begin; g < params.phase[p].group_end; ++g) {
        const TapGroup& taps = params.group[g];
        for (int32_t t = 0; t < taps.rows * taps.cols; ++t, ++step) {
          const int32_t r = taps.r0 + t / taps.cols * taps.dr, s0 = taps.s0 + t % taps.cols * taps.ds;
          for (int32_t beside = 0; beside < columns; ++beside) {
            const int32_t tap = step_tap(pack, r, s0 + beside);
            step_of.at(c_block * all_taps + tap) = step, filter_taps.at(tap) = filter_tap(pack, r, s0 + beside);
          }
          for (int64_t i = 0; i < tiles * step_size; ++i) {
            const int64_t tile = i / step_size, row = i % step_size / channels, c = i % channels;
            const int64_t k = (tile % params.k_tiles.divisor * block_k + row) / columns, s = s0 + row % columns;
            const int64_t col = c_block * channels +
                                staged_channel(params.raw.phases_log2, pack.channels_log2, static_cast<int32_t>(c));
            const int64_t bytes = (row * channels + c) * 2, swizzled = bytes ^ ((bytes >> 7 & (channels / 8 - 1)) << 4);
            if (k < pack.rows && col < pack.cols && s >= 0 && s < problem.s) {
              expected.at((tile * params.steps_per_filter_tile + step) * step_size + swizzled / 2) =
                  tile / params.k_tiles.divisor * pack.group + k * row_stride + col * col_stride + r * pack.r +
                  s * pack.s;
            }
          }
        }
      }
    }
  }
  const auto segments = static_cast<int32_t>(pack.segments.divisor), size = static_cast<int32_t>(pack.segment.divisor);
  const int32_t pack_bytes = pack_table_bytes(static_cast<int32_t>(all_taps)) + pack.at_once * pack.piece_bytes;
  if (pack.at_once < 1 || !prepares_in_its_room(params, kernel.config.as<HaloConfig>(), pack_bytes))
    throw py::index_error("does not fit");
  if (pack.copied && pack.at_once * segments > kPackCopies * 32 * params.prepare_warps) {
    throw py::index_error("left out");
  }
  if (params.prepare == Prepare::kFilter && params.out_order.units > 0)
    throw py::index_error("blocks meet out of turn");
  for (int32_t index = 0; index < pack.pieces; ++index) {
    const PackPiece piece(pack, index);
    std::vector<int64_t> smem(pack.piece_bytes / 2, kNothing);
    for (int32_t outer = 0; outer < segments; ++outer) {
      const int32_t exist = piece.segment_size(pack, outer), slot = segment_slot(pack, outer);
      const int64_t source = piece.segment_source(pack, outer);
      if (pack.copied && (slot % 8 != 0 || exist % 8 != 0 || (exist > 0 && source % 8 != 0))) {
        throw py::index_error("cannot be copied");
      }
      for (int32_t at = 0; at < std::min(exist, size); ++at) {
        if (smem.at(slot + at) != kNothing) throw py::index_error("read twice");
        smem.at(slot + at) = source + pack_source(pack, at);
        if (pack.copied && pack_source(pack, at) != at) throw py::index_error("not contiguous");
      }
    }
    for (int32_t c = 0; c < static_cast<int32_t>(pack.chunks.divisor); ++c) {
      const PackChunk chunk(pack, piece, c, static_cast<int32_t>(columns));
      const int64_t step = step_of.at(piece.c_block * all_taps + chunk.tap), tap = filter_taps.at(chunk.tap);
      for (int32_t i = 0; i < 8 && step != kNothing; ++i) {
        int64_t& to = packed.at((piece.filter_tile * params.steps_per_filter_tile + step) * step_size + chunk.at + i);
        if (to != kNothing) throw py::index_error("packed twice");
        const bool exists = tap >= 0 && i < chunk.exist(pack, piece);
        to = exists ? smem.at(chunk.slot(pack, i, static_cast<int32_t>(tap))) : kZero;
      }
    }
  }
  return {packed, expected};
}

// Where a staged box has the pixel that lies so many bytes from its start; row -1: in the zeros behind the box.
struct BoxPixel {
  int32_t row, column;
};
BoxPixel box_pixel(const WgradOperand& from, bool pixel_rows, int64_t bytes, int64_t channels) {
  const int64_t image_row = from.pitch * channels * 2;
  const int64_t row = bytes / image_row, column = bytes % image_row / 2;
  return {row < from.box_rows ? static_cast<int32_t>(row) : -1,
          static_cast<int32_t>(pixel_rows ? column : column / channels)};
}

// What a box of a tensor map holds at a coordinate: the element's offset in the tensor, or kZero.
int64_t mapped(const TensorMapSpec& map, const std::array<int64_t, 5>& at, int64_t element_bytes = 2) {
  int64_t offset = map.offset + at[0];
  for (int i = 0; i < 5; ++i) {
    if (at[i] < 0 || at[i] >= static_cast<int64_t>(map.size[i])) return kZero;
    if (i > 0) offset += at[i] * static_cast<int64_t>(map.stride[i - 1]) / element_bytes;
  }
  return offset;
}
// What cuTensorMapEncodeTiled takes of elements of so many bytes, and whether a copy may begin at the column.
void check_copy(const TensorMapSpec& map, int64_t bytes, int64_t column) {
  const int64_t row_bytes = map.box[0] * bytes;
  bool legal = map.offset >= 0 && map.offset * bytes % 16 == 0 && column * bytes % 16 == 0;
  for (const uint64_t size : map.size) legal = legal && size >= 1 && size <= uint64_t{1} << 32;
  for (const uint64_t stride : map.stride) legal = legal && stride % 16 == 0 && stride < uint64_t{1} << 40;
  for (const uint32_t box : map.box) legal = legal && box >= 1 && box <= 256;
  for (const uint32_t step : map.step) legal = legal && step >= 1 && step <= 8;
  legal = legal && map.step[0] == 1 && row_bytes % 16 == 0;
  if (map.swizzle_bytes != 0) legal = legal && row_bytes <= map.swizzle_bytes;
  if (!legal) throw py::index_error("no legal copy");
}

// Elements of the image, each with that of the patches that it comes from or goes to, -1 if with none.
using Moves = std::vector<std::pair<int64_t, int64_t>>;
template <PatchLayout kLayout>
Moves patch_moves(const Patches& patches, int64_t elements) {
  const int64_t vector = patches.vector;
  Moves moves;
  for (int32_t unit = 0; unit < patches.units; ++unit) {
    for (int lane = 0; lane < 32; ++lane) {
      const PatchLane<kLayout> of(patches, unit, lane);
      for (int step = 0; step < kPatchSteps; ++step) {
        const PatchPlace at = of.place(step);
        if (!at.in_image) {
          if (at.in_patches) throw py::index_error("a patch beyond the image");
          continue;
        }
        const bool in_a_row = kLayout == PatchLayout::kRows;
        if (at.image % vector != 0 || (in_a_row && at.patches % vector != 0)) throw py::index_error("not aligned");
        for (int64_t i = 0; i < vector; ++i) {
          const int64_t element = at.patches + i * patches.patches_channel;
          if (at.in_patches && element >= elements) throw py::index_error("beyond the workspace");
          moves.emplace_back(at.image + i, at.in_patches ? element : -1);
        }
      }
    }
  }
  return moves;
}

Moves patch_moves(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  if (const char* reason = offer(kernel, problem, device).why_not) throw py::value_error(reason);
  const Patches patches = make_patches(kernel.config.as<PatchesConfig>(), problem);
  const int64_t elements = patches_bytes(kernel.config.as<PatchesConfig>(), problem) / element_size(problem.dtype);
  return kernel.config.as<PatchesConfig>().layout == PatchLayout::kRows
             ? patch_moves<PatchLayout::kRows>(patches, elements)
             : patch_moves<PatchLayout::kPlanes>(patches, elements);
}

// Of all channels, of what lies in the image.
Products subpixel_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& /*device*/) {
  const SubpixelLaunch launch = make_subpixel(kernel.config.as<SubpixelConfig>(), problem);
  const ConvProblem& inner = launch.inner;
  const int64_t bytes = element_size(problem.dtype);
  if (launch.filter.elements * bytes > launch.bias_offset) throw py::index_error("the filter is in the bias");
  if (launch.filter.elements != inner.k * inner.w_strides.n) throw py::index_error("not the inner filter");
  Products products;
  const int64_t elements = (launch.inner_offset - launch.blocks_offset) / bytes;
  for (const auto& [target, element] : patch_moves<PatchLayout::kRows>(launch.blocks, elements)) {
    if (element < 0) throw py::index_error("outside all blocks");
    const Strides& y = inner.y_strides;
    const int64_t n = element / y.n, p = element % y.n / y.h, q = element % y.h / y.w, filter = element % y.w;
    for (int64_t i = 0; i < inner.w_strides.n; ++i) {
      const int64_t r = i / inner.w_strides.h, s = i % inner.w_strides.h / inner.w_strides.w, c = i % inner.c;
      const int64_t h = p * inner.stride.h - inner.padding.h + r, w = q * inner.stride.w - inner.padding.w + s;
      if (h < 0 || h >= inner.h || w < 0 || w >= inner.w) continue;
      const int64_t place = launch.filter.place(static_cast<int32_t>(filter * inner.w_strides.n + i));
      const Strides& x = inner.x_strides;
      if (place >= 0) products.emplace_back(n * x.n + c * x.c + h * x.h + w * x.w, place, target);
    }
  }
  return products;
}

// All that a plan has TMA do.
void check_copies(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  if (!plan.inner.empty()) {
    const InnerPlan& inner = plan.inner.front();
    return check_copies(inner.problem, *inner.plan.kernel, device);
  }
  if (plan.grid == 0) return;  // nothing is launched
  if (kernel.config.holds<HaloConfig>()) {
    const HaloLaunch launch = halo_launch(plan, problem);
    const int64_t bytes = element_size(launch.operand);
    for (int i = 0; i < launch.in_maps; ++i) check_copy(launch.in_map[i], element_size(launch.in_values), 0);
    const HaloParams& params = launch.params;
    const bool all_split = params.prepare == Prepare::kFilter || params.prepare_warps == plan.block_threads / 32;
    if (params.filter_split.parts > 0 &&
        (params.prepare_warps < 1 || !all_split ||
         !prepares_in_its_room(params, kernel.config.as<HaloConfig>(), params.prepare_warps * kReorderBytes))) {
      throw py::index_error("no room to split");
    }
    if (params.a_stages + params.b_stages + params.raw.stages > kMaxHaloStages) {
      throw py::index_error("no room for the barriers");
    }
    if (kernel.config.as<HaloConfig>().staging == HaloStaging::kTma) {
      const TensorMapSpec& map = launch.in_map[0];
      auto pixels = [&](int i) { return (map.box[i] - 1) / map.step[i] + 1; };  // of a copy, along a dimension
      const int64_t halo = int64_t{params.halo_rows} * params.halo_pitch;
      if (params.loads * pixels(2) * pixels(3) != halo) throw py::index_error("copies are of another halo");
      if (halo * kernel.config.as<HaloConfig>().pixel_bytes() > params.a_stage_bytes)
        throw py::index_error("no room for the halo");
    }
    if (launch.params.filter_direct) check_copy(launch.filter_map, bytes, 0);
    if (launch.planes.size[0] > 0) check_copy(launch.planes, bytes, 0);
    if (launch.out_planes.size[0] > 0) check_copy(launch.out_planes, bytes, 0);
  } else if (kernel.config.holds<WgradConfig>()) {
    const WgradLaunch launch = wgrad_launch(plan, problem);
    if (launch.params.x_copied) check_copy(launch.x_map, 2, 0);
    const bool floats = kernel.config.as<WgradConfig>().staging == WgradStaging::kFloats;
    for (int i = 0; i < launch.y_maps; ++i) check_copy(launch.y_map[i], floats ? 4 : 2, 0);
    if (launch.x_planes.size[0] > 0) check_copy(launch.x_planes, 2, 0);
    if (launch.y_planes.size[0] > 0) check_copy(launch.y_planes, 2, 0);
  }
}

// Of every pixel of a reordered x, the last unit that writes channels of it.
std::vector<int32_t> last_units(const Reorder& order, int64_t images) {
  std::vector<int32_t> last(images * order.pixels.divisor, -1);
  for (int32_t index = 0; index < order.units; ++index) {
    const ReorderUnit unit(order, index);
    for (int32_t i = 0; i < unit.pixels; ++i) last.at(unit.row / order.row + i) = index;
  }
  return last;
}

// Tiles wait for all that is copied, even for what is multiplied by zero, and some not for the last unit.
void check_waits(const WgradParams& params, const std::vector<int32_t>& last) {
  const WgradOperand& x = params.x;
  bool early = false;
  for (uint32_t g = 0; g < params.tap_groups.divisor; ++g) {
    const WgradTapGroup& group = params.tap_group[g];
    for (int32_t t = 0; t < params.tiles; ++t) {
      const WgradTile tile(params, t);
      const int32_t waited = last_x_unit(params, group, tile);
      early = early || waited + 1 < params.x_order.units;
      for (int i = group.part_begin; i < group.part_end; ++i) {
        for (int32_t pixel = 0; pixel < x.box_rows * x.pitch; ++pixel) {
          int32_t image, row;
          x.box_h.divmod(pixel / x.pitch, image, row);
          const int64_t n = tile.n + image, h = tile.p * params.stride_h + params.part[i].dh + row * x.step_h;
          const int64_t w = tile.q * params.stride_w + params.part[i].dw + pixel % x.pitch * x.step_w;
          if (n >= x.n || h < 0 || h >= x.h || w < 0 || w >= x.w) continue;
          if (last.at((n * x.h + h) * x.w + w) > waited) throw py::index_error("not waited for");
        }
      }
    }
  }
  if (!early) throw py::index_error("all tiles wait for all units");
}

// Streaming goes on beside stages, and beside sums and the rows in which a block stores them.
void check_streaming(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  const WgradParams params = wgrad_launch(plan, problem).params;
  if (params.x_order.rounds == 0) throw py::value_error("streams nothing");
  const int64_t rows = params.partials == 1 ? kWgradStoreRows * int64_t{params.store_pitch} : 0;
  const int64_t used =
      std::max(int64_t{params.stages} * params.stage_bytes, kernel.config.as<WgradConfig>().job_bytes() + rows);
  if (params.stream_offset % 1024 != 0) throw py::index_error("not aligned");
  if (used > params.stream_offset) throw py::index_error("over what products use");
  if (params.stream_offset + kReorderStreamBytes > params.data_bytes) throw py::index_error("over barriers");
  if (plan.smem_bytes > device.smem_optin_bytes) throw py::index_error("more than a block has");
  check_waits(params, last_units(params.x_order, params.x.n));
}

// A block of dy's rows as copy_wgrad_rows() and clear_wgrad_margins() leave it: for each pixel the offset of filter
// number `filter` of the block, or kZero. Rows of tile_q pixels.
std::vector<int64_t> copied_rows(const WgradLaunch& launch, const WgradTile& tile, int32_t block, int32_t filter) {
  const WgradParams& params = launch.params;
  std::vector<int64_t> pixels(params.tile_p * params.tile_q, kNothing);
  for_each_y_copy(params, tile, block, [&](int32_t at, int32_t row, int32_t first, int32_t place) {
    const TensorMapSpec& map = launch.y_map[at];
    check_copy(map, 2, tile.q);
    if (at >= launch.y_maps) throw py::index_error("another map");
    for (uint32_t i = 0; i < map.box[3]; ++i) {
      for (int32_t j = 0; j < params.tile_q; ++j) {
        int64_t& pixel = pixels.at((place + i) * params.tile_q + j);
        if (pixel != kNothing) throw py::index_error("copied twice");
        pixel = mapped(map, {tile.q + j, first + filter, 0, row + i, tile.n});
        if (tile.q + j < params.rows.shift[at]) {
          if (!params.rows.shifted || tile.q != 0) throw py::index_error("not cleared");
          pixel = kZero;
        }
      }
    }
  });
  return pixels;
}

// The block of 64 filters that holds this one, and its number there.
struct BlockFilter {
  int32_t block = -1, number = -1;

  BlockFilter(const WgradParams& params, int32_t filter) {
    for (int32_t i = 0; i < static_cast<int32_t>(params.k_jobs.divisor) * params.m_blocks * 64; ++i) {
      if (params.rows.filter(i / 64, i % 64) != filter) continue;
      if (block >= 0) throw py::index_error("a filter twice");
      block = i / 64, number = i % 64;
    }
    if (block < 0) throw py::index_error("no such filter");
  }
};

// Of the accesses that the lanes of a warp make together, of so many values each.
int bank_conflicts(const std::array<std::vector<int32_t>, 32>& places, int values) {
  int most = 1;
  for (size_t i = 0; i < places[0].size(); ++i) {
    for (int first = 0; first < 32; first += 32 / values) {  // 128 bytes are read or written at once
      std::array<int, 32> count{};
      for (int lane = first; lane < first + 32 / values; ++lane) {
        if (i < places[lane].size()) most = std::max(most, ++count[places[lane][i] / values % (32 / values)]);
      }
    }
  }
  return most;
}

// WgradStaging::kFloats: dy of the 16 pixels of a step, as its consumers load them for filter number `filter` of a
// block; the element's offset, or kZero.
std::array<int64_t, 16> float_pixels(const WgradLaunch& launch, const WgradTile& tile, const WgradStep& step,
                                     int32_t block, int32_t filter) {
  const WgradParams& params = launch.params;
  const TensorMapSpec& map = launch.y_map[0];
  const WgradFloatsTile floats(params, tile);
  const int32_t pitch = params.floats.pitch;
  if (params.y_offset + params.m_blocks * params.y_block_bytes > params.stage_bytes) {
    throw py::index_error("beyond the stage");
  }
  std::array<std::vector<int32_t>, 32> pairs;
  for (int32_t lane = 0; lane < 32; ++lane) {
    for (int32_t i = 0; i < 8; i += 2) {
      pairs[lane].push_back(fragment_place(params.floats, lane, 0) + fragment_place(params.floats, 0, i));
    }
  }
  if (bank_conflicts(pairs, 2) > 1) throw py::index_error("bank conflicts");
  std::array<int64_t, 16> pixels;
  pixels.fill(kNothing);
  for (int32_t thread = 0; thread < 128; ++thread) {
    for (int32_t i = 0; i < 8; ++i) {
      if (fragment_filter(thread, i) != filter) continue;
      int64_t& pixel = pixels.at(fragment_pixel(thread, i));
      if (pixel != kNothing) throw py::index_error("loaded twice");
      pixel = kZero;
      if (fragment_pixel(thread, i) >= floats.pixels(step)) continue;
      const int32_t place =
          floats.place(step) + fragment_place(params.floats, thread, 0) + fragment_place(params.floats, 0, i);
      if (params.floats.copy_pixels == 0 && place >= 64 * pitch) throw py::index_error("not copied");
      const int32_t copy = place / (64 * pitch), row = place / pitch % 64, at = floats.copy(copy) + place % pitch;
      if (4 * place >= params.y_box_bytes || row != filter) throw py::index_error("not copied");
      if (floats.copy(copy) % 4 != 0) throw py::index_error("no legal copy");
      pixel = mapped(map, {at, block * 64 + row, 0, tile.n, 0}, 4);
    }
  }
  return pixels;
}

// As the sm_90a weight gradient forms them: both operands' pixels by their place in a stage. `product`: of parts.
Products wgrad_products(const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device, int32_t filter,
                        int32_t product) {
  const WgradLaunch launch = wgrad_launch(plan_of(kernel, problem, device), problem);
  const WgradParams& params = launch.params;
  const WgradOperand &x = params.x, &y = params.y;
  const int64_t channels = kernel.config.as<WgradConfig>().channels;
  const bool x_pixels = x_has_pixel_rows(kernel.config.as<WgradConfig>().staging),
             y_pixels = y_has_pixel_rows(kernel.config.as<WgradConfig>().staging);
  // Rows of dy: of one filter, whose plane is where `target` counts from, and whose x lies further left.
  const bool rows = kernel.config.as<WgradConfig>().staging == WgradStaging::kTmaRows;
  const bool floats = kernel.config.as<WgradConfig>().staging == WgradStaging::kFloats,
             folds = params.x_fold.pixels > 0;
  const BlockFilter at(params, filter);
  const int32_t back = rows ? params.rows.shift[params.rows.filter_phase(at.block) << params.rows.row_log2] : 0;
  if (product >= split_products(params.parts)) throw py::index_error("no such product");
  const bool splits = params.x_split.parts > 0;
  const SplitProduct parts(params.parts, product);
  const Operand operand = operand_of(kernel.config.as<WgradConfig>().operands);
  std::vector<int64_t> copied;
  std::array<int64_t, 16> fragment{};
  Products products;
  auto target_of = [&](const WgradTile& tile, int64_t y_bytes) {
    if (rows) {
      const int64_t row = params.tile_q * 128, column = y_bytes % row / 2;
      if (column >= params.tile_q) throw py::index_error("another row");
      const int64_t target = copied.at(y_bytes / row * params.tile_q + column);
      if (target == kNothing) throw py::index_error("nothing staged");
      return target == kZero ? kZero : target - filter * y.c_stride;
    }
    const BoxPixel out = box_pixel(y, y_pixels, y_bytes, 64);
    if (out.row < 0) return kZero;
    int32_t y_image, y_row;
    y.box_h.divmod(out.row, y_image, y_row);
    const int64_t n = tile.n + y_image, h = tile.p + y_row, w = tile.q + out.column;
    if (n >= y.n || h >= y.h || w >= y.w) return kZero;
    if (splits) {
      const int64_t offset = mapped(launch.y_map[0], {0, parts.second * params.groups, w, h, n});
      return split_element(output_side(problem), problem.groups, operand, params.parts, parts.second, offset);
    }
    return in_planes(params.y_order, n * y.n_stride + h * y.h_stride + w * y.w_stride);
  };
  auto multiply = [&](const WgradTapGroup& group, int64_t first_c, const WgradTile& tile, const WgradStep& step,
                      int32_t i) {
    // A step is two groups of eight rows, or 16 pixels of one row.
    const int64_t x_bytes = step.x * 16 + (x_pixels ? 2 * i : i / 8 * params.x_group_pitch + i % 8 * channels * 2);
    const int64_t y_bytes = step.y * 16 + (y_pixels ? 2 * i : i / 8 * params.y_group_pitch + i % 8 * 128);
    const int32_t n = tile.n, p = tile.p, q = tile.q;
    const int64_t target = floats ? fragment.at(i) : target_of(tile, y_bytes);
    if (target == kZero) return;
    for (int u = group.unit_begin; u < group.unit_end; ++u) {
      const WgradUnit& unit = params.unit[u];
      for (int b = 0; b < kMaxWgradBlocks; ++b) {
        if (unit.c_block[b] < 0) continue;
        const int64_t block_at = (unit.start + b * unit.step) * 16;
        const WgradPart& part = params.part[group.part_begin + block_at / params.x_part_bytes];
        const int64_t in_part = block_at % params.x_part_bytes + x_bytes - back * channels * 2;
        if (in_part < 0 || in_part >= params.x_part_bytes || part.c_block != unit.c_block[b])
          throw py::index_error("another part");
        const BoxPixel in = box_pixel(x, x_pixels, in_part, channels);
        if (in.row < 0) continue;
        int32_t x_image, x_row;
        x.box_h.divmod(in.row, x_image, x_row);
        const int64_t h = p * params.stride_h + part.dh + x_row * x.step_h;
        const int64_t w = q * params.stride_w + part.dw + in.column * x.step_w;
        if (n + x_image >= x.n || h < 0 || h >= x.h || w < 0 || w >= x.w) continue;
        const int64_t source = (n + x_image) * x.n_stride + h * x.h_stride + w * x.w_stride;
        const int64_t begin = first_c + unit.c_block[b] * channels, end = std::min<int64_t>(begin + channels, params.c);
        if (folds) {
          auto filter = [&](int32_t c) { return weight_element(params, 0, unit.r[b], unit.s[b], c); };
          folded_products(problem, params.x_fold.fold, folded_pixel(source / params.x_fold.row, x.w, x.h),
                          static_cast<int32_t>(begin), static_cast<int32_t>(end), filter, target, products);
          continue;
        }
        for (int64_t c = begin; c < end; ++c) {
          const int64_t filter = weight_element(params, 0, unit.r[b], unit.s[b], static_cast<int32_t>(c));
          const std::array<int64_t, 5> at{c, parts.first * params.groups, w, h, n + x_image};
          products.emplace_back(splits ? split_element(input_side(problem), problem.groups, operand, params.parts,
                                                       parts.first, mapped(launch.x_map, at))
                                       : in_planes(params.x_order, source + c * x.c_stride),
                                filter, target);
        }
      }
    }
  };
  for (uint32_t c_job = 0; c_job < params.c_jobs.divisor; ++c_job) {
    for (uint32_t g = 0; g < params.tap_groups.divisor; ++g) {
      for (int32_t t = 0; t < params.tiles; ++t) {
        const WgradTile tile(params, t);
        if (rows) copied = copied_rows(launch, tile, at.block, at.number);
        for (int32_t step = 0; step < 2 * params.step_pairs; ++step) {
          if (floats) {
            fragment = float_pixels(launch, tile, params.step[step], at.block, at.number);
            for (int64_t& pixel : fragment) pixel = pixel == kZero ? kZero : pixel - filter * problem.y_strides.c;
          }
          for (int32_t i = 0; i < 16; ++i) {
            multiply(params.tap_group[g], c_job * params.c_blocks_per_job * channels, tile, params.step[step], i);
          }
        }
      }
    }
  }
  return products;
}

// What a split writes, by the same steps as the kernels: for each element of the workspace, the element of the tensor
// (none for zeros) and the part; none if nothing. Beside it the most accesses of shared memory that wait for each
// other.
using SplitElement = std::optional<std::tuple<std::optional<int64_t>, int>>;
constexpr int64_t kSplitZero = std::numeric_limits<int64_t>::max(), kSplitNothing = std::numeric_limits<int64_t>::min();

template <Operand kOperand>
std::tuple<std::vector<SplitElement>, int> simulate_split(const Split& split, int64_t bytes) {
  constexpr int kChunk = split_chunk(kOperand);
  std::vector<SplitElement> workspace(bytes / kSplitChunkBytes * kChunk);
  int conflicts = 1;
  for (int32_t index = 0; index < split.units; ++index) {
    const auto unit = SplitUnit::at<kOperand>(split, index);
    const bool along_channels = split.read == SplitRead::kChannels;
    std::vector<int64_t> smem(kSplitBytes / 4, kSplitNothing);
    std::array<std::vector<int32_t>, 32> copied, loaded;
    auto copy = [&]<int kVector>(std::integral_constant<int, kVector>) {
      const SplitReader<kVector> reader{split, unit};
      for (int32_t lane = 0; lane < 32; ++lane) {
        auto f = [&](int32_t place, int64_t from, bool exists) {
          if (place % kVector != 0 || (exists && from % kVector != 0)) throw py::index_error("not aligned");
          for (int i = 0; i < kVector; ++i) {
            if (smem.at(place + i) != kSplitNothing) throw py::index_error("copied over");
            smem[place + i] = exists ? from + i : kSplitZero;
          }
          copied[lane].push_back(place);
        };
        along_channels ? reader.along_channels(lane, f) : reader.along_rows(lane, f);
      }
    };
    if (split.vector == 4) copy(std::integral_constant<int, 4>());
    if (split.vector == 2) copy(std::integral_constant<int, 2>());
    if (split.vector == 1) copy(std::integral_constant<int, 1>());
    const SplitWriter<kOperand> writer{split, unit};
    for (int32_t lane = 0; lane < 32; ++lane) {
      writer.along_rows(lane, [&](int32_t row, int32_t channel, int64_t to) {
        for (int i = 0; i < kChunk; ++i) {
          const int32_t place =
              along_channels ? split_channel_place(split, channel + i, row) : split_row_place(split, channel + i, row);
          const int64_t from = smem.at(place);
          if (from == kSplitNothing) throw py::index_error("not copied");
          if (!along_channels || place % 4 == 0) loaded[lane].push_back(place);
          for (int part = 0; part < split.parts; ++part) {
            SplitElement& element = workspace.at((to + part * split.part_pitch) * kChunk + i);
            if (element) throw py::index_error("written twice");
            element = {from == kSplitZero ? std::nullopt : std::optional(from), part};
          }
        }
      });
    }
    conflicts =
        std::max({conflicts, bank_conflicts(copied, split.vector), bank_conflicts(loaded, along_channels ? 4 : 1)});
  }
  return {workspace, conflicts};
}

auto simulate_split(Split split, int64_t bytes, Operand operand, int32_t unit_rows) {
  if (unit_rows != 0) {  // as of larger tensors
    split.units = split.units / ((split.row_count + split.unit_rows - 1) / split.unit_rows);
    split.units *= (split.row_count + unit_rows - 1) / unit_rows;
    split.unit_rows = unit_rows;
  }
  switch (operand) {
    case Operand::kBf16: return simulate_split<Operand::kBf16>(split, bytes);
    case Operand::kFp16: return simulate_split<Operand::kFp16>(split, bytes);
    default: return simulate_split<Operand::kTf32>(split, bytes);
  }
}

Operand parse_operand(const std::string& name) {
  if (name != "tf32" && name != "bf16" && name != "fp16") throw py::value_error("unknown operand: " + name);
  return name == "tf32" ? Operand::kTf32 : name == "bf16" ? Operand::kBf16 : Operand::kFp16;
}

// Bits of the parts of floats, which are given as theirs; eight at a time.
std::vector<std::vector<uint32_t>> split_parts(const std::vector<uint32_t>& values, int parts) {
  std::vector<std::vector<uint32_t>> out(parts);
  for (size_t first = 0; first + 8 <= values.size(); first += 8) {
    float chunk[8];
    for (int i = 0; i < 8; ++i) chunk[i] = std::bit_cast<float>(values[first + i]);
    SplitParts split(chunk);
    for (int part = 0; part < parts; ++part) {
      uint32_t words[4];
      part == parts - 1 ? split.last(words) : split.next(part == 0, split_scale(parts), words);
      for (const uint32_t word : words) out[part].push_back(word & 0xffff), out[part].push_back(word >> 16);
    }
  }
  return out;
}

// The same of fp16, of values that are first multiplied by `scale`.
std::vector<std::vector<uint32_t>> half_parts(const std::vector<float>& values, float scale, int parts) {
  std::vector<std::vector<uint32_t>> out(parts);
  for (size_t first = 0; first + 8 <= values.size(); first += 8) {
    float chunk[8];
    std::copy_n(values.begin() + first, 8, chunk);
    HalfParts split(chunk, scale);
    for (int part = 0; part < parts; ++part) {
      uint32_t words[4];
      part == parts - 1 ? split.last(words) : split.next(split_scale(parts, Operand::kFp16), words);
      for (const uint32_t word : words) out[part].push_back(word & 0xffff), out[part].push_back(word >> 16);
    }
  }
  return out;
}

// A TensorRange: the largest and the least, bits; how many numbers, how many small ones.
using Measured = std::tuple<uint32_t, uint32_t, uint64_t, uint64_t>;

TensorRange from_tuple(const Measured& measured) {
  const auto [most, least, numbers, small] = measured;
  return {most, least, numbers, small};
}

// A tensor map by which float32 values are read: sizes and strides, of elements, and what the workspace holds where it
// begins; nothing if it is the tensor that is read.
using OperandMap = std::tuple<std::vector<uint64_t>, std::vector<uint64_t>, std::vector<SplitElement>>;

OperandMap operand_map(const TensorMapSpec& map, const Split& split, Operand operand, int64_t bytes) {
  const uint64_t element = split.parts > 0 ? kSplitChunkBytes / split_chunk(operand) : sizeof(float);
  std::vector<uint64_t> strides{1};
  for (const uint64_t stride : map.stride) strides.push_back(stride / element);
  if (map.offset != 0) throw py::index_error("begins elsewhere");
  std::vector<SplitElement> written;
  if (split.parts > 0) written = std::get<0>(simulate_split(split, bytes, operand, 0));
  return {{std::begin(map.size), std::end(map.size)}, strides, written};
}

// By the tensor that they hold values of. What a split writes has to lie where the plan has room for it.
std::map<std::string, OperandMap> operand_maps(const ConvProblem& problem, const KernelEntry& kernel,
                                               const DeviceSpec& device) {
  const Plan plan = plan_of(kernel, problem, device);
  std::map<std::string, OperandMap> maps;
  if (kernel.config.holds<HaloConfig>()) {
    const HaloLaunch launch = halo_launch(plan, problem);
    const Operand operand = operand_of(kernel.config.as<HaloConfig>().operands);
    if (launch.in_offset > launch.out_offset || launch.out_offset > plan.workspace_bytes) {
      throw py::index_error("beyond the workspace");
    }
    maps["w"] = operand_map(launch.filter_map, launch.params.filter_split, operand, launch.in_offset);
    maps[problem.pass == Pass::kDgrad ? "y" : "x"] =
        operand_map(launch.in_map[0], launch.params.in_split, operand, launch.out_offset - launch.in_offset);
  } else {
    const WgradLaunch launch = wgrad_launch(plan, problem);
    const Operand operand = operand_of(kernel.config.as<WgradConfig>().operands);
    const int64_t y_offset = launch.y_offset, end = launch.done_offset;
    if (y_offset > end || end > launch.partial_offset || launch.partial_offset > plan.workspace_bytes) {
      throw py::index_error("beyond the workspace");
    }
    maps["x"] = operand_map(launch.x_map, launch.params.x_split, operand, y_offset);
    maps["y"] = operand_map(launch.y_map[0], launch.params.y_split, operand, end - y_offset);
  }
  return maps;
}

// A function of a problem's plan; ValueError with the kernel's reason if it has none.
template <typename R>
auto unless_refused(R (*of_plan)(const ConvProblem&, const KernelEntry&, const DeviceSpec&)) {
  return [of_plan](const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device) {
    if (const char* reason = offer(kernel, problem, device).why_not) throw py::value_error(reason);
    return of_plan(problem, kernel, device);
  };
}

void bind_index_maths(py::module_& m) {
  m.def(
      "products",
      [](const ConvProblem& problem, const std::string& method) {
        if (method == "im2col") return im2col_products(problem);
        if (method == "direct" || method == "direct_channels_inner") {
          return direct_products(problem, method == "direct_channels_inner");
        }
        throw py::value_error("unknown method: " + method);
      },
      "problem"_a, "method"_a);
  m.def("depthwise_any_products", &depthwise_any_products, "problem"_a, "kernel"_a, "device"_a,
        "tiling"_a = std::nullopt);
  m.def("grouped_pixels", &grouped_pixels, "width"_a, "step"_a, "first"_a, "count"_a);
  m.def("grouped_products", &grouped_products, "problem"_a, "kernel"_a, "device"_a, "group"_a = 0,
        "tiling"_a = std::nullopt);
  m.def("grouped_wgrad_chain", unless_refused(grouped_wgrad_chain), "problem"_a, "kernel"_a, "device"_a);
  m.def("grouped_wgrad_products", &grouped_wgrad_products, "problem"_a, "kernel"_a, "device"_a, "group"_a = 0,
        "tiling"_a = std::nullopt);
  m.def("mma_chunk", &mma_chunk, "element"_a, "along_rows"_a, "is_b"_a, "line"_a, "chunk"_a, "length"_a);
  m.def("stem_products", &stem_products, "problem"_a, "kernel"_a, "device"_a, "tiling"_a = std::nullopt);
  m.def("quads_products", &quads_products, "problem"_a, "kernel"_a, "device"_a, "tiling"_a = std::nullopt);
  m.def("quads_accesses", &quads_accesses, "problem"_a, "kernel"_a, "device"_a);
  m.def("ready_quads_products", &ready_quads_products, "problem"_a, "kernel"_a, "device"_a);
  m.def("embed_products", &embed_products, "problem"_a, "kernel"_a, "device"_a);
  m.def("stem_neighbours", &stem_neighbours, "problem"_a, "kernel"_a, "device"_a);
  m.def("run_column", &run_column, "run"_a, "product"_a, "column"_a);
  m.def("stem_wgrad_products", &stem_wgrad_products, "problem"_a, "kernel"_a, "device"_a, "tiling"_a = std::nullopt);
  m.def("depthwise_products", unless_refused(depthwise_products), "problem"_a, "kernel"_a, "device"_a);
  m.def("depthwise_banded_products", unless_refused(depthwise_banded_products), "problem"_a, "kernel"_a, "device"_a);
  m.def("depthwise_cross_products", unless_refused(depthwise_cross_products), "problem"_a, "kernel"_a, "device"_a);
  m.def("depthwise_pairs_products", unless_refused(depthwise_pairs_products), "problem"_a, "kernel"_a, "device"_a);
  m.def("depthwise_diagonal_products", unless_refused(depthwise_diagonal_products), "problem"_a, "kernel"_a,
        "device"_a);
  m.def("halo_products", unless_refused(halo_products), "problem"_a, "kernel"_a, "device"_a);
  m.def("halo_tiles", unless_refused(halo_tiles), "problem"_a, "kernel"_a, "device"_a);
  m.def("halo_copy_warps", unless_refused(halo_copy_warps), "problem"_a, "kernel"_a, "device"_a);
  m.def("halo_blocks", unless_refused(halo_blocks), "problem"_a, "kernel"_a, "device"_a);
  m.def("line_stores", unless_refused(line_stores), "problem"_a, "kernel"_a, "device"_a);
  m.def(
      "reorder",
      [](std::array<int64_t, 4> size, int32_t align, bool to_planes) {
        const auto [moved, expected, order] = reorder(size, align, to_planes);
        const char* const copies[] = {"boxes", "runs", "values"};
        return std::tuple{moved, expected, order.vector, copies[static_cast<int>(order.copy)]};
      },
      "size"_a, "align"_a, "to_planes"_a);
  m.def(
      "pixel_rows",
      [](int vector, int together, int block_k, int element_bytes, bool narrow, int across_log2) {
        const Turned turned = pixel_rows(vector, together, block_k, element_bytes, narrow, across_log2);
        return std::tuple{turned.stored, turned.turns};
      },
      "vector"_a, "together"_a, "block_k"_a, "element_bytes"_a, "narrow"_a, "across_log2"_a);
  m.def(
      "channel_rows",
      [](int block_k, int element_bytes) {
        const Turned turned = channel_rows(block_k, element_bytes);
        return std::tuple{turned.stored, turned.turns};
      },
      "block_k"_a, "element_bytes"_a);
  m.def("stream_turns", &stream_turns, "plane"_a, "element_bytes"_a);
  m.def("halo_packed_filter", unless_refused(halo_packed_filter), "problem"_a, "kernel"_a, "device"_a);
  m.def("patch_moves", py::overload_cast<const ConvProblem&, const KernelEntry&, const DeviceSpec&>(&patch_moves),
        "problem"_a, "kernel"_a, "device"_a);
  m.def("subpixel_products", unless_refused(subpixel_products), "problem"_a, "kernel"_a, "device"_a);
  m.def("check_copies", &check_copies, "problem"_a, "kernel"_a, "device"_a);
  m.def("check_streaming", &check_streaming, "problem"_a, "kernel"_a, "device"_a);
  m.def(
      "wgrad_products",
      [](const ConvProblem& problem, const KernelEntry& kernel, const DeviceSpec& device, int32_t filter,
         int32_t product) {
        if (const char* reason = offer(kernel, problem, device).why_not) throw py::value_error(reason);
        return wgrad_products(problem, kernel, device, filter, product);
      },
      "problem"_a, "kernel"_a, "device"_a, "filter"_a = 0, "product"_a = 0);
  m.def(
      "split_products",
      [](int32_t parts) {
        std::vector<std::pair<int32_t, int32_t>> products;
        for (int32_t i = 0; i < split_products(parts); ++i) {
          const SplitProduct product(parts, i);
          products.emplace_back(product.first, product.second);
        }
        return products;
      },
      "parts"_a);
  py::class_<FastDivmod>(m, "FastDivmod")
      .def(py::init<int64_t>(), "divisor"_a)
      .def("div", &FastDivmod::div, "dividend"_a)
      .def(
          "divmod",
          [](const FastDivmod& division, int32_t dividend) {
            int32_t quotient, remainder;
            division.divmod(dividend, quotient, remainder);
            return std::tuple{quotient, remainder};
          },
          "dividend"_a);
}

void bind_split(py::module_& m) {
  auto side_of = [](std::array<int64_t, 4> size, const Quad& strides, int32_t align) {
    return Side{size[0], size[1], size[2], size[3], from_quad(strides), align};
  };
  m.def(
      "split",
      [side_of](std::array<int64_t, 4> size, const Quad& strides, int64_t groups, int32_t align,
                const std::string& name, int parts, int32_t unit_rows) {
        const Operand operand = parse_operand(name);
        const Side side = side_of(size, strides, align);
        return simulate_split(make_split(side, groups, operand, parts), split_bytes(side, groups, operand, parts),
                              operand, unit_rows);
      },
      "size"_a, "strides"_a, "groups"_a, "align"_a, "operand"_a, "parts"_a, "unit_rows"_a = 0);
  m.def(
      "split_plan",
      [side_of](std::array<int64_t, 4> size, const Quad& strides, int64_t groups, int32_t align,
                const std::string& operand, int parts) {
        const Split split = make_split(side_of(size, strides, align), groups, parse_operand(operand), parts);
        const char* read = split.read == SplitRead::kChannels ? "channels" : "rows";
        return std::tuple{read, split.vector, 1 << split.channels_log2, split.unit_rows, split.units};
      },
      "size"_a, "strides"_a, "groups"_a, "align"_a, "operand"_a, "parts"_a);
  m.def(
      "split_strides",
      [side_of](std::array<int64_t, 4> size, int64_t groups, const std::string& operand, int parts) {
        return to_quad(split_side(side_of(size, {}, 4), groups, parse_operand(operand), parts).stride);
      },
      "size"_a, "groups"_a, "operand"_a, "parts"_a);
  m.def(
      "filter_split",
      [](const ConvProblem& problem, const std::string& name, int parts, int32_t unit_rows) {
        const Operand operand = parse_operand(name);
        return simulate_split(make_filter_split(problem, operand, parts), filter_split_bytes(problem, operand, parts),
                              operand, unit_rows);
      },
      "problem"_a, "operand"_a, "parts"_a, "unit_rows"_a = 0);
  m.def("operand_maps", unless_refused(operand_maps), "problem"_a, "kernel"_a, "device"_a);
  m.def("split_parts", &split_parts, "values"_a, "parts"_a);
  m.def("half_parts", &half_parts, "values"_a, "scale"_a, "parts"_a);
  m.def(
      "measure",
      [](const std::vector<float>& values) -> Measured {
        const TensorRange range = measure(values);
        return {range.most, range.least, range.numbers, range.small};
      },
      "values"_a);
  m.def(
      "operand_range",
      [](const Measured& first, const Measured& second, int parts) {
        const OperandRange range = operand_range(from_tuple(first), from_tuple(second), widest_range(parts));
        return std::tuple{range.fits != 0, std::array{range.scale[0], range.scale[1]},
                          std::array{range.unscale[0], range.unscale[1]}};
      },
      "first"_a, "second"_a, py::kw_only(), "parts"_a = 1);
  m.def(
      "to_tf32",
      [](const std::vector<uint32_t>& values) {
        std::vector<uint32_t> out;
        for (const uint32_t value : values) out.push_back(to_tf32(std::bit_cast<float>(value)));
        return out;
      },
      "values"_a);
}

}  // namespace

PYBIND11_MODULE(_fastconv_native, m) {
  bind_problem(m);
  bind_planner(m);
  bind_index_maths(m);
  bind_split(m);
}

}  // namespace fastconv
