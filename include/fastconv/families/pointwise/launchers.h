// The family's launchers, each instantiated in a file of its own so that they compile in parallel.
#pragma once

#include "fastconv/launch/launchers.h"
#include "fastconv/tile/operands.h"

namespace fastconv {

template <Pass kPass, typename T>
Launcher pointwise_launcher(int line);
template <OperandForm kForm, typename T>
Launcher tap_launcher(int line);
template <OperandForm kForm, typename T>
Launcher tap_wgrad_launcher(int line);

}  // namespace fastconv
