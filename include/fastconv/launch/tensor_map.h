#pragma once

#include <cuda.h>

#include "fastconv/core/problem.h"
#include "fastconv/tile/tensor_map_spec.h"

namespace fastconv {

// Describes a 16-bit tensor to the copy engine. Throws std::runtime_error if the driver refuses.
CUtensorMap encode_tensor_map(const TensorMapSpec& spec, DType dtype, const void* address);

}  // namespace fastconv
