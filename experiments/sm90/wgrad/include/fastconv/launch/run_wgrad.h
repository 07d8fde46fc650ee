#pragma once

#include <cuda_runtime.h>

#include "fastconv/core/buffers.h"
#include "fastconv/planner/wgrad_sm90.h"

namespace fastconv {

// dW of buffers.x and buffers.y into buffers.w. Returns CUDA's first complaint.
cudaError_t run_wgrad(const WgradPlan& plan, const ConvProblem& problem, const ConvBuffers& buffers,
                      cudaStream_t stream);

}  // namespace fastconv
