// A pointwise convolution of 16 bits, channels_last (ResNet-50's reduction: 12,544 pixels, 1,024 channels, 256
// filters), by tiles of several sizes: in clusters whose blocks have the same pixels and other filters, so that each
// brings a share of the pixels for all of them; copied in larger or smaller boxes; with copies that wait for the first
// one; launched early. Cold L2, CUDA graph. Times of the last launch are means over blocks, from the first block's
// begin.
//   nvcc -std=c++20 -O3 -arch=sm_90a -Iinclude bench/micro/pointwise.cu -o pointwise && ./pointwise
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "fastconv/ptx/cluster.cuh"
#include "fastconv/ptx/mbarrier.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/ptx/warpgroup.cuh"
#include "fastconv/ptx/wgmma.cuh"

using namespace fastconv;

#define CHECK(call)                                                        \
  do {                                                                     \
    const cudaError_t status = (call);                                     \
    if (status != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status)); \
      std::exit(1);                                                        \
    }                                                                      \
  } while (false)

constexpr int kPixels = 64 * 14 * 14, kC = 1024, kK = 256, kDepth = 64;

__device__ void tma_load2(uint32_t smem, const CUtensorMap* map, int x, int y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          smem),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}
__device__ void tma_load2_all(uint32_t smem, const CUtensorMap* map, int x, int y, uint32_t barrier, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4}], [%2], %5;" ::"r"(smem),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(mask)
      : "memory");
}
__device__ uint32_t map_to(uint32_t smem, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(smem), "r"(rank));
  return address;
}
__device__ void arrive_remote(uint32_t address) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}
__device__ void wait_cluster(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, "
        "p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

__device__ long long now() {
  long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

// kGroups consumer warpgroups of kMBlocks blocks of 64 pixels, kN filters.
template <int kGroups, int kMBlocks, int kN, int kStages, int kCluster, bool kEarly, int kBox = 64, int kStagger = 0,
          bool kPrefetch = false>
__global__ void __launch_bounds__(128 * (kGroups + 1), 1)
    product(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map, __half* y,
            long long* times) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kTile = 64 * kGroups * kMBlocks, kABytes = kTile * 128, kBBytes = kN * 128, kFilterTiles = kK / kN;
  extern __shared__ uint8_t raw[];
  const uint32_t smem = (ptx::smem_address(raw) + 1023) & ~1023u;
  const uint32_t a = smem, b = a + kStages * kABytes, buffers = b + kStages * kBBytes;
  const uint32_t barriers = buffers + kGroups * 8192;  // a full, b full, a empty, b empty
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const long long t0 = now();
  auto a_full = [&](int i) { return barriers + 32 * i; };
  auto b_full = [&](int i) { return barriers + 32 * i + 8; };
  auto a_empty = [&](int i) { return barriers + 32 * i + 16; };
  auto b_empty = [&](int i) { return barriers + 32 * i + 24; };
  if (kPrefetch && threadIdx.x == 0) ptx::tma_prefetch(&x_map), ptx::tma_prefetch(&w_map);
  const uint32_t rank = kCluster > 1 ? ptx::cluster_rank() : 0;
  if (threadIdx.x < kStages) {
    const int i = threadIdx.x;
    ptx::mbarrier_init(a_full(i), 1), ptx::mbarrier_init(b_full(i), 1);
    ptx::mbarrier_init(a_empty(i), 4 * kGroups * kCluster), ptx::mbarrier_init(b_empty(i), 4 * kGroups);
  }
  ptx::mbarrier_init_fence();
  if (kEarly) asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
  if (kCluster > 1) {
    ptx::cluster_sync();
  } else {
    __syncthreads();
  }
  const int pixel = blockIdx.x / kFilterTiles * kTile, filter = blockIdx.x % kFilterTiles * kN;
  const long long t1 = now();
  if (warp < 4) {
    ptx::release_registers<40>();
    if (warp == 0 && lane == 0) {
      for (int i = 0; i < kC / kDepth; ++i) {
        const int stage = i % kStages, parity = i / kStages & 1;
        if (kCluster == 1) {
          ptx::mbarrier_wait(a_empty(stage), parity ^ 1);
          ptx::mbarrier_arrive_expect(a_full(stage), kABytes);
          if (kStagger > 0 && i == kStagger) ptx::mbarrier_wait(a_full(0), 0);
          for (int p = 0; p < kTile; p += kBox)
            tma_load2(a + stage * kABytes + p * 128, &x_map, i * kDepth, pixel + p, a_full(stage));
        } else {
          // Each block brings a share of the pixels to all.
          constexpr int kShare = kTile / kCluster;
          if (i >= kStages) wait_cluster(a_empty(stage), parity ^ 1);
          ptx::mbarrier_arrive_expect(a_full(stage), kABytes);
          for (int p = rank * kShare; p < (rank + 1) * kShare; p += 32)
            tma_load2_all(a + stage * kABytes + p * 128, &x_map, i * kDepth, pixel + p, a_full(stage),
                          (1 << kCluster) - 1);
        }
      }
    }
    if (warp == 1 && lane == 0) {
      for (int i = 0; i < kC / kDepth; ++i) {
        const int stage = i % kStages, parity = i / kStages & 1;
        ptx::mbarrier_wait(b_empty(stage), parity ^ 1);
        ptx::mbarrier_arrive_expect(b_full(stage), kBBytes);
        if (kStagger > 0 && i == kStagger) ptx::mbarrier_wait(b_full(0), 0);
        for (int k = 0; k < kN; k += 64)
          tma_load2(b + stage * kBBytes + k * 128, &w_map, i * kDepth, filter + k, b_full(stage));
      }
    }
    if (kCluster > 1) {
      __syncwarp();
      ptx::cluster_sync();
    }
    return;
  }
  ptx::acquire_registers<kGroups == 3 ? 152 : 232>();
  const int group = warp / 4 - 1;
  float acc[kMBlocks][kN / 2];
  uint32_t done = 0, done_stage = 0;
  long long t2 = 0;
  const uint32_t high = ptx::descriptor_high(1024, ptx::Swizzle::k128B);
  auto release = [&] {
    if (lane == 0 && done) {
      ptx::mbarrier_arrive(b_empty(done_stage));
      if (kCluster == 1) {
        ptx::mbarrier_arrive(a_empty(done_stage));
      } else {
        for (int r = 0; r < kCluster; ++r) arrive_remote(map_to(a_empty(done_stage), r));
      }
    }
  };
  for (int i = 0; i < kC / kDepth; ++i) {
    const int stage = i % kStages, parity = i / kStages & 1;
    ptx::mbarrier_wait(b_full(stage), parity);
    ptx::mbarrier_wait(a_full(stage), parity);
    if (i == 0) t2 = now();
    ptx::wgmma_fence();
    const uint32_t a_low = ptx::descriptor_low(a + stage * kABytes + group * kMBlocks * 8192),
                   b_low = ptx::descriptor_low(b + stage * kBBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int m = 0; m < kMBlocks; ++m) {
        ptx::wgmma<__half, ptx::Major::kK, ptx::Major::kK>(acc[m], ptx::descriptor(a_low + m * 512 + 2 * k, high),
                                                           ptx::descriptor(b_low + 2 * k, high), i + k > 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    release();
    done = 1, done_stage = stage;
  }
  ptx::wgmma_wait<0>();
  release();
  const long long t3 = now();
  const uint32_t buffer = buffers + (warp - 4) * 2048;
#pragma unroll
  for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
    for (int chunk = 0; chunk < kN; chunk += 64) {
      __syncwarp();
#pragma unroll
      for (int c = 0; c < 64; c += 16) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const __half2 two = __floats2half2_rn(acc[m][(chunk + c) / 2 + 2 * i], acc[m][(chunk + c) / 2 + 2 * i + 1]);
          v[i] = *reinterpret_cast<const uint32_t*>(&two);
        }
        const int row = lane % 16, column = c / 8 + lane / 16;
        ptx::stmatrix4<false>(buffer + row * 128 + ((column ^ (row & 7)) << 4), v);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i * 4 + lane / 8, column = lane % 8;
        const uint4 v = ptx::load_shared16(buffer + row * 128 + ((column ^ (row & 7)) << 4));
        const int p = pixel + (group * kMBlocks + m) * 64 + warp % 4 * 16 + row;
        if (p < kPixels) *reinterpret_cast<uint4*>(y + int64_t{p} * kK + filter + chunk + column * 8) = v;
      }
    }
  }
  if (threadIdx.x == 128) {
    const long long t4 = now();
    long long* mine = times + blockIdx.x * 5;
    mine[0] = t0, mine[1] = t1, mine[2] = t2, mine[3] = t3, mine[4] = t4;
  }
  if (kCluster > 1) ptx::cluster_sync();
#endif
}

CUtensorMap map_of(const __half* data, uint64_t rows, uint32_t box_rows) {
  static const auto encode = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &found));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(address);
  }();
  CUtensorMap map;
  const cuuint64_t size[] = {kC, rows}, stride[] = {kC * 2};
  const cuuint32_t box[] = {kDepth, box_rows}, step[] = {1, 1};
  if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, const_cast<__half*>(data), size, stride, box, step,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) {
    std::fprintf(stderr, "no tensor map\n");
    std::exit(1);
  }
  return map;
}

constexpr int kSets = 8;
__half *x[kSets], *w[kSets], *y[kSets], *expected;
long long* times;

template <int kGroups, int kMBlocks, int kN, int kStages, int kCluster, bool kEarly, int kBox = 64, int kStagger = 0,
          bool kPrefetch = false>
void measure() {
  constexpr int kTile = 64 * kGroups * kMBlocks;
  const auto kernel = product<kGroups, kMBlocks, kN, kStages, kCluster, kEarly, kBox, kStagger, kPrefetch>;
  const int smem = 1024 + kStages * (kTile + kN) * 128 + kGroups * 8192 + 32 * kStages;
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
  const int grid = (kPixels + kTile - 1) / kTile * (kK / kN);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2];
  config.gridDim = grid, config.blockDim = 128 * (kGroups + 1), config.dynamicSmemBytes = smem;
  config.stream = stream, config.attrs = attributes;
  if (kCluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {kCluster, 1, 1};
  }
  if (kEarly) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  constexpr int kRounds = 4;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kSets; ++i) {
      CHECK(cudaLaunchKernelEx(&config, kernel, map_of(x[i], kPixels, kCluster > 1 ? 32 : kBox), map_of(w[i], kK, 64),
                               y[i], times));
    }
  }
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < kSets; ++i) CHECK(cudaMemsetAsync(y[i], 0xff, 2 * kPixels * kK, stream));
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> us;
  for (int i = 0; i < 21; ++i) {
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    us.push_back(1000 * ms / (kRounds * kSets));
  }
  std::sort(us.begin(), us.end());
  std::vector<__half> result(kPixels * kK), first(kPixels * kK);
  CHECK(cudaMemcpy(result.data(), y[0], 2 * kPixels * kK, cudaMemcpyDeviceToHost));
  if (expected == nullptr) {
    CHECK(cudaMalloc(&expected, 2 * kPixels * kK));
    CHECK(cudaMemcpy(expected, y[0], 2 * kPixels * kK, cudaMemcpyDeviceToDevice));
  }
  CHECK(cudaMemcpy(first.data(), expected, 2 * kPixels * kK, cudaMemcpyDeviceToHost));
  int differ = 0;  // from what the first variant has
  for (int i = 0; i < kPixels * kK; ++i) differ += !(__half2float(result[i]) == __half2float(first[i]));
  std::vector<long long> t(grid * 5);
  CHECK(cudaMemcpy(t.data(), times, 8 * t.size(), cudaMemcpyDeviceToHost));
  long long start = t[0], last = 0;
  double sum[5] = {};
  for (int i = 0; i < grid; ++i) start = std::min(start, t[5 * i]), last = std::max(last, t[5 * i + 4]);
  for (int i = 0; i < grid; ++i)
    for (int j = 0; j < 5; ++j) sum[j] += static_cast<double>(t[5 * i + j] - start) / 1000 / grid;
  std::printf(
      "%3dx%3d %d warpgroups %d stages cluster %d %s box %3d stagger %d prefetch %d grid %3d: %5.2f us; %d differ; "
      "begins %.2f ready %.2f first data %.2f products %.2f stored %.2f last %.2f\n",
      kTile, kN, kGroups, kStages, kCluster, kEarly ? "early" : "     ", kBox, kStagger, kPrefetch, grid,
      us[us.size() / 2], differ, sum[0], sum[1], sum[2], sum[3], sum[4], static_cast<double>(last - start) / 1000);
}

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<__half> values(kPixels * kC);
  for (int i = 0; i < kSets; ++i) {
    CHECK(cudaMalloc(&x[i], 2 * kPixels * kC));
    CHECK(cudaMalloc(&w[i], 2 * kK * kC));
    CHECK(cudaMalloc(&y[i], 2 * kPixels * kK));
    if (i == 0) {
      for (auto& v : values) v = __float2half(normal(random));
      CHECK(cudaMemcpy(x[i], values.data(), 2 * kPixels * kC, cudaMemcpyHostToDevice));
      CHECK(cudaMemcpy(w[i], values.data() + 12345, 2 * kK * kC, cudaMemcpyHostToDevice));
    } else {
      CHECK(cudaMemcpy(x[i], x[0], 2 * kPixels * kC, cudaMemcpyDeviceToDevice));
      CHECK(cudaMemcpy(w[i], w[0], 2 * kK * kC, cudaMemcpyDeviceToDevice));
    }
  }
  CHECK(cudaMalloc(&times, 8 * 5 * 1024));
  measure<2, 2, 128, 4, 1, false>();
  measure<2, 2, 128, 4, 2, false>();
  measure<2, 2, 128, 4, 1, true>();
  measure<2, 2, 128, 4, 1, false, 256>();
  measure<2, 2, 128, 4, 1, false, 64, 1>();
  measure<2, 2, 128, 4, 1, false, 64, 2>();
  measure<2, 2, 128, 4, 1, false, 64, 0, true>();
  measure<2, 1, 256, 4, 1, false>();
  measure<2, 1, 128, 6, 1, false>();
  measure<3, 1, 128, 5, 1, false>();
  measure<3, 1, 128, 5, 2, false>();
  measure<1, 3, 128, 5, 1, false>();
  measure<1, 3, 128, 5, 1, false, 192>();
  measure<1, 3, 128, 5, 1, true>();
  return 0;
}
