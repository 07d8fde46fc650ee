// What it costs a kernel to write an NCHW tensor anew as rows of pixels, and back: tile/reorder.cuh alone, L2 full of
// other data, with and without the wait for all blocks.
//   nvcc -std=c++20 -O3 -arch=sm_90a -Iinclude bench/micro/reorder.cu src/planner/{reorder,copies}.cpp \
//     src/launch/tensor_map.cpp -o reorder && ./reorder
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>

#include "fastconv/launch/tensor_map.h"
#include "fastconv/tile/plan_reorder.h"
#include "fastconv/tile/reorder.cuh"

using fastconv::Reorder;

template <bool kToRows, int kWarps>
__global__ __launch_bounds__(384, 1) void reorder(const __grid_constant__ Reorder order,
                                                  const __grid_constant__ CUtensorMap boxes, bool waits) {
  extern __shared__ uint8_t smem_raw[];
  const uint32_t smem = (fastconv::ptx::smem_address(smem_raw) + 1023) & ~1023u;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t buffer = smem + warp * fastconv::kReorderBytes;
  if constexpr (kToRows) {
    fastconv::reorder_to_rows(order, boxes, buffer, warp, kWarps, lane);
  } else if (warp < kWarps) {
    fastconv::reorder_to_planes(order, buffer, warp, kWarps, lane);
  }
  if (waits) fastconv::sync_grid();
}

template <bool kToRows, int kWarps>
float time_us(const Reorder& order, const CUtensorMap& boxes, bool waits, void* other) {
  constexpr int kBytes = kWarps * fastconv::kReorderBytes + 1024;
  const auto kernel = reorder<kToRows, kWarps>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative, cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = 132, config.blockDim = 384, config.dynamicSmemBytes = kBytes;
  config.attrs = &cooperative, config.numAttrs = waits;
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  float us[9];
  for (float& one : us) {
    cudaMemset(other, 1, 256 << 20);
    cudaEventRecord(begin);
    cudaLaunchKernelEx(&config, kernel, order, boxes, waits);
    cudaEventRecord(end);
    cudaDeviceSynchronize();
    cudaEventElapsedTime(&one, begin, end);
    one *= 1000;
  }
  std::sort(us, us + 9);
  return us[4];
}

int main() {
  struct {
    const char* name;
    int64_t images, channels, pixels;
  } const tensors[] = {{"nothing", 0, 64, 64},        {"rn50_l4", 64, 512, 49},   {"rn50_l3", 64, 256, 196},
                       {"rn50_l2", 64, 128, 784},     {"deeplab", 8, 2048, 1089}, {"rn50_l2s2", 64, 128, 3136},
                       {"sd_vae", 2, 512, 128 * 128}, {"seed_5x7", 8, 64, 131072}};
  void* other;
  cudaMalloc(&other, 256 << 20);
  for (const auto& t : tensors) {
    const fastconv::Side side{t.images, t.channels, 1, t.pixels, {t.channels * t.pixels, t.pixels, t.pixels, 1}, 128};
    Reorder order = fastconv::make_reorder(side, 1);
    const size_t bytes = size_t{2} * t.images * t.channels * t.pixels + 2;
    cudaMalloc(&order.planes, bytes), cudaMalloc(&order.rows, bytes);
    const fastconv::TensorMapSpec spec = fastconv::reorder_boxes(side, 1);
    CUtensorMap boxes{};
    if (order.units > 0 && spec.size[0] > 0) {
      boxes = fastconv::encode_tensor_map(spec, fastconv::DType::kFloat16, order.planes);
    }
    printf("%-10s %6.1f MB: to rows %.1f us, and wait %.1f, to planes and wait %.1f\n", t.name, bytes / 1e6,
           time_us<true, 12>(order, boxes, false, other), time_us<true, 12>(order, boxes, true, other),
           time_us<false, 8>(order, boxes, true, other));
    cudaFree(order.planes), cudaFree(order.rows);
  }
  printf("%s\n", cudaGetErrorString(cudaGetLastError()));
}
