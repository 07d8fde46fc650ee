// How long launches take, one after the other in a CUDA graph.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

inline void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(1);
}

// Microseconds of one of `launches`: launch(i, stream) makes the i-th. The median over replays, but for the first ones.
template <typename Launch>
float median_us(int launches, Launch&& launch) {
  constexpr int kFirst = 3, kReplays = 11;
  cudaStream_t stream;
  check(cudaStreamCreate(&stream));
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) {
    launch(i, stream);
    check(cudaGetLastError());
  }
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  std::vector<float> us;
  for (int i = 0; i < kFirst + kReplays; ++i) {
    check(cudaEventRecord(begin, stream));
    check(cudaGraphLaunch(executable, stream));
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    float ms;
    check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= kFirst) us.push_back(1000 * ms / launches);
  }
  std::sort(us.begin(), us.end());
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  check(cudaGraphExecDestroy(executable));
  check(cudaGraphDestroy(graph));
  check(cudaStreamDestroy(stream));
  return us[kReplays / 2];
}
