// Where the kernels of one call are launched.
#pragma once

#include <cuda_runtime_api.h>

namespace fastconv {

struct Stream {
  cudaStream_t handle;
  // Whether a kernel of ours comes before the next one; that one is then launched before it has ended. NOTES: behind
  // kernels of others, which do not ask for it, that saves nothing (docs/perf-log.md).
  bool behind_ours;
};

}  // namespace fastconv
