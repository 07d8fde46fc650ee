#include "fastconv/planner/plan_cache.h"

#include <utility>

namespace fastconv {

const Choice& PlanCache::plan(const ConvProblem& problem, const DeviceSpec& device, std::string_view force) {
  if (force_ != force) choices_.clear(), force_ = force;
  const Key key{problem, device};
  if (const auto known = choices_.find(key); known != choices_.end()) return known->second;
  ++made_;
  Choice choice = make_plan(problem, device, force);
  if (!choice.plan.kernel) return refusal_ = std::move(choice);  // not kept: it is long
  if (choices_.size() >= most_) choices_.clear();
  return choices_.emplace(key, std::move(choice)).first->second;
}

}  // namespace fastconv
