#include "fastconv/planner/planner.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <sstream>
#include <utility>
#include <vector>

#include "fastconv/planner/cost.h"
#include "fastconv/planner/registry.h"
#include "fastconv/planner/scaled.h"

namespace fastconv {
namespace {

bool considers(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  return entry.pass == problem.pass && entry.is_cuda() == device.is_cuda;
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

}  // namespace

std::ostream& operator<<(std::ostream& out, const Plan& plan) {
  if (plan.kernel == nullptr) return out << "no kernel";
  out << plan.kernel->name;
  if (plan.kernel->is_cuda()) {
    const TileShape& tile = plan.kernel->tile;
    out << " tile " << tile.m << "x" << tile.n << "x" << tile.k << " grid " << plan.grid << " block "
        << plan.block_threads;
  }
  plan.kernel->family->describe(out, plan);
  if (plan.split > 1) out << " split " << plan.split;
  for (const InnerPlan& inner : plan.inner) out << ", product [" << inner.problem << ": " << inner.plan << "]";
  for (const Plan& others : plan.others) out << ", other numbers [" << others << "]";
  return out << " workspace_bytes " << plan.workspace_bytes << " cost_us " << plan.cost_us;
}

Offer offer(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (entry.is_cuda() != device.is_cuda || (device.is_cuda && !entry.archs.includes(device.arch))) {
    return entry.archs.why_not;
  }
  if (!(entry.dtypes & dtype_bit(problem.dtype))) return "is not compiled for this dtype";
  // So that most may count extents from 1 on and have their products fit 64 bits.
  if (!entry.any_size && has_no_products(problem)) return "is for sums of one product or more";
  if (!entry.any_size && is_beyond_memory(problem)) return "takes tensors of up to 2^40 elements";
  Offer offered = entry.family->plan(entry, problem, device);
  if (offered.why_not == nullptr && offered.plan.workspace_bytes > workspace_room(problem, device, is_scaled(entry))) {
    return "would need too much workspace";
  }
  return offered;
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
  using namespace cost::exact;
  const double host_us = problem.pass == Pass::kFprop ? kHostUs : kGradientHostUs;
  const bool as_cheap = exact.plan.cost_us <= std::max(kTimes * rounded.plan.cost_us + kHiddenUs, host_us);
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
    const Offer offered = forced && !names_kernel(force, entry.name) ? Offer("is not among the kernels asked for")
                                                                     : offer(entry, problem, device);
    if (offered.why_not != nullptr) {
      refused.emplace_back(entry.name, offered.why_not);
    } else {
      others.emplace(offered.plan.cost_us, entry.name);
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
