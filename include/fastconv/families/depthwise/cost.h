// What the planners of this family estimate times with.
#pragma once

#include "fastconv/planner/cost_model.h"

namespace fastconv {

inline constexpr double kBoxedLaunchUs = 2.5;  // kLaunchUs, where TMA brings boxes of pixels

}  // namespace fastconv
