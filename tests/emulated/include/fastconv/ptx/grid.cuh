// Emulated: see the header that this one hides.
#pragma once

#include "emulated/cuda.h"

namespace fastconv::ptx {

using emulated::grid_word;

}  // namespace fastconv::ptx
