// 1x1 filters: products of matrices as they lie.
#include <ostream>

#include "fastconv/families/pointwise/config.h"
#include "fastconv/families/pointwise/plan.h"
#include "fastconv/families/pointwise/taps_plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {
namespace {

class Pointwise final : public Family {
 public:
  Pointwise() : Family("pointwise") {}

  void add_kernels(std::vector<KernelEntry>& table) const override {
    int line = 0;
    auto add = [&](const char* name, Pass pass, int m, int n, unsigned dtypes, TapReads taps) {
      const TileShape tile{m, n, kPointwiseDepthBytes / 2};
      table.push_back({name, pass, this, dtypes, kSm80, tile, PointwiseConfig{m, n, taps}, line++});
    };
#define POINTWISE_KERNEL(name, pass, m, n, dtypes) add(#name, Pass::pass, m, n, dtypes, TapReads::kNone);
#include "fastconv/families/pointwise/kernels.def"
#undef POINTWISE_KERNEL
    line = 0;
#define TAP_KERNEL(name, pass, reads, m, n, dtypes) add(#name, Pass::pass, m, n, dtypes, TapReads::reads);
#include "fastconv/families/pointwise/taps.def"
#undef TAP_KERNEL
  }

  Offer plan(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) const override {
    return kernel.config.as<PointwiseConfig>().taps != TapReads::kNone ? tap_plan(kernel, problem, device)
                                                                       : pointwise_plan(kernel, problem, device);
  }

  void describe(std::ostream& out, const Plan& plan) const override {
    const auto print = [&](const PointwiseTile& tile, int stages) {
      out << " product of " << tile.m << "x" << tile.n << ", stages " << stages;
    };
    if (plan.tiling.holds<TapTiling>()) {
      const auto& tiling = plan.tiling.as<TapTiling>();
      print(tiling.tile, tiling.stages);
    } else {
      const auto& tiling = plan.tiling.as<PointwiseTiling>();
      print(tiling.tile, tiling.stages);
    }
  }
};

}  // namespace

const Family& pointwise_family() {
  static const Pointwise family;
  return family;
}

}  // namespace fastconv
