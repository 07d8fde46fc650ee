// The kernel families behind run_cpu.
#pragma once

#include "fastconv/cpu/conv_cpu.h"
#include "fastconv/cpu/scalar.h"

namespace fastconv {

// im2col + GEMM. The im2col matrix exists a cache block at a time: at most 0.5 MiB a thread. Where the result is small,
// the reduction is cut into parts whose sums take at most 8 MiB, whatever the problem.
template <class T>
void gemm_cpu(const ConvProblem& problem, const ConvBuffers& buffers, const ParallelFor& parallel_for);

// For few channels in a group: as above, but a matrix row or a dot product at a time. 0.2 MiB a thread; wgrad also
// needs partial sums, 32 at most for every element of the filter.
inline constexpr int64_t kDepthwiseMaxChannels = 16;  // in a group, of x or of y
template <class T>
void depthwise_cpu(const ConvProblem& problem, const ConvBuffers& buffers, const ParallelFor& parallel_for);

// Which tensors take the roles of lowering.h.
template <class T>
struct Operands {
  T *image, *target, *filter;

  Operands(Pass pass, const ConvBuffers& buffers)
      : image(static_cast<T*>(pass == Pass::kDgrad ? buffers.y : buffers.x)),
        target(static_cast<T*>(pass == Pass::kDgrad ? buffers.x : buffers.y)),
        filter(static_cast<T*>(buffers.w)) {}
};

}  // namespace fastconv
