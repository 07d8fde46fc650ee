// The family's launchers, each instantiated in a file of its own so that they compile in parallel.
#pragma once

#include "fastconv/families/depthwise/config.h"
#include "fastconv/launch/launchers.h"

namespace fastconv {

template <DepthwiseKind kKind, typename T>
Launcher depthwise_launcher(int line);
template <typename T>
Launcher depthwise_any_launcher(int line);
template <typename T>
Launcher depthwise_banded_launcher(int line);
template <typename T>
Launcher depthwise_cross_launcher(int line);
template <typename T>
Launcher depthwise_diagonal_launcher(int line);
template <typename T>
Launcher depthwise_pairs_launcher(int line);
template <typename T>
Launcher depthwise_sequence_launcher(int line);

}  // namespace fastconv
