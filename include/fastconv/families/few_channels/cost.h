// What the planners of this family estimate times with.
#pragma once

#include <cmath>

#include "fastconv/planner/cost_model.h"

namespace fastconv {

inline constexpr double kStoredShare = 1.12;  // where most is stored: of that the L2 cache keeps some
// Tensor cores, times what is expected: of one channel, depthwise filters take as long, and do not round; what they are
// expected to take is more.
inline constexpr double kOneChannel = 1.2;

// Of two that go on at the same time: where both take as long, neither hides all of the other. NOTES: by roots, since
// pow is another one since glibc 2.29.
inline double together_us(double a, double b) { return std::sqrt(std::sqrt(a * a * a * a + b * b * b * b)); }

}  // namespace fastconv
