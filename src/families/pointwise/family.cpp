// Products of matrices as they lie: 1x1 filters, and others whose taps move what is read.
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
    auto add = [&](const char* name, Pass pass, unsigned dtypes, const PointwiseConfig& config) {
      const TileShape tile{config.m, config.n, kPointwiseDepthBytes / 2};
      KernelEntry entry{name, pass, this, dtypes, config.wgmma ? kSm90a : kSm75, tile, config, line};
      entry.gated = config.taps && promotes(config.operands);
      entry.scaled_parts = scaled_parts(config.operands);
      table.push_back(entry);
    };
#define POINTWISE_KERNEL(name, pass, m, n, wgmma, dtypes) \
  add(#name, Pass::pass, dtypes, {m, n, false, OperandForm::kHalf, wgmma}), ++line;
#include "fastconv/families/pointwise/kernels.def"
#undef POINTWISE_KERNEL
    line = 0;
#define TAP_KERNEL(name, operands, m, n, dtypes)                                       \
  add("taps_fprop_" #name, Pass::kFprop, dtypes, {m, n, true, OperandForm::operands}); \
  add("taps_dgrad_" #name, Pass::kDgrad, dtypes, {m, n, true, OperandForm::operands}), ++line;
#include "fastconv/families/pointwise/taps.def"
#undef TAP_KERNEL
    line = 0;
#define TAP_WGRAD_KERNEL(name, operands, m, n, dtypes) \
  add("taps_wgrad_" #name, Pass::kWgrad, dtypes, {m, n, true, OperandForm::operands}), ++line;
#include "fastconv/families/pointwise/taps_wgrad.def"
#undef TAP_WGRAD_KERNEL
  }

  Offer plan(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) const override {
    return kernel.config.as<PointwiseConfig>().taps ? tap_plan(kernel, problem, device)
                                                    : pointwise_plan(kernel, problem, device);
  }

  void describe(std::ostream& out, const Plan& plan) const override {
    const auto print = [&](const PointwiseTile& tile, int stages) {
      out << " product of " << tile.m << "x" << tile.n << ", stages " << stages;
    };
    if (plan.tiling.holds<TapTiling>()) {
      const auto& tiling = plan.tiling.as<TapTiling>();
      print(tiling.tile, tiling.stages);
      if (tiling.packed_bytes() > 0) out << ", packed bytes " << tiling.packed_bytes();
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
