#pragma once

#include <cuda_runtime.h>

#include "fastconv/core/buffers.h"
#include "fastconv/planner/halo_sm90.h"

namespace fastconv {

// Packs the filter into buffers.workspace and convolves. Returns CUDA's first complaint.
cudaError_t run_halo(const HaloPlan& plan, const ConvProblem& problem, const ConvBuffers& buffers, cudaStream_t stream);

}  // namespace fastconv
