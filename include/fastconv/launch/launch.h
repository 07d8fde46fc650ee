// The entry to the CUDA library below the planner.
#pragma once

#include "fastconv/core/buffers.h"
#include "fastconv/core/problem.h"
#include "fastconv/planner/device_spec.h"
#include "fastconv/planner/plan.h"

namespace fastconv {

// Launches on `stream` (a cudaStream_t) of the current device. Throws std::runtime_error with CUDA's reason if a launch
// is refused; never synchronises. behind_ours: see launch/stream.h.
void run_cuda(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, void* stream,
              bool behind_ours = false);

// Sum of y over batch, rows and columns, for each channel, in fixed order. `problem` is that of the forward pass and
// has channels; workspace holds plan_bias_grad()'s bytes.
void bias_grad_cuda(const ConvProblem& problem, const DeviceSpec& device, const void* grad_output, void* grad_bias,
                    void* workspace, void* stream);

// Values side by side, at multiples of 16 bytes, in another type. Behind a kernel of ours.
void cast_cuda(DType from_type, DType to_type, const void* from, void* to, int64_t count, void* stream);

int current_cuda_device();

// What is planned for: the device, or as much as it has of the GPU that the environment variable FASTCONV_ARCH names,
// whose kernels then run in its place. Cached per device; thread-safe. Throws std::runtime_error if CUDA does, or if
// there is no such GPU.
const DeviceSpec& cuda_device_spec(int device_index);

}  // namespace fastconv
