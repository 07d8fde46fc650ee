// The family's launchers, each instantiated in a file of its own so that they compile in parallel.
#pragma once

#include "fastconv/families/wgrad/config.h"
#include "fastconv/launch/launchers.h"

namespace fastconv {

template <WgradStaging kStaging, OperandForm kOperands, typename T>
Launcher wgrad_launcher(int line);

}  // namespace fastconv
