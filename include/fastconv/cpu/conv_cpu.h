// The CPU kernels. No torch: its threads and its matrix product come as functions.
#pragma once

#include <cstdint>
#include <functional>

#include "fastconv/core/buffers.h"
#include "fastconv/core/problem.h"
#include "fastconv/planner/plan.h"

namespace fastconv {

// Of a matrix in memory, one of the steps is 1. Elements.
struct Matrix {
  void* data;
  int64_t rows, cols, row_step, col_step;

  Matrix transposed() const { return {data, cols, rows, col_step, row_step}; }
};

struct CpuRuntime {
  // Calls body(begin, end) for disjoint ranges that cover [0, count), each at least `grain` long if count is.
  std::function<void(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body)> parallel_for;
  // out = a * b, or out += a * b; float32 or float64. On the calling thread alone if that is within parallel_for.
  std::function<void(DType, const Matrix& out, const Matrix& a, const Matrix& b, bool accumulate)> multiply;
  // Whether `multiply` has all of float32's digits now.
  std::function<bool()> float32_is_exact;
};

// The config of a CPU kernel.
enum class CpuMethod : int8_t { kGemm, kDepthwise };

void run_cpu(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, const CpuRuntime& runtime);

// Sum of grad_output over batch, rows and columns, for each channel. `problem` is that of the forward pass.
void bias_grad_cpu(const ConvProblem& problem, const void* grad_output, void* grad_bias, const CpuRuntime& runtime);

}  // namespace fastconv
