// The kernel families behind run_cpu.
#pragma once

#include "fastconv/cpu/conv_cpu.h"
#include "fastconv/cpu/scalar.h"

namespace fastconv {

// What is computed with T, computed with Scalar: im2col or col2im, and the runtime's matrix product. The matrix of
// pixels and taps exists a block of kBlockElements at a time, or what one row of the result needs if that is more; the
// weight gradient's partial sums take kPartialElements, or one filter if that is more. What lies in another order or
// type than the product takes is copied: the filter as a whole.
inline constexpr int64_t kBlockElements = 1 << 20;
inline constexpr int64_t kPartialElements = 1 << 21;
template <class T, class Scalar>
void gemm_cpu(const ConvProblem& problem, const ConvBuffers& buffers, const CpuRuntime& runtime);

// Multiply-adds of whole vectors, of channels where groups of one channel lie side by side, else of columns. For few
// channels in a group. About 0.5 MiB a thread; the weight gradient also has partial sums, 32 at most for every element
// of the filter.
template <class T>
void depthwise_cpu(const ConvProblem& problem, const ConvBuffers& buffers, const CpuRuntime& runtime);

// What a sum is that kernels found to be NaN, without its bias. They take pixels outside the image for zeros, which an
// infinity or NaN of the other operand makes NaNs; here they are left out. NaN at once for an element of y or dx that
// sees no padding. `witness`, 0 at first, is a row of y in which a weight gradient found its NaN: the next one is most
// likely to find its own there. float16 and bfloat16 are summed in float32.
template <class T>
Accumulator<T> by_definition(const ConvProblem& problem, const ConvBuffers& buffers, int64_t n, int64_t c, int64_t h,
                             int64_t w, int64_t* witness = nullptr);

}  // namespace fastconv
