// What it costs a kernel to write an NCHW tensor anew as rows of pixels, and back: tile/reorder.cuh alone, L2 full of
// other data, with and without the wait for all blocks.
//   nvcc -std=c++20 -O3 -arch=sm_90a -Iinclude bench/micro/reorder.cu -o reorder && ./reorder
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>

#include "fastconv/ptx/mbarrier.cuh"
#include "fastconv/tile/reorder.cuh"

using fastconv::Reorder;

template <bool kToRows, int kWarps>
__global__ __launch_bounds__(384, 1) void reorder(const __grid_constant__ Reorder order, bool waits) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const int warp = threadIdx.x / 32;
  if (warp < kWarps) {
    const uint32_t buffer = fastconv::ptx::smem_address(smem) + warp * fastconv::kReorderBytes;
    fastconv::reorder_tensor<kToRows>(order, buffer, warp, kWarps, threadIdx.x % 32);
  }
  if (waits) fastconv::sync_grid();
}

template <bool kToRows, int kWarps>
float time_us(const Reorder& order, bool waits, void* other) {
  constexpr int kBytes = kWarps * fastconv::kReorderBytes;
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
    cudaLaunchKernelEx(&config, kernel, order, waits);
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
    int images, channels, pixels;
  } const tensors[] = {{"nothing", 0, 64, 64},        {"rn50_l4", 64, 512, 49},   {"rn50_l3", 64, 256, 196},
                       {"rn50_l2", 64, 128, 784},     {"deeplab", 8, 2048, 1089}, {"rn50_l2s2", 64, 128, 3136},
                       {"sd_vae", 2, 512, 128 * 128}, {"seed_5x7", 8, 64, 131072}};
  void* other;
  cudaMalloc(&other, 256 << 20);
  for (const auto& t : tensors) {
    const int channel_blocks = t.channels / fastconv::kReorderChannels;
    const int pixel_blocks = (t.pixels + fastconv::kReorderPixels - 1) / fastconv::kReorderPixels;
    Reorder order{};
    order.plane_n = int64_t{t.channels} * t.pixels, order.plane_c = t.pixels;
    order.channels = order.row = t.channels, order.pixels = t.pixels;
    order.copied = t.pixels % 8 != 0;
    const int even = (t.pixels + pixel_blocks * 8 - 1) / (pixel_blocks * 8) * 8;
    order.block_pixels = order.copied ? even : fastconv::kReorderPixels;
    order.vector = t.pixels % 8 == 0 ? 8 : t.pixels % 2 == 0 ? 2 : 1;
    order.units = t.images * channel_blocks * pixel_blocks;
    order.channel_blocks = fastconv::FastDivmod(channel_blocks),
    order.pixel_blocks = fastconv::FastDivmod(pixel_blocks);
    const size_t bytes = size_t{2} * t.images * t.channels * t.pixels + 2;
    cudaMalloc(&order.planes, bytes), cudaMalloc(&order.rows, bytes);
    printf("%-10s %6.1f MB: to rows %.1f us, and wait %.1f, to planes and wait %.1f\n", t.name, bytes / 1e6,
           time_us<true, 12>(order, false, other), time_us<true, 12>(order, true, other),
           time_us<false, 8>(order, true, other));
    cudaFree(order.planes), cudaFree(order.rows);
  }
  printf("%s\n", cudaGetErrorString(cudaGetLastError()));
}
