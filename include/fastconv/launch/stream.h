// Where the kernels of one call are launched.
#pragma once

#include <cuda_runtime_api.h>

namespace fastconv {

struct Stream {
  cudaStream_t handle;
  // Whether a kernel of ours comes before the next one, which is then launched as that one exits. NOTES: behind kernels
  // of others that saved nothing when it was measured (docs/perf-log.md).
  bool behind_ours;
};

}  // namespace fastconv
