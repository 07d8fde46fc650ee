// Functions of the CPU: a matrix product of columns, or sums of a few channels.
#include <algorithm>

#include "fastconv/cpu/conv_cpu.h"
#include "fastconv/planner/cost.h"
#include "fastconv/planner/registry.h"

namespace fastconv::cost {
#include "fastconv/families/cpu/costs.def"
}

namespace fastconv {
namespace {

using namespace cost::cpu;

constexpr int64_t kMaxNarrowChannels = 16;  // in a group, of x or of y

struct Work {
  double products, packed;
};
Work work(const ConvProblem& problem) {
  const double positions = static_cast<double>(problem.n * problem.p()) * static_cast<double>(problem.q());
  const double taps = static_cast<double>(problem.c_per_group() * problem.r * problem.s);
  const bool pointwise = problem.r == 1 && problem.s == 1 && problem.stride == Pair{1, 1};
  return {positions * taps * static_cast<double>(problem.k),
          pointwise ? 0 : positions * taps * static_cast<double>(problem.groups)};
}

Plan plan_of(const KernelEntry& entry, const DeviceSpec& device, double work_us, double own_us) {
  Plan plan;
  plan.kernel = &entry;
  plan.cost_us = work_us / std::max(1, device.threads) + own_us;
  return plan;
}

Plan gemm_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const auto [products, packed] = work(problem);
  const auto least =
      static_cast<double>(std::min(problem.c_per_group() * problem.r * problem.s, problem.k_per_group()));
  const double fill = std::max(1.0, kLeast / std::max(1.0, least));
  return plan_of(entry, device, products * fill / kProductsPerUs + packed / kPackedPerUs,
                 kProductUs * static_cast<double>(problem.groups));
}

Plan depthwise_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const auto columns = static_cast<double>(problem.q());
  const bool one_channel = problem.c_per_group() == 1 && problem.k_per_group() == 1 && problem.x_strides.c == 1;
  const double fill = one_channel ? 1 : static_cast<double>((problem.q() + 7) / 8 * 8) / std::max(1.0, columns);
  const double pixels = static_cast<double>(problem.n * problem.c) * static_cast<double>(problem.h * problem.w);
  return plan_of(entry, device, work(problem).products * fill / kVectorisedPerUs + pixels / kPackedPerUs, 0);
}

constexpr TileShape kGemmTile = {256, 512, 256};
constexpr TileShape kDepthwiseTile = {1, 256, 64};

class Cpu final : public Family {
 public:
  Cpu() : Family("cpu") {}

  void add_kernels(std::vector<KernelEntry>& table) const override {
    auto add = [&](const char* name, Pass pass, const TileShape& tile, CpuMethod method) {
      KernelEntry entry{name, pass, this, kAllDtypes, kCpu, tile, method};
      entry.any_size = true;
      table.push_back(entry);
    };
    add("cpu_gemm_fprop", Pass::kFprop, kGemmTile, CpuMethod::kGemm);
    add("cpu_gemm_dgrad", Pass::kDgrad, kGemmTile, CpuMethod::kGemm);
    add("cpu_gemm_wgrad", Pass::kWgrad, kGemmTile, CpuMethod::kGemm);
    add("cpu_depthwise_fprop", Pass::kFprop, kDepthwiseTile, CpuMethod::kDepthwise);
    add("cpu_depthwise_dgrad", Pass::kDgrad, kDepthwiseTile, CpuMethod::kDepthwise);
    add("cpu_depthwise_wgrad", Pass::kWgrad, kDepthwiseTile, CpuMethod::kDepthwise);
  }

  Offer plan(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) const override {
    if (kernel.config.as<CpuMethod>() == CpuMethod::kGemm) return gemm_plan(kernel, problem, device);
    if (std::max(problem.c_per_group(), problem.k_per_group()) > kMaxNarrowChannels) {
      return "for groups of at most 16 channels";
    }
    return depthwise_plan(kernel, problem, device);
  }

  void describe(std::ostream&, const Plan&) const override {}
};

}  // namespace

const Family& cpu_family() {
  static const Cpu family;
  return family;
}

}  // namespace fastconv
