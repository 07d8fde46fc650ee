#pragma once

#include <cuda.h>

#include "fastconv/core/problem.h"
#include "fastconv/tile/tensor_map_spec.h"

namespace fastconv {

// Describes a tensor to TMA, which rounds float32 to TF32. Throws std::runtime_error if the driver refuses.
CUtensorMap encode_tensor_map(const TensorMapSpec& spec, DType dtype, const void* address);

}  // namespace fastconv
