// A family of one kernel, and all that it takes to be chosen: this file and a line of families.def.
// docs/add-a-kernel.md goes through it.
#include <ostream>

#include "fastconv/planner/registry.h"

namespace fastconv {
namespace {

struct ExampleConfig {
  int64_t most_pixels;
};

struct ExampleTiling {
  int64_t pixels;
};

class Example final : public Family {
 public:
  Example() : Family("example") {}

  void add_kernels(std::vector<KernelEntry>& table) const override {
    table.push_back({"example_fprop", Pass::kFprop, this, kF64, kCpu, {1, 1, 1}, ExampleConfig{64}});
  }

  Offer plan(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec&) const override {
    const int64_t pixels = problem.n * problem.p() * problem.q();
    if (pixels > kernel.config.as<ExampleConfig>().most_pixels) return "is for up to 64 pixels";
    Plan plan;
    plan.kernel = &kernel;
    plan.tiling = ExampleTiling{pixels};
    plan.cost_us = 0;
    return plan;
  }

  void describe(std::ostream& out, const Plan& plan) const override {
    out << " " << plan.tiling.as<ExampleTiling>().pixels << " pixels";
  }
};

}  // namespace

const Family& example_family() {
  static const Example family;
  return family;
}

}  // namespace fastconv
