// Depthwise convolution of fp16 planes that are copied whole to shared memory, many at a time, by TMA, and
// multiplied from there by banded matrices (families/depthwise/banded.h): how fast is it where rows are short? Square
// filters, stride 1, rows of an even number of columns.
//   nvcc -std=c++17 -O3 -arch=sm_90a bench/micro/depthwise_planes.cu -o depthwise_planes && ./depthwise_planes
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                      \
  if (cudaError_t status = (call); status != cudaSuccess) {                              \
    std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status)); \
    std::exit(1);                                                                        \
  }

__device__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ void barrier_init(uint32_t at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count));
}
__device__ void barrier_expect(uint32_t at, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ void barrier_arrive(uint32_t at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ void barrier_wait(uint32_t at, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra wait;\n}" ::"r"(at),
      "r"(parity)
      : "memory");
}
__device__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ void bulk_store(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to),
               "r"(from), "r"(bytes)
               : "memory");
}
__device__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

struct Shape {
  int channels, h, w, planes, stages_total;  // planes: of a stage
};

constexpr int kWarps = 8;

// Warp kWarps copies: planes of neighbouring channels, and their filters. Each of the others has a plane at a time, or
// 16 of its (run of rows, 8 columns). Of multiples of 8 planes, all copies are multiples of 16 bytes.
template <int kTaps, int kStages, bool kBulkStore, int kRuns>
__global__ void __launch_bounds__(32 * (kWarps + 1)) planes(const __half* x, const __half* w, __half* y, Shape s) {
  extern __shared__ __align__(128) uint8_t smem_raw[];
  __shared__ __align__(8) uint64_t barriers[2 * kStages];
  constexpr int kPad = kTaps / 2, kLead = kPad & 1;
  const uint32_t smem = (shared_address(smem_raw) + 127) & ~127u;
  const int plane_words = s.h * s.w / 2, row_words = s.w / 2;
  const uint32_t plane_bytes = 4u * plane_words * s.planes, filter_bytes = 2u * kTaps * kTaps * s.planes;
  const uint32_t pitch = (plane_bytes + filter_bytes + 127) & ~127u;
  const uint32_t out_at = smem + kStages * pitch;
  const uint32_t full = shared_address(barriers), empty = full + 8 * kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, kWarps);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  int stage = 0;
  uint32_t parity = 0;
  auto advance = [&] {
    if (++stage == kStages) stage = 0, parity ^= 1;
  };
  if (warp == kWarps) {
    if (lane != 0) return;
    for (int i = blockIdx.x; i < s.stages_total; i += gridDim.x, advance()) {
      barrier_wait(empty + 8 * stage, parity ^ 1);
      barrier_expect(full + 8 * stage, plane_bytes + filter_bytes);
      const uint32_t to = smem + stage * pitch;
      bulk_load(to, x + int64_t{i} * s.planes * s.h * s.w, plane_bytes, full + 8 * stage);
      bulk_load(to + plane_bytes, w + int64_t{i} * s.planes % s.channels * kTaps * kTaps, filter_bytes,
                full + 8 * stage);
    }
    return;
  }
  const int blocks = (s.w + 7) / 8, items = kRuns * blocks, run_rows = (s.h + kRuns - 1) / kRuns;
  const int groups = (items + 15) / 16;  // of a plane
  int out_stage = 0;
  for (int i = blockIdx.x; i < s.stages_total; i += gridDim.x, advance()) {
    barrier_wait(full + 8 * stage, parity);
    const uint32_t in = smem + stage * pitch, out = out_at + out_stage * pitch;
    if (kBulkStore) {  // the buffer was given to TMA two rounds ago
      if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
      asm volatile("bar.sync 1, %0;" ::"n"(32 * kWarps) : "memory");
    }
    for (int group = warp; group < groups * s.planes; group += kWarps) {
      const int plane = group / groups;
      uint32_t from[2], mask[2][2];
      int first_row[2], column[2];
      bool exists[2];
      for (int u = 0; u < 2; ++u) {
        const int item = group % groups * 16 + u * 8 + lane / 4;
        exists[u] = item < items;
        const int b = item % blocks;
        first_row[u] = item / blocks * run_rows;
        column[u] = 8 * b + 2 * (lane % 4);
        const int at = column[u] - kPad - kLead;  // of the window's words, even
        for (int k = 0; k < 2; ++k) mask[u][k] = exists[u] && at + 8 * k >= 0 && at + 8 * k < s.w ? ~0u : 0;
        from[u] = in + 4 * (plane * plane_words + at / 2);
      }
      const uint32_t filter = in + plane_bytes + 2 * plane * kTaps * kTaps;
      uint32_t band[kTaps][2];
      for (int r = 0; r < kTaps; ++r) {
        for (int k = 0; k < 2; ++k) {
          uint32_t word = 0;
          for (int j = 0; j < 2; ++j) {
            const int tap = 2 * (lane % 4) + 8 * k + j - lane / 4 - kLead;
            if (tap >= 0 && tap < kTaps) {
              uint16_t value;
              asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value) : "r"(filter + 2 * (r * kTaps + tap)));
              word |= uint32_t{value} << (16 * j);
            }
          }
          band[r][k] = word;
        }
      }
      float sums[kTaps][4] = {};
      for (int step = 0; step < run_rows + kTaps - 1; ++step) {
        uint32_t a[4];
        for (int u = 0; u < 2; ++u) {
          const int row = first_row[u] + step - kPad;
          const bool in_plane = row >= 0 && row < s.h;
          for (int k = 0; k < 2; ++k) {
            uint32_t word = 0;
            if (in_plane && mask[u][k] != 0) {
              asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from[u] + 4 * (row * row_words + 4 * k)));
            }
            a[u + 2 * k] = word;
          }
        }
        // Slot j holds the sums of the row that ends j steps from now.
#pragma unroll
        for (int j = 0; j < kTaps; ++j) mma(sums[j], a, band[kTaps - 1 - j]);
        const int done = step - (kTaps - 1);
        if (done >= 0) {
#pragma unroll
          for (int u = 0; u < 2; ++u) {
            const int row = first_row[u] + done;
            if (exists[u] && row < s.h && column[u] < s.w) {
              const __half2 pair = __floats2half2_rn(sums[0][2 * u], sums[0][2 * u + 1]);
              const int at = plane * plane_words + row * row_words + column[u] / 2;
              if (kBulkStore) {
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(out + 4 * at),
                             "r"(*reinterpret_cast<const uint32_t*>(&pair))
                             : "memory");
              } else {
                reinterpret_cast<__half2*>(y + int64_t{i} * s.planes * s.h * s.w)[at] = pair;
              }
            }
          }
        }
#pragma unroll
        for (int j = 0; j + 1 < kTaps; ++j) {
          for (int k = 0; k < 4; ++k) sums[j][k] = sums[j + 1][k];
        }
        for (int k = 0; k < 4; ++k) sums[kTaps - 1][k] = 0;
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + 8 * stage);
    if (kBulkStore) {
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      asm volatile("bar.sync 1, %0;" ::"n"(32 * kWarps) : "memory");
      if (threadIdx.x == 0) bulk_store(y + int64_t{i} * s.planes * s.h * s.w, out, plane_bytes);
      out_stage ^= 1;
    }
  }
  if (kBulkStore && threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__global__ void reference(const __half* x, const __half* w, __half* y, int64_t count, int channels, int h, int wd,
                          int taps) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const int q = i % wd, p = i / wd % h, c = i / (int64_t{wd} * h) % channels;
    float sum = 0;
    for (int r = 0; r < taps; ++r) {
      for (int t = 0; t < taps; ++t) {
        const int a = p + r - taps / 2, b = q + t - taps / 2;
        if (a < 0 || a >= h || b < 0 || b >= wd) continue;
        sum += __half2float(x[i + (a - p) * int64_t{wd} + b - q]) * __half2float(w[(c * taps + r) * taps + t]);
      }
    }
    y[i] = __float2half(sum);
  }
}

__global__ void fill(__half* x, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t v = (static_cast<uint32_t>(i) ^ seed) * 2654435761u;
    v ^= v >> 15, v *= 2246822519u, v ^= v >> 13;
    x[i] = __float2half((v & 0xffff) / 32768.f - 1);
  }
}

template <int kTaps, int kStages, bool kBulkStore, int kRuns>
void measure(int n, int c, int h, int w, int planes_a_stage, int blocks_a_sm) {
  const int64_t count = int64_t{n} * c * h * w;
  constexpr int kSets = 4;
  std::vector<__half*> xs, ys;
  __half *filter, *expected;
  for (int i = 0; i < kSets; ++i) {
    __half *x, *y;
    CHECK(cudaMalloc(&x, 2 * count));
    CHECK(cudaMalloc(&y, 2 * count));
    fill<<<1024, 256>>>(x, count, 17 + i);
    CHECK(cudaMemset(y, 0xff, 2 * count));
    xs.push_back(x), ys.push_back(y);
  }
  CHECK(cudaMalloc(&filter, 2 * c * kTaps * kTaps));
  CHECK(cudaMalloc(&expected, 2 * count));
  fill<<<64, 256>>>(filter, c * kTaps * kTaps, 5);
  reference<<<4096, 256>>>(xs[0], filter, expected, count, c, h, w, kTaps);
  const Shape shape{c, h, w, planes_a_stage, n * c / planes_a_stage};
  const int pitch = (2 * (h * w + kTaps * kTaps) * planes_a_stage + 127) / 128 * 128;
  const int smem = (kStages + (kBulkStore ? 2 : 0)) * pitch + 128;
  const auto kernel = planes<kTaps, kStages, kBulkStore, kRuns>;
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
  auto run = [&](int i) {
    kernel<<<132 * blocks_a_sm, 32 * (kWarps + 1), smem>>>(xs[i % kSets], filter, ys[i % kSets], shape);
  };
  run(0);
  CHECK(cudaDeviceSynchronize());
  std::vector<__half> got(count), want(count);
  CHECK(cudaMemcpy(got.data(), ys[0], 2 * count, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(want.data(), expected, 2 * count, cudaMemcpyDeviceToHost));
  double worst = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = std::abs(double(__half2float(got[i])) - double(__half2float(want[i])));
    if (!(difference <= worst)) worst = difference;
  }
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> us;
  for (int repeat = 0; repeat < 7; ++repeat) {
    CHECK(cudaEventRecord(begin));
    for (int i = 0; i < 20; ++i) run(i);
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    us.push_back(50 * ms);
  }
  std::sort(us.begin(), us.end());
  std::printf(
      "%dx%dx%dx%d %dx%d: %d planes a stage, %d stages, %d runs, %d blocks, %s: %.1f us, %.0f %% of 4.2 TB/s; "
      "largest difference %.2g\n",
      n, c, h, w, kTaps, kTaps, planes_a_stage, kStages, kRuns, blocks_a_sm,
      kBulkStore ? "bulk stores" : "stores of words", us[3], 100 * 4. * count / us[3] / 4.2e6, worst);
  for (auto* p : xs) cudaFree(p);
  for (auto* p : ys) cudaFree(p);
  cudaFree(filter), cudaFree(expected);
}

int main() {
  measure<3, 4, false, 2>(64, 256, 56, 56, 8, 1);
  measure<3, 2, false, 2>(64, 256, 56, 56, 8, 2);
  measure<3, 2, true, 2>(64, 256, 56, 56, 8, 1);
  measure<7, 4, false, 4>(64, 384, 28, 28, 16, 2);
  measure<7, 2, true, 4>(64, 384, 28, 28, 16, 2);
  measure<7, 3, false, 4>(64, 384, 28, 28, 8, 4);
  measure<3, 3, false, 7>(64, 512, 14, 14, 32, 2);
  measure<3, 2, true, 7>(64, 512, 14, 14, 32, 2);
  measure<3, 3, false, 7>(64, 512, 14, 14, 16, 4);
}
