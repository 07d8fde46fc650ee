#include "fastconv/planner/planner.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <sstream>
#include <utility>
#include <vector>

#include "fastconv/families/space_to_depth/patches_plan.h"
#include "fastconv/planner/registry.h"
#include "fastconv/planner/scaled.h"

namespace fastconv {
namespace {

bool considers(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  return entry.pass == problem.pass && entry.is_cuda == device.is_cuda;
}

// The next name of a comma-separated list, which is shortened by it.
std::string_view take_name(std::string_view& names) {
  const size_t comma = names.find(',');
  std::string_view name = names.substr(0, comma);
  names.remove_prefix(comma == std::string_view::npos ? names.size() : comma + 1);
  while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
  while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
  return name;
}

bool names_kernel(std::string_view names, std::string_view wanted) {
  while (!names.empty()) {
    if (take_name(names) == wanted) return true;
  }
  return false;
}

// Whether no product is to be computed: the result is empty, or zeros and the bias.
bool has_no_products(const ConvProblem& problem) { return problem.n == 0 || problem.c == 0 || problem.k == 0; }

// What an explanation says of such a problem.
const char* result_of_nothing(const ConvProblem& problem) {
  const int64_t elements = problem.pass == Pass::kFprop   ? y_elements(problem)
                           : problem.pass == Pass::kDgrad ? x_elements(problem)
                                                          : w_elements(problem);
  return elements == 0 ? "the result is empty: nothing runs" : "no products: the result is zeros, or the bias";
}

// Whether a tensor is larger than any memory, as only expanded ones can be.
bool is_beyond_memory(const ConvProblem& problem) {
  constexpr int64_t kMost = int64_t{1} << 40;
  return std::max({x_elements(problem), w_elements(problem), y_elements(problem)}) > kMost;
}

// A kernel's refusal, or that it was not named where others were.
const char* refusal(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device,
                    std::string_view force, bool forced) {
  if (forced && !names_kernel(force, entry.name)) return "is not among the kernels asked for";
  return offer(entry, problem, device).why_not;
}

bool is_forced(const ConvProblem& problem, const DeviceSpec& device, std::string_view force) {
  while (!force.empty()) {
    const KernelEntry* entry = find_kernel(take_name(force));
    if (entry != nullptr && considers(*entry, problem, device)) return true;
  }
  return false;
}

std::string unknown_name(std::string_view force) {
  while (!force.empty()) {
    const std::string_view name = take_name(force);
    if (!name.empty() && find_kernel(name) == nullptr) {
      return "unknown kernel '" + std::string(name) + "'; fastconv::_kernels() lists the names";
    }
  }
  return {};
}

std::ostream& operator<<(std::ostream& out, const HaloTiling& tiling) {
  constexpr const char* kSplits[] = {"together", "by row", "one by one"};
  if (tiling.linear) {
    out << "linear";
  } else {
    out << tiling.tile_p << "x" << tiling.tile_q << " pixels";
  }
  if (tiling.run_rows > 0) {
    out << " in runs of " << static_cast<int>(tiling.run_rows) << " rows";
  } else if (tiling.turns) {
    out << " in turns";
  } else if (tiling.shares > 1) {
    out << " shared by " << static_cast<int>(tiling.shares) << " blocks";
  }
  return out << ", taps " << kSplits[static_cast<int>(tiling.split)] << ", stages " << tiling.halo_stages << "+"
             << tiling.filter_stages << (tiling.filter_resident ? " resident" : "")
             << (tiling.reorder_in ? ", reorders input" : "") << (tiling.reorder_out ? ", reorders output" : "");
}

std::ostream& operator<<(std::ostream& out, const WgradTiling& tiling) {
  constexpr const char* kBoxes[] = {"a box", "a box a row", "a box each"};
  out << (tiling.linear ? "linear " : "");
  if (tiling.tile_n > 1) out << tiling.tile_n << " images of ";
  return out << tiling.tile_p << "x" << tiling.tile_q << " pixels, taps in "
             << kBoxes[static_cast<int>(tiling.box_taps)] << ", filters " << 64 * tiling.m_blocks << ", cluster "
             << static_cast<int>(tiling.cluster) << (tiling.fold ? ", folds input" : "")
             << (tiling.streams ? ", streams input" : "");
}

std::ostream& operator<<(std::ostream& out, const DepthwiseAnyTiling& tiling) {
  return out << "threads " << tiling.lanes_h << "x" << tiling.lanes_w << " of " << tiling.channels << "x"
             << tiling.images << " planes, parts " << tiling.parts << ", taps " << tiling.taps_h << "x" << tiling.taps_w
             << ", buffers " << tiling.buffers;
}

std::ostream& operator<<(std::ostream& out, const GroupedTiling& tiling) {
  return out << tiling.tile_p << "x" << tiling.tile_q << " pixels of " << tiling.tile_g << " groups";
}

std::ostream& operator<<(std::ostream& out, const QuadsTiling& tiling) {
  return out << tiling.tile_p << "x" << tiling.tile_q << " pixels of " << tiling.sets << " sets, walkers "
             << tiling.walkers;
}

std::ostream& operator<<(std::ostream& out, const EmbedTiling& tiling) {
  return out << "sets " << tiling.sets << ", walkers " << tiling.walkers;
}

std::ostream& operator<<(std::ostream& out, const StemTiling& tiling) {
  return out << tiling.tile_p << "x" << tiling.tile_q << " pixels of " << tiling.sets << " sets, stages "
             << tiling.stages << ", walkers " << tiling.walkers;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Plan& plan) {
  if (plan.kernel == nullptr) return out << "no kernel";
  out << plan.kernel->name;
  if (plan.kernel->is_cuda) {
    const TileShape& tile = plan.kernel->tile;
    out << " tile " << tile.m << "x" << tile.n << "x" << tile.k << " grid " << plan.grid << " block "
        << plan.block_threads;
  }
  if (plan.kernel->family == KernelFamily::kDepthwise) {
    out << " runs of " << plan.depthwise.run_rows << " rows, threads " << plan.depthwise.runs << "x"
        << plan.depthwise.columns << "x" << plan.depthwise.channels;
  }
  if (plan.kernel->family == KernelFamily::kHalo) out << " " << plan.halo;
  if (plan.kernel->family == KernelFamily::kWgrad) out << " " << plan.wgrad;
  if (plan.kernel->family == KernelFamily::kDepthwiseAny) out << " " << plan.depthwise_any;
  if (plan.kernel->family == KernelFamily::kDepthwiseBanded) {
    out << " runs of " << plan.depthwise_banded.run_rows << " rows";
  }
  if (plan.kernel->family == KernelFamily::kDepthwiseDiagonal) {
    const DepthwiseDiagonalTiling& tiling = plan.depthwise_diagonal;
    if (plan.kernel->pass == Pass::kWgrad) {
      out << " tiles of " << tiling.columns << " columns";
    } else {
      out << " runs of " << tiling.run_rows << " rows, warps " << tiling.groups << "x" << tiling.chunks;
    }
  }
  if (plan.kernel->family == KernelFamily::kDepthwisePairs) {
    const DepthwisePairsTiling& tiling = plan.depthwise_pairs;
    out << " " << tiling.runs << " runs of " << tiling.targets << " columns, " << tiling.images << " images, units of "
        << tiling.unit_rows << " rows, stages " << tiling.stages << ", shares " << tiling.shares;
  }
  if (plan.kernel->family == KernelFamily::kDepthwiseCross) {
    const DepthwiseCrossTiling& tiling = plan.depthwise_cross;
    out << " " << tiling.rows << " rows of " << tiling.source_rows << ", " << tiling.columns << " columns, "
        << tiling.images << " images, stages " << tiling.stages << " and " << tiling.source_stages << ", slices of "
        << tiling.slice_boxes << " boxes";
  }
  if (plan.kernel->family == KernelFamily::kGrouped) out << " " << plan.grouped;
  if (plan.kernel->family == KernelFamily::kGroupedPlanes) {
    out << " tiles of " << plan.grouped_planes.images << " images, " << plan.grouped_planes.run_rows << " rows";
  }
  if (plan.kernel->family == KernelFamily::kStem) out << " " << plan.stem;
  if (plan.kernel->family == KernelFamily::kQuads || plan.kernel->family == KernelFamily::kReadyQuads ||
      plan.kernel->family == KernelFamily::kQuadsWgrad) {
    out << " " << plan.quads;
  }
  if (plan.kernel->family == KernelFamily::kEmbed) out << " " << plan.embed;
  if (plan.split > 1) out << " split " << plan.split;
  if (plan.chunk > 0) out << " chunk " << plan.chunk;
  for (const InnerPlan& inner : plan.inner) out << ", product [" << inner.problem << ": " << inner.plan << "]";
  for (const Plan& others : plan.others) out << ", other numbers [" << others << "]";
  return out << " workspace_bytes " << plan.workspace_bytes << " cost_us " << plan.cost_us;
}

Offer offer(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  // im2col and the CPU's kernels take everything, so that the others may count extents from 1 on and have their
  // products fit 64 bits.
  const bool takes_all = entry.family == KernelFamily::kIm2col || entry.family == KernelFamily::kCpu;
  if (!takes_all && has_no_products(problem)) return {"is for sums of one product or more", {}};
  if (!takes_all && is_beyond_memory(problem)) return {"takes tensors of up to 2^40 elements", {}};
  if (const char* reason = entry.why_not(entry, problem, device)) return {reason, {}};
  Plan plan = entry.plan(entry, problem, device);
  if (plan.workspace_bytes > workspace_room(problem, device, is_scaled(entry)))
    return {"would need too much workspace", {}};
  return {nullptr, std::move(plan)};
}

namespace {

// Of a problem whose precision is one of kernels.
Choice plan_as(const ConvProblem& problem, const DeviceSpec& device, std::string_view force) {
  Choice choice;
  if (!force.empty()) {
    choice.reason = unknown_name(force);
    if (!choice.reason.empty()) return choice;
  }
  const bool forced = is_forced(problem, device, force);
  Plan scaled;
  for (const KernelEntry& entry : kernel_table()) {
    if (!considers(entry, problem, device) || (forced && !names_kernel(force, entry.name))) continue;
    Offer offered = offer(entry, problem, device);
    if (offered.why_not != nullptr) continue;
    Plan& best = is_scaled(entry) ? scaled : choice.plan;
    if (best.kernel == nullptr || offered.plan.cost_us < best.cost_us) best = std::move(offered.plan);
  }
  if (scaled.kernel != nullptr && (choice.plan.kernel == nullptr || scaled.cost_us < choice.plan.cost_us)) {
    if (const auto others = plan_for_others(problem, device)) choice.plan = paired(scaled, *others);
  }
  choice.plan.precision = problem.precision;
  if (choice.plan.kernel != nullptr) return choice;
  std::ostringstream reason;
  reason << "no kernel for " << problem << ":";
  for (const KernelEntry& entry : kernel_table()) {
    if (!considers(entry, problem, device) || (forced && !names_kernel(force, entry.name))) continue;
    const char* why = offer(entry, problem, device).why_not;
    reason << "\n  " << entry.name << " " << (why != nullptr ? why : "has no partner for numbers of all ranges");
  }
  choice.reason = reason.str();
  return choice;
}

ConvProblem with_precision(ConvProblem problem, Precision precision) {
  problem.precision = precision;
  return problem;
}

}  // namespace

Choice make_plan(const ConvProblem& problem, const DeviceSpec& device, std::string_view force) {
  if (problem.precision != Precision::kAllowTf32) return plan_as(problem, device, force);
  const Choice exact = plan_as(with_precision(problem, Precision::kIeee), device, force);
  if (problem.dtype != DType::kFloat32) return exact;
  Choice rounded = plan_as(with_precision(problem, Precision::kTf32), device, force);
  if (exact.plan.kernel == nullptr) return rounded;
  // Eager calls take the host longer than kHostUs, whatever the kernel.
  constexpr double kFewPercent = 1.05, kHiddenUs = 1, kHostUs = 10;
  const bool as_cheap = exact.plan.cost_us <= std::max(kFewPercent * rounded.plan.cost_us + kHiddenUs, kHostUs);
  return rounded.plan.kernel == nullptr || as_cheap ? exact : rounded;
}

std::string explain(const ConvProblem& asked, const DeviceSpec& device, std::string_view force, bool refusals) {
  const Choice choice = make_plan(asked, device, force);
  const ConvProblem problem = with_precision(asked, choice.plan.precision);
  std::ostringstream out;
  out << problem << "\n";
  if (has_no_products(problem)) out << result_of_nothing(problem) << "\n";
  if (choice.plan.kernel == nullptr) {
    out << choice.reason << "\n";
    return out.str();
  }
  out << "plan: " << choice.plan << "\n";
  const bool forced = is_forced(problem, device, force);
  std::multimap<double, const char*> others;
  std::vector<std::pair<const char*, const char*>> refused;
  for (const KernelEntry& entry : kernel_table()) {
    if (&entry == choice.plan.kernel || !considers(entry, problem, device)) continue;
    if (const char* reason = refusal(entry, problem, device, force, forced)) {
      refused.emplace_back(entry.name, reason);
    } else {
      others.emplace(entry.plan(entry, problem, device).cost_us, entry.name);
    }
  }
  for (const auto& [cost_us, name] : others) out << "  " << name << ": cost_us " << cost_us << "\n";
  if (refusals) {
    for (const auto& [name, reason] : refused) out << "  " << name << ": " << reason << "\n";
  } else {
    out << "refused by " << refused.size() << " others\n";
  }
  return out.str();
}

}  // namespace fastconv
