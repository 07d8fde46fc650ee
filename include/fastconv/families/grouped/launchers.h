// The family's launchers, each instantiated in a file of its own so that they compile in parallel.
#pragma once

#include "fastconv/launch/launchers.h"

namespace fastconv {

template <typename T>
Launcher grouped_launcher(int line);
template <typename T>
Launcher grouped_planes_launcher(int line);

}  // namespace fastconv
