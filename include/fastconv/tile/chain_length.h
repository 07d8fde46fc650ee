// How long sums of float32 grow before they are put aside.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"

namespace fastconv {

// Additions in one chain, after which its sum is put aside: a chain's rounding error grows with the root of its length.
// 128 keeps float32 within 1.2 times cuDNN's error (docs/perf-log.md), but for strided input gradients, where cuDNN's
// is smaller. 16-bit results round off far more than a long chain does, and double has precision to spare.
inline int chain_length(const ConvProblem& problem) {
  if (problem.dtype != DType::kFloat32) return INT32_MAX;
  const bool strided = problem.stride.h > 1 || problem.stride.w > 1;
  return problem.pass == Pass::kDgrad && strided ? 64 : 128;
}

}  // namespace fastconv
