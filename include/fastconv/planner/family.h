// What the planner knows of the ways to compute: families of compiled kernels. Each has a folder under families/.
#pragma once

#include <iosfwd>
#include <utility>
#include <vector>

#include "fastconv/core/problem.h"
#include "fastconv/planner/device_spec.h"
#include "fastconv/planner/plan.h"

namespace fastconv {

// A kernel's plan, or a sentence that says why it has none.
struct Offer {
  Offer(const char* why) : why_not(why) {}
  Offer(Plan of) : plan(std::move(of)) {}

  const char* why_not = nullptr;  // null if there is a plan
  Plan plan;
};

// Kernels that share a planner and a launcher. They differ in their configs, which the family alone reads, as it alone
// reads a plan's tiling.
class Family {
 public:
  const char* const name;  // that of its folder

  virtual void add_kernels(std::vector<KernelEntry>& table) const = 0;
  // Of one of its kernels, for a problem of the kernel's pass and element types on a device that it is compiled for.
  // Ask through offer() in planner.h, which knows what holds for all.
  virtual Offer plan(const KernelEntry& kernel, const ConvProblem& problem, const DeviceSpec& device) const = 0;
  // The tiling in words, each after a space.
  virtual void describe(std::ostream& out, const Plan& plan) const = 0;

 protected:
  explicit Family(const char* folder) : name(folder) {}
  ~Family() = default;
};

}  // namespace fastconv
