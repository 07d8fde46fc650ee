// Images of one to four channels.
#include <ostream>

#include "fastconv/families/few_channels/embed.h"
#include "fastconv/families/few_channels/embed_config.h"
#include "fastconv/families/few_channels/embed_plan.h"
#include "fastconv/families/few_channels/quads.h"
#include "fastconv/families/few_channels/quads_config.h"
#include "fastconv/families/few_channels/quads_plan.h"
#include "fastconv/families/few_channels/quads_wgrad_config.h"
#include "fastconv/families/few_channels/quads_wgrad_plan.h"
#include "fastconv/families/few_channels/stem_config.h"
#include "fastconv/families/few_channels/stem_plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {
namespace {

class FewChannels final : public Family {
 public:
  FewChannels() : Family("few_channels") {}

  void add_kernels(std::vector<KernelEntry>& table) const override {
    add_stem(table);
    add_quads(table);
    add_embed(table);
  }

  Offer plan(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) const override {
    const bool wgrad = problem.pass == Pass::kWgrad;
    if (kernel.config.holds<StemConfig>()) {
      return wgrad ? stem_wgrad_plan(kernel, problem, device) : stem_plan(kernel, problem, device);
    }
    if (kernel.config.holds<QuadsConfig>()) return quads_plan(kernel, problem, device);
    if (kernel.config.holds<QuadsWgradConfig>()) return quads_wgrad_plan(kernel, problem, device);
    return embed_plan(kernel, problem, device);
  }

  void describe(std::ostream& out, const Plan& plan) const override {
    if (plan.tiling.holds<StemTiling>()) {
      const auto& tiling = plan.tiling.as<StemTiling>();
      out << " " << tiling.tile_p << "x" << tiling.tile_q << " pixels of " << tiling.sets << " sets, stages "
          << tiling.stages << ", walkers " << tiling.walkers;
    } else if (plan.tiling.holds<QuadsTiling>()) {
      const auto& tiling = plan.tiling.as<QuadsTiling>();
      out << " " << tiling.tile_p << "x" << tiling.tile_q << " pixels of " << tiling.sets << " sets, walkers "
          << tiling.walkers;
    } else {
      const auto& tiling = plan.tiling.as<EmbedTiling>();
      out << " sets " << tiling.sets << ", walkers " << tiling.walkers;
    }
  }

 private:
  void add_stem(std::vector<KernelEntry>& table) const {
    int line = 0;
    auto add = [&](const char* name, Pass pass, const StemConfig& config) {
      const TileShape tile = pass == Pass::kWgrad ? TileShape{config.filters, config.unit_taps(), kStemStep}
                                                  : TileShape{config.unit_pixels(), config.filters, kStemStep};
      table.push_back({name, pass, this, kF32, kSm80, tile, config, line});
    };
#define STEM_KERNEL(name, parts, filters, operand)                            \
  add("stem_fprop_" #name, Pass::kFprop, {parts, filters, Operand::operand}); \
  add("stem_wgrad_" #name, Pass::kWgrad, {parts, filters, Operand::operand}), ++line;
#include "fastconv/families/few_channels/stem.def"
#undef STEM_KERNEL
  }

  void add_quads(std::vector<KernelEntry>& table) const {
    constexpr int kDepth = kQuadsStepTaps * kQuadChannels;
    int line = 0;
    auto add = [&](const char* name, const QuadsConfig& config, unsigned dtypes) {
      const TileShape tile = config.squares ? TileShape{kQuadsSquare * kQuadsSquare, kQuadsSquareFilters, kDepth}
                                            : TileShape{quads_pixels(config.operands), kQuadsSet, kDepth};
      table.push_back({name, Pass::kFprop, this, dtypes, config.squares ? kSm90a : kSm80, tile, config, line++});
    };
#define QUADS_KERNEL(name, channels_inner, steps, operands, squares, dtypes) \
  add("quads_fprop_" #name, {channels_inner, steps, QuadsOperands::operands, squares}, dtypes);
#include "fastconv/families/few_channels/quads.def"
#undef QUADS_KERNEL
    line = 0;
    auto add_wgrad = [&](const char* name, const QuadsWgradConfig& config) {
      const TileShape tile{kQuadsWgradFilters, 8 * config.channels, kQuadsWgradStep};
      table.push_back({name, Pass::kWgrad, this, kHalf, kSm80, tile, config, line++});
    };
#define QUADS_WGRAD_KERNEL(name, channels_inner, channels) add_wgrad("quads_wgrad_" #name, {channels_inner, channels});
#include "fastconv/families/few_channels/quads_wgrad.def"
#undef QUADS_WGRAD_KERNEL
  }

  void add_embed(std::vector<KernelEntry>& table) const {
    int line = 0;
    auto add = [&](const char* name, Pass pass, const EmbedConfig& config, unsigned dtypes) {
      const TileShape tile{kEmbedUnitPixels, kEmbedUnitFilters, kEmbedStepChunks * kEmbedChunk};
      table.push_back({name, pass, this, dtypes, kSm80, tile, config, line});
    };
#define EMBED_KERNEL(name, parts, channels_inner, dtypes)                                       \
  add("embed_fprop_" #name, Pass::kFprop, {parts, channels_inner}, dtypes);                     \
  if ((dtypes) == kF32) add("embed_wgrad_" #name, Pass::kWgrad, {parts, channels_inner}, kF32); \
  ++line;
#include "fastconv/families/few_channels/embed.def"
#undef EMBED_KERNEL
  }
};

}  // namespace

const Family& few_channels_family() {
  static const FewChannels family;
  return family;
}

}  // namespace fastconv
