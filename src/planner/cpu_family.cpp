#include "fastconv/planner/cpu_family.h"

#include <algorithm>

#include "fastconv/cpu/kernels.h"

namespace fastconv {
namespace {

constexpr double kMultiplyAddsPerUs = 3e4;  // a thread, float32; measured on a Zen 5 with both kernels' inner loops
constexpr double kPackedPerUs = 1e3;        // elements of the im2col matrix packed by a thread

double matrix_elements(const ConvProblem& problem) {
  // im2col holds the window's input channels for each output pixel; dgrad's holds its output channels for each input
  // pixel, of which each stride phase sees a share.
  const bool dgrad = problem.pass == Pass::kDgrad;
  const double pixels = dgrad ? static_cast<double>(problem.h) * static_cast<double>(problem.w) /
                                    static_cast<double>(problem.stride.h * problem.stride.w)
                              : static_cast<double>(problem.p()) * static_cast<double>(problem.q());
  return static_cast<double>(problem.n) * pixels * static_cast<double>(problem.r * problem.s) *
         static_cast<double>(dgrad ? problem.k : problem.c);
}

Plan plan_with(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device, double rows) {
  const double elements = matrix_elements(problem);
  Plan plan;
  plan.kernel = &entry;
  plan.cost_us = elements * (1 / kPackedPerUs + rows / kMultiplyAddsPerUs) / std::max(1, device.threads);
  return plan;
}

double rows_per_group(const ConvProblem& problem) {
  return static_cast<double>(problem.pass == Pass::kDgrad ? problem.c_per_group() : problem.k_per_group());
}

const char* gemm_why_not(const KernelEntry&, const ConvProblem&, const DeviceSpec& device) {
  return device.is_cuda ? "computes on the CPU" : nullptr;
}

Plan gemm_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  // Register blocks are filled up to 8 rows and, where taps are the columns, to 48 of those.
  const double rows = rows_per_group(problem);
  double padded_rows = std::max(8.0, rows);
  if (problem.pass == Pass::kWgrad) {
    const auto taps = static_cast<double>(problem.c_per_group() * problem.r * problem.s);
    padded_rows *= std::max(1.0, 48 / std::max(1.0, taps));
  }
  return plan_with(entry, problem, device, padded_rows);
}

const char* depthwise_why_not(const KernelEntry&, const ConvProblem& problem, const DeviceSpec& device) {
  if (device.is_cuda) return "computes on the CPU";
  if (std::max(problem.c_per_group(), problem.k_per_group()) > kDepthwiseMaxChannels) {
    return "for groups of at most 16 channels";
  }
  return nullptr;
}

Plan depthwise_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  // Each multiply-add loads an operand of its own, where the register block of a matrix product reuses them.
  constexpr double kLoadBound = 3;
  return plan_with(entry, problem, device, kLoadBound * rows_per_group(problem));
}

constexpr TileShape kGemmTile = {256, 240, 128};
constexpr TileShape kDepthwiseTile = {1, 256, 64};

constexpr KernelEntry kKernels[] = {
    {"cpu_gemm_fprop", Pass::kFprop, false, kGemmTile, gemm_why_not, gemm_plan},
    {"cpu_gemm_dgrad", Pass::kDgrad, false, kGemmTile, gemm_why_not, gemm_plan},
    {"cpu_gemm_wgrad", Pass::kWgrad, false, kGemmTile, gemm_why_not, gemm_plan},
    {"cpu_depthwise_fprop", Pass::kFprop, false, kDepthwiseTile, depthwise_why_not, depthwise_plan},
    {"cpu_depthwise_dgrad", Pass::kDgrad, false, kDepthwiseTile, depthwise_why_not, depthwise_plan},
    {"cpu_depthwise_wgrad", Pass::kWgrad, false, kDepthwiseTile, depthwise_why_not, depthwise_plan},
};

}  // namespace

std::span<const KernelEntry> cpu_kernels() { return kKernels; }

}  // namespace fastconv
