#pragma once

#include "fastconv/planner/cost.h"

namespace fastconv::cost {
#include "fastconv/families/grouped/costs.def"
}
