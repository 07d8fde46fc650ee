// What plans and launches need to know of tile/epilogue.cuh.
#pragma once

#include "fastconv/core/buffers.h"
#include "fastconv/core/problem.h"

namespace fastconv {

inline constexpr int kStagedEpilogueBytes = 4;  // of a filter, in shared memory

// In the parameters of kernels.
struct EpilogueParams {
  const void* bias = nullptr;  // null if there is none
  bool wide_bias = false;      // in the type of sums
  Activation activation = Activation::kNone;
};

// Of a gradient: nothing.
inline EpilogueParams epilogue_params(const ConvProblem& problem, const ConvBuffers& buffers) {
  if (problem.pass != Pass::kFprop) return {};
  return {buffers.bias, buffers.wide_bias, buffers.activation};
}

}  // namespace fastconv
