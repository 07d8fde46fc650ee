// Convolutions that become cheaper ones when pixels are moved into channels, or the other way.
#include <ostream>

#include "fastconv/families/space_to_depth/patches.h"
#include "fastconv/families/space_to_depth/patches_plan.h"
#include "fastconv/families/space_to_depth/subpixel.h"
#include "fastconv/families/space_to_depth/subpixel_plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {
namespace {

class SpaceToDepth final : public Family {
 public:
  SpaceToDepth() : Family("space_to_depth") {}

  void add_kernels(std::vector<KernelEntry>& table) const override {
    constexpr TileShape kTile{kPatchPixels, kPatchChunks, 1};
#define PATCHES_KERNEL(name, pass, layout) \
  table.push_back({"patches_" #name, Pass::pass, this, kAllDtypes, kSm70, kTile, PatchesConfig{PatchLayout::layout}});
#include "fastconv/families/space_to_depth/patches.def"
#undef PATCHES_KERNEL
#define SUBPIXEL_KERNEL(name, pass, factor) \
  table.push_back({"subpixel_" #name, Pass::pass, this, kAllDtypes, kSm70, kTile, SubpixelConfig{factor}});
#include "fastconv/families/space_to_depth/subpixel.def"
#undef SUBPIXEL_KERNEL
  }

  Offer plan(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) const override {
    return kernel.config.holds<PatchesConfig>() ? patches_plan(kernel, problem, device)
                                                : subpixel_plan(kernel, problem, device);
  }

  void describe(std::ostream&, const Plan&) const override {}
};

}  // namespace

const Family& space_to_depth_family() {
  static const SpaceToDepth family;
  return family;
}

}  // namespace fastconv
