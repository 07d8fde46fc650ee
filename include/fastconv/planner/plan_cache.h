// Plans of the problems that were met, so that each is made once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "fastconv/planner/planner.h"

namespace fastconv {

// Of one thread. What is kept is forgotten, all at once, where it is too much: a deep model's steps have some hundred
// problems, and one whose sizes never repeat has no use for any.
class PlanCache {
 public:
  explicit PlanCache(size_t most = 4096) : most_(most) {}

  // make_plan(). The answer holds until the next call.
  const Choice& plan(const ConvProblem& problem, const DeviceSpec& device, std::string_view force = {});

  int64_t made() const { return made_; }  // plans, so far

 private:
  struct Key {
    ConvProblem problem;
    DeviceSpec device;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const { return hash(key.problem); }
  };

  size_t most_;
  std::unordered_map<Key, Choice, Hash> choices_;
  Choice refusal_;
  std::string force_;
  int64_t made_ = 0;
};

}  // namespace fastconv
