// Host side of depthwise kernels whose rows pass through threads: which buffers are which of the kernel's tensors.
#pragma once

#include "fastconv/core/buffers.h"
#include "fastconv/families/depthwise/tensors.h"
#include "fastconv/planner/plan.h"

namespace fastconv {

// `slides`: dgrad, too, goes over its source as fprop does, so that it has the last tap first.
inline void bind_buffers(DepthwiseTensors& tensors, const Plan& plan, const ConvProblem& problem,
                         const ConvBuffers& buffers, bool slides) {
  const bool dgrad = problem.pass == Pass::kDgrad;
  tensors.source = dgrad ? buffers.y : buffers.x;
  tensors.target = dgrad ? buffers.x : buffers.y;
  if (problem.pass == Pass::kWgrad) {
    tensors.dw = buffers.w;
    if (plan.split > 1) tensors.sums = static_cast<float*>(buffers.workspace);
    return;
  }
  tensors.epilogue = epilogue_params(problem, buffers);
  int64_t first_tap = 0;
  if (dgrad && slides) {
    Strides& strides = tensors.filter_strides;
    first_tap = (problem.r - 1) * strides.h + (problem.s - 1) * strides.w;
    strides.h = -strides.h, strides.w = -strides.w;
  }
  tensors.filter = static_cast<const char*>(buffers.w) + first_tap * element_size(problem.dtype);
}

}  // namespace fastconv
