// The CPU kernels. No torch: the thread pool comes as a function.
#pragma once

#include <cstdint>
#include <functional>

#include "fastconv/core/buffers.h"
#include "fastconv/core/problem.h"
#include "fastconv/planner/planner.h"

namespace fastconv {

// Calls body(begin, end) for disjoint ranges that cover [0, count), each at least `grain` long if count is.
using ParallelFor =
    std::function<void(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body)>;

void run_cpu(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, const ParallelFor& parallel_for);

// Sum of grad_output over batch, rows and columns, for each channel. `problem` is that of the forward pass.
void bias_grad_cpu(const ConvProblem& problem, const void* grad_output, void* grad_bias,
                   const ParallelFor& parallel_for);

}  // namespace fastconv
