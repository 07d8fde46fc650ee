// What starting copies costs: rows of some pixels of 64 channels, copied by as many warps of a block, a lane for each
// row, into a ring of stages. Multiprocessors' clocks for a copy and for a pixel.
//   nvcc -std=c++20 -O3 -arch=sm_90a -Iinclude bench/micro/row_copies.cu src/launch/tensor_map.cpp \
//     src/core/problem.cpp -o row_copies && ./row_copies
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>

#include "fastconv/launch/tensor_map.h"
#include "fastconv/ptx/mbarrier.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"

namespace ptx = fastconv::ptx;

constexpr int kStages = 4, kStageBytes = 49152, kPixelBytes = 128, kMultiprocessors = 132;

struct Work {
  int warps, copies, box_bytes, boxes_h, step_h, blocks_c, rounds, first_w;
};

__global__ __launch_bounds__(128, 1) void copy_rows(const __grid_constant__ CUtensorMap map, Work work,
                                                    long long* clocks) {
  extern __shared__ uint8_t smem_raw[];
  const uint32_t smem = (ptx::smem_address(smem_raw) + 1023) & ~1023u, barriers = smem + kStages * kStageBytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < kStages; i += 128) ptx::mbarrier_init(barriers + 8 * i, 1);
  ptx::mbarrier_init_fence();
  __syncthreads();
  const long long begin = clock64();
  int i = 0;
  for (int round = 0; warp < work.warps && round < work.rounds; ++round) {
    for (int c = 0; c < work.blocks_c; ++c, ++i) {
      const int stage = i % kStages;
      const uint32_t barrier = barriers + 8 * stage;
      if (i >= kStages) ptx::mbarrier_wait(barrier, (i / kStages & 1) ^ 1);
      if (threadIdx.x == 0) ptx::mbarrier_arrive_expect(barrier, work.copies * work.box_bytes);
      __syncwarp();
      for (int copy = warp + lane * work.warps; copy < work.copies; copy += 32 * work.warps) {
        const int box = (blockIdx.x + round * gridDim.x) * work.copies + copy;
        ptx::tma_load(smem + stage * kStageBytes + copy * work.box_bytes, &map, c * 64, 0, work.first_w,
                      box % work.boxes_h * work.step_h, box / work.boxes_h % 64, barrier);
      }
    }
  }
  for (int last = i - kStages; last < i; ++last) {
    if (warp < work.warps) ptx::mbarrier_wait(barriers + 8 * (last % kStages), last / kStages & 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - begin;
}

int main() {
  const struct {
    const char* name;
    uint64_t channels, size;  // of 64 images
    uint32_t w, h, step;      // of a box
    int first_w;
  } cases[] = {{"rows of 7 of 14, each second", 1024, 14, 7, 1, 2, 0},
               {"rows of 7", 1024, 7, 7, 1, 1, 0},
               {"rows of 7 and a zero each side", 1024, 7, 9, 1, 1, -1},
               {"images of 7 x 7", 1024, 7, 7, 7, 1, 0},
               {"rows of 14", 1024, 14, 14, 1, 1, 0},
               {"rows of 28 of 56, each second", 128, 56, 28, 1, 2, 0},
               {"17 x 17 of 56 x 56, each second", 128, 56, 17, 17, 2, 0}};
  void* x;
  long long* clocks;
  cudaMalloc(&x, 64 << 20);
  cudaMemset(x, 0, 64 << 20);
  cudaMallocManaged(&clocks, kMultiprocessors * sizeof *clocks);
  constexpr int kSmem = kStages * kStageBytes + 2048;
  cudaFuncSetAttribute(copy_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmem);
  for (const auto& one : cases) {
    const uint64_t pixel = one.channels * 2, row = one.size * pixel;
    const fastconv::TensorMapSpec spec{{one.channels, 1, one.size, one.size, 64},
                                       {one.channels * 2, pixel, row, one.size * row},
                                       {64, 1, (one.w - 1) * one.step + 1, (one.h - 1) * one.step + 1, 1},
                                       {1, 1, one.step, one.step, 1},
                                       128};
    const CUtensorMap map = fastconv::encode_tensor_map(spec, fastconv::DType::kFloat16, x);
    for (int warps = 1; warps <= 4; ++warps) {
      Work work{};
      work.warps = warps, work.box_bytes = one.w * one.h * kPixelBytes;
      work.copies = std::min(32, std::max(1, 40000 / work.box_bytes));
      if (warps > work.copies) break;  // one without a copy would not be waited for
      work.boxes_h = std::max<int>(1, one.size / one.step / one.h), work.step_h = one.step * one.h;
      work.blocks_c = one.channels / 64, work.rounds = 128 / work.blocks_c, work.first_w = one.first_w;
      double least = 1e30;
      for (int i = 0; i < 4; ++i) {
        copy_rows<<<kMultiprocessors, 128, kSmem>>>(map, work, clocks);
        cudaDeviceSynchronize();
        double all = 0;
        for (int block = 0; block < kMultiprocessors; ++block) all += clocks[block];
        least = std::min(least, all / kMultiprocessors);
      }
      const double copies = 1. * work.rounds * work.blocks_c * work.copies;
      printf("%-32s %d warps: %7.1f clocks a copy, %5.2f a pixel, %4.1f bytes a clock %s\n", one.name, warps,
             least / copies, least / copies / (one.w * one.h), copies * work.box_bytes / least,
             cudaGetErrorName(cudaGetLastError()));
    }
  }
}
