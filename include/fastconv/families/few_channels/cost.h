#pragma once

#include "fastconv/planner/cost.h"

namespace fastconv::cost {
#include "fastconv/families/few_channels/costs.def"
}
