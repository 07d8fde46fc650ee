// The family's launchers, each instantiated in a file of its own so that they compile in parallel.
#pragma once

#include "fastconv/launch/launchers.h"

namespace fastconv {

template <typename T>
Launcher quads_launcher(int line);
template <typename T>
Launcher quads_wgrad_launcher(int line);
template <typename T>
Launcher embed_launcher(int line);
template <typename T>
Launcher stem_launcher(int line);  // float alone

}  // namespace fastconv
