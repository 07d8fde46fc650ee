// What the second-level cache's policies do to streams that do not fit it: warps store lines of 512 bytes, and one is
// read for every `ratio` lines, by the same warps always; each launch goes on in other memory.
//   nvcc -O3 -std=c++20 -arch=sm_90a -o store_policies bench/micro/store_policies.cu && ./store_policies
#include <cstdint>

#include "graph_time.cuh"

enum Policy { kNone, kFirst, kLast, kStreaming, kThrough };
const char* const kNames[] = {"default", "evict_first", "evict_last", ".cs", ".wt"};

template <Policy kPolicy>
__device__ uint64_t policy() {
  uint64_t p = 0;
  if (kPolicy == kFirst) asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
  if (kPolicy == kLast) asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
  return p;
}
template <Policy kPolicy>
__device__ uint4 load(const uint4* from, uint64_t p) {
  uint4 v;
  if constexpr (kPolicy == kNone) {
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
  } else {
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.b32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "l"(p));
  }
  return v;
}
template <Policy kPolicy>
__device__ void store(uint4* to, uint4 v, uint64_t p) {
  if constexpr (kPolicy == kNone) {
    asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
  } else if constexpr (kPolicy == kStreaming) {
    asm volatile("st.global.cs.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
  } else if constexpr (kPolicy == kThrough) {
    asm volatile("st.global.wt.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
  } else {
    asm volatile("st.global.L1::no_allocate.L2::cache_hint.v4.b32 [%0], {%1,%2,%3,%4}, %5;" ::"l"(to), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w), "l"(p)
                 : "memory");
  }
}

// Lines of a block lie side by side, as a tile's; blocks take tiles of 32 lines in turns. What is read is on its way a
// line ahead.
template <Policy kLoad, Policy kStore>
__global__ void __launch_bounds__(256) copy(const uint4* from, uint4* to, int64_t lines, int ratio) {
  const uint64_t load_policy = policy<kLoad>(), store_policy = policy<kStore>();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint4 next{1, 2, 3, 4};
  for (int64_t tile = blockIdx.x; tile < lines / 32; tile += gridDim.x) {
    for (int i = warp; i < 32; i += 8) {
      const int64_t line = tile * 32 + i;
      const uint4 v = next;
      if (ratio > 0 && line % ratio == 0) next = load<kLoad>(from + line / ratio * 32 + lane, load_policy);
      store<kStore>(to + line * 32 + lane, v, store_policy);
    }
  }
}

template <Policy kLoad, Policy kStore>
void measure(int64_t out_bytes, int ratio, char* memory, int64_t memory_bytes) {
  const int64_t in_bytes = ratio > 0 ? out_bytes / ratio : 0, set = out_bytes + in_bytes;
  const int sets =
      static_cast<int>(std::min<int64_t>(memory_bytes / set, std::max<int64_t>(3, (int64_t{200} << 20) / set)));
  const int calls = sets * std::max(1, 12 / sets);
  const float us = median_us(calls, [&](int i, cudaStream_t stream) {
    char* at = memory + i % sets * set;
    copy<kLoad, kStore><<<132 * 8, 256, 0, stream>>>(reinterpret_cast<uint4*>(at),
                                                     reinterpret_cast<uint4*>(at + in_bytes), out_bytes / 512, ratio);
  });
  std::printf("%4d MB out, %3d MB in  load %-12s store %-12s %8.2f us %6.0f GB/s\n", int(out_bytes >> 20),
              int(in_bytes >> 20), kNames[kLoad], kNames[kStore], us, double(set) / us / 1e3);
}

int main() {
  const int64_t bytes = int64_t{3} << 30;
  char* memory;
  check(cudaMalloc(&memory, bytes)), check(cudaMemset(memory, 1, bytes));
  for (const int64_t out : {int64_t{96} << 20, int64_t{392} << 20}) {
    for (const int ratio : {0, 16, 4}) {
      measure<kNone, kNone>(out, ratio, memory, bytes);
      measure<kNone, kFirst>(out, ratio, memory, bytes);
      measure<kNone, kLast>(out, ratio, memory, bytes);
      measure<kNone, kStreaming>(out, ratio, memory, bytes);
      measure<kNone, kThrough>(out, ratio, memory, bytes);
      if (ratio > 0) measure<kFirst, kNone>(out, ratio, memory, bytes);
    }
  }
}
