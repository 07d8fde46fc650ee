#pragma once

#include "fastconv/planner/cost.h"

namespace fastconv::cost {
#include "fastconv/tile/costs.def"
}
