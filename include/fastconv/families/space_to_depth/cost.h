#pragma once

#include "fastconv/planner/cost.h"

namespace fastconv::cost {
#include "fastconv/families/space_to_depth/costs.def"
}
