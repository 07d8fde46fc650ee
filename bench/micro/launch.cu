// What it costs to launch a kernel whose blocks wait for each other once: empty kernels of one block an SM,
// one after the other in a CUDA graph.
//   nvcc -std=c++17 -O3 -arch=sm_90a bench/micro/launch.cu -o launch && ./launch
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include "graph_time.cuh"

enum Wait { kNone, kGridSync, kCounter };

// All blocks of the grid, by a counter that only this grid size has used.
__device__ void wait_for_all(unsigned* counter) {
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned count;
    asm volatile("atom.add.release.gpu.u32 %0, [%1], 1;" : "=r"(count) : "l"(counter) : "memory");
    const unsigned all = (count / gridDim.x + 1) * gridDim.x;
    do {
      asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    } while (static_cast<int>(count - all) < 0);
  }
  __syncthreads();
}

template <Wait kWait, bool kEarly>
__global__ void __launch_bounds__(384, 1) empty(unsigned* counter) {
  if (kEarly) asm volatile("griddepcontrol.launch_dependents;");
  if (kEarly) asm volatile("griddepcontrol.wait;" ::: "memory");
  if (kWait == kGridSync) cooperative_groups::this_grid().sync();
  if (kWait == kCounter) wait_for_all(counter);
}

template <Wait kWait, bool kEarly>
void measure(const char* name, bool cooperative, int grid, int smem_bytes, unsigned* counter) {
  check(cudaMemset(counter, 0, sizeof *counter));
  check(cudaFuncSetAttribute(empty<kWait, kEarly>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes));
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2];
  config.gridDim = grid, config.blockDim = 384, config.dynamicSmemBytes = smem_bytes;
  config.attrs = attributes;
  if (cooperative) {
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs++].val.cooperative = 1;
  }
  if (kEarly) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  const float us = median_us(100, [&](int, cudaStream_t stream) {
    config.stream = stream;
    check(cudaLaunchKernelEx(&config, empty<kWait, kEarly>, counter));
  });
  std::printf("%-42s grid %d, shared memory %6d: %.2f us\n", name, grid, smem_bytes, us);
}

int main() {
  unsigned* counter;
  check(cudaMalloc(&counter, sizeof *counter));
  for (const int grid : {112, 132}) {
    for (const int smem_bytes : {1024, 200 * 1024}) {
      measure<kNone, false>("plain", false, grid, smem_bytes, counter);
      measure<kNone, true>("begins early", false, grid, smem_bytes, counter);
      measure<kNone, false>("cooperative", true, grid, smem_bytes, counter);
      measure<kGridSync, false>("cooperative, grid sync", true, grid, smem_bytes, counter);
      measure<kCounter, false>("cooperative, own counter", true, grid, smem_bytes, counter);
      measure<kGridSync, true>("cooperative, begins early, grid sync", true, grid, smem_bytes, counter);
      measure<kCounter, true>("cooperative, begins early, own counter", true, grid, smem_bytes, counter);
    }
  }
}
