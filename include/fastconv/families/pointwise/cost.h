#pragma once

#include "fastconv/planner/cost.h"

namespace fastconv::cost {
#include "fastconv/families/pointwise/costs.def"
}
