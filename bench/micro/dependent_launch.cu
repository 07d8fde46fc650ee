// Where a kernel's blocks go that programmatic dependent launch starts while the one before it ends: two kernels in
// turns, of bandwidth, by where the first says that the next may start.
//   nvcc -std=c++17 -O3 -arch=sm_90a bench/micro/dependent_launch.cu -o dependent_launch && ./dependent_launch
#include <cuda_runtime.h>

#include <algorithm>

#include "graph_time.cuh"

enum Start { kInOrder, kAtExit, kAfterWait, kAtOnce };
constexpr const char* kNames[] = {"in order", "at exit", "after its wait", "at once"};
constexpr int kThreads = 256, kPairs = 12, kMostBlocks = 1024;

__global__ void __launch_bounds__(kThreads)
    copy(Start start, const float4* x, float4* y, long count, int* multiprocessors) {
  if (start == kAtOnce) asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (start == kAfterWait) asm volatile("griddepcontrol.launch_dependents;");
  if (threadIdx.x == 0) asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessors[blockIdx.x]));
  const long each = (count + gridDim.x - 1) / gridDim.x, begin = each * blockIdx.x, end = min(begin + each, count);
#pragma unroll 4
  for (long i = begin + threadIdx.x; i < end; i += kThreads) y[i] = x[i];
}

int main() {
  constexpr long kLarge = (14 << 20) / sizeof(float4), kSmall = (4 << 20) / sizeof(float4);
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0));
  check(cudaFuncSetAttribute(copy, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10));
  float4 *x[kPairs], *y[kPairs], *z[kPairs];
  for (int i = 0; i < kPairs; ++i) {
    for (float4** data : {&x[i], &y[i], &z[i]}) check(cudaMalloc(data, kLarge * sizeof(float4)));
  }
  int* where;
  check(cudaMallocManaged(&where, 2 * kPairs * kMostBlocks * sizeof *where));
  for (const int smem_bytes : {20 << 10, 60 << 10, 200 << 10}) {
    for (const int blocks : {132, 264, 528}) {
      for (const Start start : {kInOrder, kAtExit, kAfterWait, kAtOnce}) {
        const float us = median_us(2 * kPairs, [&](int i, cudaStream_t stream) {
          cudaLaunchAttribute early{};
          early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
          early.val.programmaticStreamSerializationAllowed = 1;
          cudaLaunchConfig_t config{};
          const bool large = i % 2 == 0;
          config.gridDim = large ? blocks : 220, config.blockDim = kThreads, config.stream = stream;
          config.dynamicSmemBytes = large ? smem_bytes : 0;
          config.attrs = &early, config.numAttrs = start != kInOrder;
          const float4* from = large ? x[i / 2] : y[i / 2];
          float4* to = large ? y[i / 2] : z[i / 2];
          check(cudaLaunchKernelEx(&config, copy, start, from, to, large ? kLarge : kSmall, where + i * kMostBlocks));
        });
        int used = 0, most = 0;
        for (int pair = 1; pair < kPairs; ++pair) {  // nothing ends before the first
          int of_sm[1024] = {};
          for (int block = 0; block < blocks; ++block) ++of_sm[where[2 * pair * kMostBlocks + block]];
          used += 1024 - static_cast<int>(std::count(of_sm, of_sm + 1024, 0));
          most = std::max(most, *std::max_element(of_sm, of_sm + 1024));
        }
        std::printf("%3d blocks of %3d KiB, started %-14s: %5.1f us a pair, on %3d of %d multiprocessors, at most %d\n",
                    blocks, smem_bytes >> 10, kNames[start], 2 * us, used / (kPairs - 1), device.multiProcessorCount,
                    most);
      }
    }
  }
}
