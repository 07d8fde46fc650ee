// How fast an SM's eight warps store NCHW rows of 16-bit pixels, by the alignment of the rows: 128 planes, a
// tile of 2 rows x 256 bytes of each at a time, as the forward kernels do.
//   nvcc -std=c++17 -O3 -arch=sm_90a bench/micro/nchw_store.cu -o nchw_store && ./nchw_store
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

struct Planes {
  const char* name;
  int64_t bytes;
  int row_bytes, rows, images;
};

// `align`: rows begin at multiples of so many bytes, wherever the tensor puts them. A block takes `run` tiles in a row.
__global__ __launch_bounds__(256) void store(uint8_t* out, Planes planes, int align, int run) {
  const int warp = threadIdx.x / 32 % 4, half = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int across = planes.row_bytes / 256;
  const int64_t tiles = int64_t{planes.images} * (planes.rows / 2) * across;
  for (int64_t first = int64_t{blockIdx.x} * run; first < tiles; first += int64_t{gridDim.x} * run) {
    for (int64_t tile = first; tile < min(first + run, tiles); ++tile) {
      const int64_t q = tile % across, p = tile / across % (planes.rows / 2), n = tile / across / (planes.rows / 2);
      uint8_t* at = out + n * 128 * planes.bytes + (p * 2 + half) * planes.row_bytes + q * 256;
#pragma unroll 2
      for (int k = warp; k < 128; k += 4) {
        auto* row = reinterpret_cast<uint32_t*>(reinterpret_cast<uintptr_t>(at + k * planes.bytes) & ~(align - 1ll));
        row[lane] = threadIdx.x, row[lane + 32] = threadIdx.x;
      }
    }
  }
}

int main() {
  const Planes all[] = {{"seed_3x3", 1022ll * 1022 * 2, 2044, 1022, 16},
                        {"1024x1024", 1024ll * 1024 * 2, 2048, 1024, 16},
                        {"seed_5x7", 508ll * 250 * 2, 500, 508, 8}};
  uint8_t* out;
  cudaMalloc(&out, 5000000000ll);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  for (const Planes& planes : all) {
    for (const int align : {4, 32, 128}) {
      for (const int run : {1, 8}) {
        float best = 1e9f;
        for (int i = 0; i < 4; ++i) {
          float ms;
          cudaEventRecord(begin);
          store<<<132, 256>>>(out, planes, align, run);
          cudaEventRecord(end);
          cudaDeviceSynchronize();
          cudaEventElapsedTime(&ms, begin, end);
          best = std::min(best, ms);
        }
        const double bytes = 512.0 * 128 * planes.images * (planes.rows / 2) * (planes.row_bytes / 256);
        printf("%-10s rows at multiples of %3d bytes, %d tiles in a row: %.3f ms %.0f GB/s\n", planes.name, align, run,
               best, bytes / best / 1e6);
      }
    }
  }
  printf("%s\n", cudaGetErrorString(cudaGetLastError()));
}
