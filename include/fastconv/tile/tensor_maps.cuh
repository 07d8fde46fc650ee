// The tensor maps of an operand, as a kernel's parameter.
#pragma once

#include <cuda.h>

#include "fastconv/tile/tensor_map_spec.h"

namespace fastconv {

struct TensorMaps {
  CUtensorMap map[kMaxTensorMaps];
};

}  // namespace fastconv
