// The family's launchers, each instantiated in a file of its own so that they compile in parallel.
#pragma once

#include "fastconv/families/halo/config.h"
#include "fastconv/launch/launchers.h"

namespace fastconv {

template <HaloStaging kStaging, FilterTile kFilter, OperandForm kOperands, typename T>
Launcher halo_launcher(int line);

}  // namespace fastconv
