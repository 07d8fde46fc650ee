// Groups of 2 to 16 channels.
#include <ostream>

#include "fastconv/families/grouped/config.h"
#include "fastconv/families/grouped/plan.h"
#include "fastconv/families/grouped/planes.h"
#include "fastconv/families/grouped/planes_plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {
namespace {

class Grouped final : public Family {
 public:
  Grouped() : Family("grouped") {}

  void add_kernels(std::vector<KernelEntry>& table) const override {
    int line = 0;
    auto add = [&](const char* name, Pass pass, const GroupedConfig& config, unsigned dtypes) {
      const TileShape tile{config.unit_pixels(), config.filters, config.chunk()};
      table.push_back({name, pass, this, dtypes, kSm80, tile, config, line});
    };
#define GROUPED_KERNEL(name, operands, filters, dtypes)                                    \
  add("grouped_fprop_" #name, Pass::kFprop, {GroupedOperands::operands, filters}, dtypes); \
  add("grouped_dgrad_" #name, Pass::kDgrad, {GroupedOperands::operands, filters}, dtypes); \
  add("grouped_wgrad_" #name, Pass::kWgrad, {GroupedOperands::operands, filters}, dtypes), ++line;
#include "fastconv/families/grouped/kernels.def"
#undef GROUPED_KERNEL
    line = 0;
    auto add_planes = [&](const char* name, const GroupedPlanesConfig& config, unsigned dtypes) {
      const TileShape tile{kPlanes, kPlanes * kPlanesTaps * kPlanesTaps, kPlanesColumns};
      table.push_back({name, Pass::kWgrad, this, dtypes, kSm90a, tile, config, line++});
    };
#define GROUPED_PLANES_KERNEL(name, stride, warps, dtypes) \
  add_planes("grouped_planes_wgrad_" #name, {stride, warps}, dtypes);
#include "fastconv/families/grouped/planes.def"
#undef GROUPED_PLANES_KERNEL
  }

  Offer plan(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) const override {
    if (kernel.config.holds<GroupedPlanesConfig>()) return grouped_planes_plan(kernel, problem, device);
    return problem.pass == Pass::kWgrad ? grouped_wgrad_plan(kernel, problem, device)
                                        : grouped_plan(kernel, problem, device);
  }

  void describe(std::ostream& out, const Plan& plan) const override {
    if (plan.tiling.holds<GroupedPlanesTiling>()) {
      const auto& tiling = plan.tiling.as<GroupedPlanesTiling>();
      out << " tiles of " << tiling.images << " images, " << tiling.run_rows << " rows";
    } else {
      const auto& tiling = plan.tiling.as<GroupedTiling>();
      out << " " << tiling.tile_p << "x" << tiling.tile_q << " pixels of " << tiling.tile_g << " groups";
    }
  }
};

}  // namespace

const Family& grouped_family() {
  static const Grouped family;
  return family;
}

}  // namespace fastconv
