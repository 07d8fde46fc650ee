// 1x1 filters: products of matrices as they lie.
#include <ostream>

#include "fastconv/families/pointwise/config.h"
#include "fastconv/families/pointwise/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {
namespace {

class Pointwise final : public Family {
 public:
  Pointwise() : Family("pointwise") {}

  void add_kernels(std::vector<KernelEntry>& table) const override {
    int line = 0;
    auto add = [&](const char* name, Pass pass, int m, int n, unsigned dtypes) {
      const TileShape tile{m, n, kPointwiseDepthBytes / 2};
      table.push_back({name, pass, this, dtypes, kSm80, tile, PointwiseConfig{m, n}, line++});
    };
#define POINTWISE_KERNEL(name, pass, m, n, dtypes) add(#name, Pass::pass, m, n, dtypes);
#include "fastconv/families/pointwise/kernels.def"
#undef POINTWISE_KERNEL
  }

  Offer plan(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) const override {
    return pointwise_plan(kernel, problem, device);
  }

  void describe(std::ostream& out, const Plan& plan) const override {
    const auto& tiling = plan.tiling.as<PointwiseTiling>();
    out << " product of " << tiling.tile.m << "x" << tiling.tile.n << ", stages " << tiling.stages;
  }
};

}  // namespace

const Family& pointwise_family() {
  static const Pointwise family;
  return family;
}

}  // namespace fastconv
