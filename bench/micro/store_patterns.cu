// What it costs how a warp's stores lie in memory: 256 bytes a pixel (128 by 8 bytes a lane), of which a warp writes
// all or half at once. Two warps share some pixels, each with one half of them, or each warp has pixels of its own and
// writes one half, then the other. Quarters and eighths: every second one. `lanes`: in the order of memory, or as
// products of 16x8 leave them: lane i has pixel i % 4.
//   nvcc -O3 -std=c++20 -arch=sm_90a -o store_patterns bench/micro/store_patterns.cu && ./store_patterns
#include <cstdint>

#include "graph_time.cuh"

enum Pattern { kWhole, kHalves, kHalvesOfProducts, kPixelPairs, kLinesOfProducts, kQuarters, kEighths };
const char* const kNames[] = {"512 bytes side by side",
                              "halves, in order",
                              "halves, of products",
                              "2 pixels, lanes in turns",
                              "4 x 128 side by side, of products",
                              "quarters, of products",
                              "eighths, of products"};

// Of a warp's 32 vectors in two times so many bytes: the place of a lane's. kVector: bytes.
template <Pattern kPattern, int kVector>
__device__ int place(int half, int lane) {
  switch (kPattern) {
    case kHalves: return (lane / 8 * 16 + half * 8 + lane % 8) * kVector;
    case kHalvesOfProducts: return (lane % 4 * 16 + half * 8 + lane / 4) * kVector;
    case kPixelPairs: return (half * 32 + lane % 2 * 16 + lane / 2) * kVector;
    case kLinesOfProducts: return (half * 32 + lane % 4 * 8 + lane / 4) * kVector;
    case kQuarters: return (lane % 4 * 16 + lane / 16 * 8 + half * 4 + lane / 4 % 4) * kVector;
    case kEighths: return (lane % 4 * 16 + lane / 8 * 4 + half * 2 + lane / 4 % 2) * kVector;
    default: return (half * 32 + lane) * kVector;
  }
}

template <Pattern kPattern, bool kOwn, int kVector>
__global__ void __launch_bounds__(256) fill(char* to, int64_t tiles) {
  constexpr int kBytes = 64 * kVector;  // of two halves
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    for (int i = warp / 2; i < 16; i += 4) {
      char* pair = to + (tile * 16 + i) * 2 * kBytes;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        char* at = kOwn ? pair + warp % 2 * kBytes + place<kPattern, kVector>(k, lane)
                        : pair + k * kBytes + place<kPattern, kVector>(warp % 2, lane);
        if constexpr (kVector == 16) {
          asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(lane), "r"(i),
                       "r"(warp), "r"(static_cast<int>(tile))
                       : "memory");
        } else {
          asm volatile("st.global.L1::no_allocate.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(lane), "r"(i) : "memory");
        }
      }
    }
  }
}

template <Pattern kPattern, bool kOwn, int kVector>
void measure(int64_t bytes, char* memory, int64_t memory_bytes) {
  const int sets = static_cast<int>(memory_bytes / bytes), calls = std::max(sets, 12);
  const float us = median_us(calls, [&](int i, cudaStream_t stream) {
    fill<kPattern, kOwn, kVector>
        <<<132 * 4, 256, 0, stream>>>(memory + i % sets * bytes, bytes / (16 * 2 * 64 * kVector));
  });
  std::printf("%3d MB, %2d bytes a lane, %-34s %-22s %7.2f us %6.0f GB/s\n", static_cast<int>(bytes >> 20), kVector,
              kNames[kPattern], kOwn ? "one warp, both halves" : "two warps", us, bytes / us / 1e3);
}

int main() {
  const int64_t all = int64_t{2} << 30;
  char* memory;
  check(cudaMalloc(&memory, all));
  for (const int64_t bytes : {int64_t{392} << 20, int64_t{96} << 20}) {
    measure<kWhole, false, 16>(bytes, memory, all);
    measure<kWhole, true, 16>(bytes, memory, all);
    measure<kHalves, false, 16>(bytes, memory, all);
    measure<kHalves, true, 16>(bytes, memory, all);
    measure<kHalvesOfProducts, false, 16>(bytes, memory, all);
    measure<kHalvesOfProducts, true, 16>(bytes, memory, all);
    measure<kPixelPairs, false, 16>(bytes, memory, all);
    measure<kPixelPairs, true, 16>(bytes, memory, all);
    measure<kLinesOfProducts, false, 16>(bytes, memory, all);
    measure<kLinesOfProducts, true, 16>(bytes, memory, all);
    measure<kQuarters, false, 16>(bytes, memory, all);
    measure<kQuarters, true, 16>(bytes, memory, all);
    measure<kEighths, false, 16>(bytes, memory, all);
    measure<kEighths, true, 16>(bytes, memory, all);
    measure<kWhole, false, 8>(bytes, memory, all);
    measure<kHalves, false, 8>(bytes, memory, all);
    measure<kHalves, true, 8>(bytes, memory, all);
    measure<kHalvesOfProducts, false, 8>(bytes, memory, all);
    measure<kHalvesOfProducts, true, 8>(bytes, memory, all);
  }
}
