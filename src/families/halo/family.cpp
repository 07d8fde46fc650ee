// Forward passes and input gradients on sm_90a: the pixels that a tile reads are staged once for all taps.
#include <ostream>

#include "fastconv/families/halo/config.h"
#include "fastconv/families/halo/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {
namespace {

class Halo final : public Family {
 public:
  Halo() : Family("halo") {}

  void add_kernels(std::vector<KernelEntry>& table) const override {
    int line = 0;
    auto add = [&](const char* name, Pass pass, const HaloConfig& config, unsigned dtypes) {
      if (!config.computes(pass)) return;
      const TileShape tile{128 * config.m_blocks, config.n(), config.channels};
      KernelEntry entry{name, pass, this, dtypes, kSm90a, tile, config, line};
      entry.gated = true;
      entry.scaled_parts = scaled_parts(config.operands);
      table.push_back(entry);
    };
#define HALO_KERNEL(name, k, m, c, staging, filter, columns, lines, operands, dtypes)                                  \
  {                                                                                                                    \
    const HaloConfig config{k, m, c, HaloStaging::staging, FilterTile::filter, columns, lines, OperandForm::operands}; \
    add("halo_fprop_" #name, Pass::kFprop, config, dtypes);                                                            \
    add("halo_dgrad_" #name, Pass::kDgrad, config, dtypes);                                                            \
    ++line;                                                                                                            \
  }
#include "fastconv/families/halo/kernels.def"
#undef HALO_KERNEL
  }

  Offer plan(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) const override {
    return halo_plan(kernel, problem, device);
  }

  void describe(std::ostream& out, const Plan& plan) const override {
    constexpr const char* kSplits[] = {"together", "by row", "one by one"};
    const HaloTiling& tiling = plan.tiling.as<HaloTiling>();
    if (tiling.linear) {
      out << " linear";
    } else {
      out << " " << tiling.tile_p << "x" << tiling.tile_q << " pixels";
    }
    if (tiling.run_rows > 0) {
      out << " in runs of " << static_cast<int>(tiling.run_rows) << " rows";
    } else if (tiling.turns) {
      out << " in turns";
    } else if (tiling.shares > 1) {
      out << " shared by " << static_cast<int>(tiling.shares) << " blocks";
    }
    out << ", taps " << kSplits[static_cast<int>(tiling.split)] << ", stages " << tiling.halo_stages << "+"
        << tiling.filter_stages << (tiling.filter_resident ? " resident" : "")
        << (tiling.reorder_in ? ", reorders input" : "") << (tiling.reorder_out ? ", reorders output" : "");
  }
};

}  // namespace

const Family& halo_family() {
  static const Halo family;
  return family;
}

}  // namespace fastconv
