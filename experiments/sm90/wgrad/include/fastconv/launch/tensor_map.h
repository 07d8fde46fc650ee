#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "fastconv/core/problem.h"
#include "fastconv/planner/halo_sm90.h"

namespace fastconv {

// Describes a 16-bit tensor to the copy engine; swizzled rows are `row_bytes` long: 32, 64 or 128.
cudaError_t encode_tensor_map(const HaloTensorMap& map, DType dtype, int row_bytes, const void* address,
                              CUtensorMap* out);

}  // namespace fastconv
