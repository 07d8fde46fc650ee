// How often a scheduler starts products of one or two warps (mma.sync), 32 independent ones after each other, and what
// the whole GPU computes in 200 launches of them.
//   nvcc -O3 -std=c++20 -gencode arch=compute_90a,code=sm_90a bench/micro/mma_rates.cu -o mma_rates && ./mma_rates
#include <cstdint>
#include <cstdio>

enum Kind { kTf32x8, kTf32x4, kBf16x16, kHalfx16, kHalfx8, kBf16x32Sparse };
constexpr const char* kNames[] = {"m16n8k8 tf32",  "m16n8k4 tf32", "m16n8k16 bf16",
                                  "m16n8k16 fp16", "m16n8k8 fp16", "m16n8k32 bf16, sparse"};
constexpr int kDepths[] = {8, 4, 16, 16, 8, 32};
constexpr int kProducts = 32, kRounds = 1000;

template <Kind kKind>
__device__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  if constexpr (kKind == kTf32x8) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else if constexpr (kKind == kTf32x4) {
    asm volatile(
        "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  } else if constexpr (kKind == kHalfx16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else if constexpr (kKind == kHalfx8) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  } else if constexpr (kKind == kBf16x32Sparse) {
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0x0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(0x88888888));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

template <Kind kKind>
__global__ void __launch_bounds__(256) rates(float* out, long long* clocks) {
  float d[4][8][4] = {};
  uint32_t a[4][4], b[8][4];
  uint32_t bits = blockIdx.x * blockDim.x + threadIdx.x;
  const auto random = [&bits] {  // two fp16 of magnitude .5 to 1, or something finite of other types
    bits = bits * 1664525 + 1013904223;
    return ((bits ^ bits >> 15) & 0x83ff83ff) | 0x38003800;
  };
  for (auto& row : a) {
    for (uint32_t& word : row) word = random();
  }
  for (auto& column : b) {
    for (uint32_t& word : column) word = random();
  }
  __syncthreads();
  const long long begin = clock64();
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int i = 0; i < kProducts; ++i) multiply<kKind>(d[i / 8][i % 8], a[i / 8], b[i % 8]);
  }
  __syncthreads();
  const long long end = clock64();
  float sum = 0;
  for (auto& row : d) {
    for (auto& product : row) sum += product[0] + product[1] + product[2] + product[3];
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  if (blockIdx.x == 0 && threadIdx.x == 0) *clocks = end - begin;
}

template <Kind kKind>
void measure(int warps) {
  constexpr int kLaunches = 200;
  float* out;
  long long *clocks, took;
  int sms = 0;
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
  cudaMalloc(&out, sms * 256 * sizeof(float));
  cudaMalloc(&clocks, sizeof(long long));
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  rates<kKind><<<sms, 128 * warps>>>(out, clocks);
  cudaEventRecord(begin);
  for (int i = 0; i < kLaunches; ++i) rates<kKind><<<sms, 128 * warps>>>(out, clocks);
  cudaEventRecord(end);
  cudaMemcpy(&took, clocks, sizeof(took), cudaMemcpyDeviceToHost);
  float ms = 0;
  cudaEventElapsedTime(&ms, begin, end);
  const double flop = 2. * 16 * 8 * kDepths[kKind] * kProducts * kRounds * kLaunches * sms * 4 * warps;
  std::printf("%s, %d warps a scheduler: %.2f clocks each, %.0f TFLOP/s\n", kNames[kKind], warps,
              static_cast<double>(took) / kRounds / kProducts / warps, flop / ms / 1e9);
  cudaFree(out);
  cudaFree(clocks);
}

int main() {
  for (int warps : {1, 2}) {
    measure<kTf32x8>(warps);
    measure<kTf32x4>(warps);
    measure<kBf16x16>(warps);
    measure<kHalfx16>(warps);
    measure<kHalfx8>(warps);
    measure<kBf16x32Sparse>(warps);
  }
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) std::printf("%s\n", cudaGetErrorString(status));
  return status != cudaSuccess;
}
