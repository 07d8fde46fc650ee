// One input channel a group.
#include <algorithm>
#include <ostream>

#include "fastconv/families/depthwise/any.h"
#include "fastconv/families/depthwise/any_plan.h"
#include "fastconv/families/depthwise/banded.h"
#include "fastconv/families/depthwise/banded_plan.h"
#include "fastconv/families/depthwise/config.h"
#include "fastconv/families/depthwise/cross.h"
#include "fastconv/families/depthwise/cross_plan.h"
#include "fastconv/families/depthwise/diagonal.h"
#include "fastconv/families/depthwise/diagonal_plan.h"
#include "fastconv/families/depthwise/pairs.h"
#include "fastconv/families/depthwise/pairs_plan.h"
#include "fastconv/families/depthwise/plan.h"
#include "fastconv/families/depthwise/sequence.h"
#include "fastconv/families/depthwise/sequence_plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {
namespace {

class Depthwise final : public Family {
 public:
  Depthwise() : Family("depthwise") {}

  void add_kernels(std::vector<KernelEntry>& table) const override {
    add_windows(table);
    add_any(table);
    add_banded(table);
    add_diagonal(table);
    add_wide(table);
    add_sequences(table);
  }

  Offer plan(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) const override {
    const auto& config = kernel.config;
    if (config.holds<DepthwiseConfig>()) return depthwise_plan(kernel, problem, device);
    if (config.holds<DepthwiseAnyConfig>()) return depthwise_any_plan(kernel, problem, device);
    if (config.holds<DepthwiseBandedConfig>()) return depthwise_banded_plan(kernel, problem, device);
    if (config.holds<DepthwisePairsConfig>()) return depthwise_pairs_plan(kernel, problem, device);
    if (config.holds<DepthwiseCrossConfig>()) return depthwise_cross_plan(kernel, problem, device);
    if (config.holds<DepthwiseSequenceConfig>()) return depthwise_sequence_plan(kernel, problem, device);
    return problem.pass == Pass::kWgrad ? depthwise_diagonal_wgrad_plan(kernel, problem, device)
                                        : depthwise_diagonal_plan(kernel, problem, device);
  }

  void describe(std::ostream& out, const Plan& plan) const override {
    const auto& any = plan.tiling;
    if (any.holds<DepthwiseTiling>()) {
      const auto& tiling = any.as<DepthwiseTiling>();
      out << " runs of " << tiling.run_rows << " rows, threads " << tiling.runs << "x" << tiling.columns << "x"
          << tiling.channels;
    } else if (any.holds<DepthwiseAnyTiling>()) {
      const auto& tiling = any.as<DepthwiseAnyTiling>();
      out << " threads " << tiling.lanes_h << "x" << tiling.lanes_w << " of " << tiling.channels << "x" << tiling.images
          << " planes, parts " << tiling.parts << ", taps " << tiling.taps_h << "x" << tiling.taps_w << ", buffers "
          << tiling.buffers;
    } else if (any.holds<DepthwiseBandedTiling>()) {
      out << " runs of " << any.as<DepthwiseBandedTiling>().run_rows << " rows";
    } else if (any.holds<DepthwisePairsTiling>()) {
      const auto& tiling = any.as<DepthwisePairsTiling>();
      out << " " << tiling.runs << " runs of " << tiling.targets << " columns, " << tiling.images
          << " images, units of " << tiling.unit_rows << " rows, stages " << tiling.stages << ", shares "
          << tiling.shares;
    } else if (any.holds<DepthwiseCrossTiling>()) {
      const auto& tiling = any.as<DepthwiseCrossTiling>();
      out << " " << tiling.rows << " rows of " << tiling.source_rows << ", " << tiling.columns << " columns, "
          << tiling.images << " images, stages " << tiling.stages << " and " << tiling.source_stages << ", slices of "
          << tiling.slice_boxes << " boxes";
    } else if (any.holds<DepthwiseSequenceTiling>()) {
      const auto& tiling = any.as<DepthwiseSequenceTiling>();
      out << " " << tiling.rows << " rows of " << tiling.segment << " targets, slices " << tiling.slices;
    } else if (plan.kernel->pass == Pass::kWgrad) {
      out << " tiles of " << any.as<DepthwiseDiagonalTiling>().columns << " columns";
    } else {
      const auto& tiling = any.as<DepthwiseDiagonalTiling>();
      out << " runs of " << tiling.run_rows << " rows, warps " << tiling.groups << "x" << tiling.chunks;
    }
  }

 private:
  void add_windows(std::vector<KernelEntry>& table) const {
    int line = 0;
    auto add = [&](const char* name, Pass pass, const DepthwiseConfig& config, unsigned dtypes) {
      if (!config.computes(pass)) return;
      const TileShape tile{config.columns, config.channels(), config.taps * config.taps_w};
      table.push_back({name, pass, this, dtypes, config.staged() ? kSm90a : kSm70, tile, config, line});
    };
#define DEPTHWISE_KERNEL(name, dtypes, kind, taps, stride, lanes, ...)                          \
  {                                                                                             \
    const DepthwiseConfig config{DepthwiseKind::kind, taps, stride, Lanes::lanes, __VA_ARGS__}; \
    add("depthwise_fprop_" #name, Pass::kFprop, config, dtypes);                                \
    add("depthwise_dgrad_" #name, Pass::kDgrad, config, dtypes);                                \
    add("depthwise_wgrad_" #name, Pass::kWgrad, config, dtypes);                                \
    ++line;                                                                                     \
  }
#include "fastconv/families/depthwise/kernels.def"
#undef DEPTHWISE_KERNEL
  }

  void add_any(std::vector<KernelEntry>& table) const {
    int line = 0;
    auto add = [&](const char* name, Pass pass, const DepthwiseAnyConfig& config, unsigned dtypes) {
      table.push_back({name, pass, this, dtypes, kSm70, {config.rows, config.columns, 1}, config, line});
    };
#define DEPTHWISE_ANY_KERNEL(name, rows, columns, dtypes)                   \
  add("depthwise_any_fprop_" #name, Pass::kFprop, {rows, columns}, dtypes); \
  add("depthwise_any_dgrad_" #name, Pass::kDgrad, {rows, columns}, dtypes); \
  add("depthwise_any_wgrad_" #name, Pass::kWgrad, {rows, columns}, dtypes), ++line;
#include "fastconv/families/depthwise/any.def"
#undef DEPTHWISE_ANY_KERNEL
  }

  void add_banded(std::vector<KernelEntry>& table) const {
    int line = 0;
    auto add = [&](const char* name, Pass pass, const DepthwiseBandedConfig& config, unsigned dtypes) {
      if (!config.computes(pass)) return;
      const TileShape tile{kBandedTile, kBandedBlock, std::max(1, config.taps) * config.window()};
      table.push_back({name, pass, this, dtypes, config.staged() ? kSm90a : kSm80, tile, config, line});
    };
#define DEPTHWISE_BANDED_KERNEL(name, kind, taps, stride, steps, vector, ahead, warps, dtypes)          \
  {                                                                                                     \
    const DepthwiseBandedConfig config{DepthwiseKind::kind, taps, stride, steps, vector, ahead, warps}; \
    add("depthwise_banded_fprop_" #name, Pass::kFprop, config, dtypes);                                 \
    add("depthwise_banded_dgrad_" #name, Pass::kDgrad, config, dtypes);                                 \
    add("depthwise_banded_wgrad_" #name, Pass::kWgrad, config, dtypes);                                 \
    ++line;                                                                                             \
  }
#include "fastconv/families/depthwise/banded.def"
#undef DEPTHWISE_BANDED_KERNEL
  }

  void add_diagonal(std::vector<KernelEntry>& table) const {
    int line = 0;
    auto add = [&](const char* name, Pass pass, const DepthwiseDiagonalConfig& config, unsigned dtypes) {
      if (!config.computes(pass)) return;
      const TileShape tile{kChunk, kDiagonalColumns, config.taps * config.read_positions() * config.reads()};
      table.push_back({name, pass, this, dtypes, config.boxed() ? kSm90a : kSm80, tile, config, line});
    };
#define DEPTHWISE_DIAGONAL_KERNEL(name, kind, taps, stride, ahead, warps, box_rows, chunks, dtypes)             \
  {                                                                                                             \
    const DepthwiseDiagonalConfig config{DepthwiseKind::kind,     taps, stride, ahead, warps, box_rows, chunks, \
                                         (dtypes) == kF32 ? 4 : 2};                                             \
    add("depthwise_diagonal_fprop_" #name, Pass::kFprop, config, dtypes);                                       \
    add("depthwise_diagonal_dgrad_" #name, Pass::kDgrad, config, dtypes);                                       \
    add("depthwise_diagonal_wgrad_" #name, Pass::kWgrad, config, dtypes);                                       \
    ++line;                                                                                                     \
  }
#include "fastconv/families/depthwise/diagonal.def"
#undef DEPTHWISE_DIAGONAL_KERNEL
  }

  void add_sequences(std::vector<KernelEntry>& table) const {
    int line = 0;
    auto add = [&](const char* name, Pass pass, const DepthwiseSequenceConfig& config, unsigned dtypes) {
      if (!config.computes(pass)) return;
      const TileShape tile{config.tile(), 1, config.most_taps()};
      table.push_back({name, pass, this, dtypes, config.bytes == 2 ? kSm80 : kSm70, tile, config, line});
    };
#define DEPTHWISE_SEQUENCE_KERNEL(name, kind, steps, threads, bytes, gaps, dtypes)          \
  {                                                                                         \
    const DepthwiseSequenceConfig config{DepthwiseKind::kind, steps, threads, bytes, gaps}; \
    add("depthwise_sequence_fprop_" #name, Pass::kFprop, config, dtypes);                   \
    add("depthwise_sequence_dgrad_" #name, Pass::kDgrad, config, dtypes);                   \
    add("depthwise_sequence_wgrad_" #name, Pass::kWgrad, config, dtypes);                   \
    ++line;                                                                                 \
  }
#include "fastconv/families/depthwise/sequence.def"
#undef DEPTHWISE_SEQUENCE_KERNEL
  }

  // Wide filters.
  void add_wide(std::vector<KernelEntry>& table) const {
    int line = 0;
    auto add_pairs = [&](const char* name, Pass pass, const DepthwisePairsConfig& config) {
      const TileShape tile{kPairsChannels, kRuns * kRunTargets, config.taps * kRunPositions};
      table.push_back({name, pass, this, kHalf, kSm90a, tile, config, line});
    };
#define DEPTHWISE_PAIRS_KERNEL(name, taps)                         \
  add_pairs("depthwise_pairs_fprop_" #name, Pass::kFprop, {taps}); \
  add_pairs("depthwise_pairs_dgrad_" #name, Pass::kDgrad, {taps}), ++line;
#include "fastconv/families/depthwise/pairs.def"
#undef DEPTHWISE_PAIRS_KERNEL
    line = 0;
    auto add_cross = [&](const char* name, const DepthwiseCrossConfig& config) {
      const TileShape tile{kCrossSourceRows, kCrossTargetRows, kCrossColumns};
      table.push_back({name, Pass::kWgrad, this, kHalf, kSm90a, tile, config, line++});
    };
#define DEPTHWISE_CROSS_KERNEL(name, taps, stride) add_cross("depthwise_cross_wgrad_" #name, {taps, stride});
#include "fastconv/families/depthwise/cross.def"
#undef DEPTHWISE_CROSS_KERNEL
  }
};

}  // namespace

const Family& depthwise_family() {
  static const Depthwise family;
  return family;
}

}  // namespace fastconv
