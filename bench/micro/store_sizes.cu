// How long it takes to store 10, 20 or 40 MB, which fit the second-level cache, in the same memory again and again or
// in memory that 16 launches share: by warps, lines side by side or 64 of each 640 bytes, or by TMA.
//   nvcc -O3 -std=c++20 -arch=sm_90a -o store_sizes bench/micro/store_sizes.cu && ./store_sizes
#include <cstdint>

#include "graph_time.cuh"

enum How { kLines, kHalfLines, kPieces, kHalfPieces, kBulk512, kBulk4096 };
const char* const kNames[] = {"512 bytes a warp",    "256 bytes a warp", "64 of 640, 16 a lane",
                              "64 of 640, 8 a lane", "bulk copies, 512", "bulk copies, 4096"};

template <bool kFull>
__device__ void store(char* to, int value) {
  if constexpr (kFull) {
    asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %1, %1, %1};" ::"l"(to), "r"(value) : "memory");
  } else {
    asm volatile("st.global.L1::no_allocate.v2.b32 [%0], {%1, %1};" ::"l"(to), "r"(value) : "memory");
  }
}

template <How kHow>
__global__ void __launch_bounds__(512) fill(char* to, int64_t bytes) {
  extern __shared__ __align__(128) char from[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int64_t all = int64_t{gridDim.x} * warps, mine = int64_t{blockIdx.x} * warps + warp;
  if constexpr (kHow == kLines || kHow == kHalfLines) {
    constexpr int kLane = kHow == kLines ? 16 : 8;
    for (int64_t i = mine * 32 * kLane; i < bytes; i += all * 32 * kLane)
      store<kLane == 16>(to + i + lane * kLane, lane);
  } else if constexpr (kHow == kPieces || kHow == kHalfPieces) {
    constexpr int kLanes = kHow == kPieces ? 4 : 8, kAtOnce = 32 / kLanes;  // of a piece; pieces
    const int piece = blockIdx.x % 10;
    for (int64_t p = (blockIdx.x / 10 * warps + warp) * 32; p < bytes / 640; p += all / 10 * 32) {
#pragma unroll
      for (int k = 0; k < 32; k += kAtOnce) {
        store<kLanes == 4>(to + (p + k + lane / kLanes) * 640 + piece * 64 + lane % kLanes * (64 / kLanes), lane);
      }
    }
  } else if (lane == 0) {
    constexpr int kBytes = kHow == kBulk512 ? 512 : 4096;
    const auto smem = static_cast<uint32_t>(__cvta_generic_to_shared(from)) + warp * 4096 % 32768;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    for (int64_t i = mine * kBytes; i < bytes; i += all * kBytes) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to + i), "r"(smem), "r"(kBytes)
                   : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

template <How kHow>
void measure(int grid, int threads, char* memory) {
  for (const int sets : {1, 16}) {
    std::printf("%-20s %3d blocks of %3d, %2d places:", kNames[kHow], grid, threads, sets);
    for (const int64_t bytes : {10'240'000, 20'480'000, 40'960'000}) {
      const float us = median_us(64, [&](int i, cudaStream_t stream) {
        fill<kHow><<<grid, threads, 32768, stream>>>(memory + i % sets * bytes, bytes);
      });
      std::printf(" %6.2f", us);
    }
    std::printf(" us\n");
  }
}

int main() {
  char* memory;
  check(cudaMalloc(&memory, 900 << 20));
  for (const auto& [grid, threads] : {std::pair{130, 256}, {260, 256}, {130, 512}}) {
    measure<kLines>(grid, threads, memory);
    measure<kHalfLines>(grid, threads, memory);
    measure<kPieces>(grid, threads, memory);
    measure<kHalfPieces>(grid, threads, memory);
    measure<kBulk512>(grid, threads, memory);
    measure<kBulk4096>(grid, threads, memory);
  }
}
