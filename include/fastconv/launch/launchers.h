// From a compiled kernel to the function that launches it.
#pragma once

#include "fastconv/core/buffers.h"
#include "fastconv/core/problem.h"
#include "fastconv/launch/stream.h"
#include "fastconv/planner/registry.h"

namespace fastconv {

using Launcher = void (*)(const Plan&, const ConvProblem&, const ConvBuffers&, Stream&);

// Of a CUDA kernel and one of the element types that it is compiled for; asks the kernel's family.
Launcher launcher_of(const KernelEntry& kernel, DType dtype);

// What run_cuda() does, for a plan that may be a part of another.
void run_plan(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream);

// Of what a scaled kernel multiplies, in the first kRangeBytes of the workspace; see planner/scaled.h.
const OperandRange* measure_operands(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers,
                                     Stream& stream);

}  // namespace fastconv
