// Weight gradients on sm_90a: x and dy are staged once for all taps that a block sums up.
#include <ostream>

#include "fastconv/families/wgrad/config.h"
#include "fastconv/families/wgrad/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {
namespace {

class Wgrad final : public Family {
 public:
  Wgrad() : Family("wgrad") {}

  void add_kernels(std::vector<KernelEntry>& table) const override {
    int line = 0;
    auto add = [&](const char* name, const WgradConfig& config, unsigned dtypes) {
      const TileShape tile{64 * config.slots(), config.n(), 16};
      KernelEntry entry{name, Pass::kWgrad, this, dtypes, kSm90a, tile, config, line++};
      entry.gated = true;
      entry.scaled_parts = scaled_parts(config.operands);
      table.push_back(entry);
    };
#define WGRAD_KERNEL(name, channels, blocks, units, warpgroups, staging, operands, dtypes) \
  add("wgrad_" #name, {channels, blocks, units, warpgroups, WgradStaging::staging, OperandForm::operands}, dtypes);
#include "fastconv/families/wgrad/kernels.def"
#undef WGRAD_KERNEL
  }

  Offer plan(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) const override {
    return wgrad_plan(kernel, problem, device);
  }

  void describe(std::ostream& out, const Plan& plan) const override {
    constexpr const char* kBoxes[] = {"a box", "a box a row", "a box each"};
    const WgradTiling& tiling = plan.tiling.as<WgradTiling>();
    out << (tiling.linear ? " linear " : " ");
    if (tiling.tile_n > 1) out << tiling.tile_n << " images of ";
    out << tiling.tile_p << "x" << tiling.tile_q << " pixels, taps in " << kBoxes[static_cast<int>(tiling.box_taps)]
        << ", filters " << 64 * tiling.m_blocks << ", cluster " << static_cast<int>(tiling.cluster)
        << (tiling.fold ? ", folds input" : "") << (tiling.streams ? ", streams input" : "");
  }
};

}  // namespace

const Family& wgrad_family() {
  static const Wgrad family;
  return family;
}

}  // namespace fastconv
