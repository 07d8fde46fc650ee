// Chooses a kernel. No timing runs, no caches, no torch, no CUDA: a pure function, the same answer every time.
#pragma once

#include <string>
#include <string_view>

#include "fastconv/core/problem.h"
#include "fastconv/planner/device_spec.h"
#include "fastconv/planner/plan.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

struct Choice {
  Plan plan;           // plan.kernel is null if nothing ran
  std::string reason;  // then: why
};

// Of a kernel of the problem's pass. What holds for all kernels comes before and after what the family says.
Offer offer(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device);

// `force`: empty, or names separated by commas; where one of them is a kernel of this pass and device kind, only the
// named kernels are considered.
Choice make_plan(const ConvProblem& problem, const DeviceSpec& device, std::string_view force = {});

// The chosen plan, what every other kernel of the pass would cost, cheapest first, and why the others refuse, or their
// number alone.
std::string explain(const ConvProblem& problem, const DeviceSpec& device, std::string_view force = {},
                    bool refusals = true);

}  // namespace fastconv
