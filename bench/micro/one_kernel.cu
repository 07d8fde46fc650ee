// One kernel of the halo engine or of the sm_90a weight gradient on one problem, without torch and without the rest of
// the library: compiled in ten seconds, compared with a loop by definition, then timed as the benchmark times it, in a
// CUDA graph of calls that take turns on buffers larger than L2. For trying things out; see one_kernel.sh.
//   one_kernel NAME PASS N C H W K R S STRIDE PAD DILATION (two numbers each) GROUPS NHWC_X NHWC_W NHWC_Y BIAS REPEATS
// PASS: 0 forward, 1 input gradient, 2 weight gradient. FASTCONV_BETWEEN=n puts another kernel between calls, which
// writes n values.
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <vector>

#if defined(BLOCK_K)
#include "fastconv/kernels/halo_launch.cuh"
#else
#include "fastconv/kernels/wgrad_launch.cuh"
#endif
#include "fastconv/planner/planner.h"

using namespace fastconv;

void launch_kernel(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, cudaStream_t stream) {
#if defined(BLOCK_K)
  launch_halo<__half, BLOCK_K, M_BLOCKS, CHANNELS, HaloStaging::STAGING, FilterTile::FILTER, COLUMNS, LINES>(
      plan, problem, buffers, stream);
#else
  launch_wgrad<__half, CHANNELS, BLOCKS, UNITS, WARPGROUPS, WgradStaging::STAGING>(plan, problem, buffers, stream);
#endif
}

__global__ void fill(__half* to, int64_t count, uint64_t seed) {
  for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
    uint64_t hash = (static_cast<uint64_t>(i) + seed * 1000003) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29, hash *= 0xBF58476D1CE4E5B9ull, hash ^= hash >> 32;
    to[i] = static_cast<__half>(static_cast<float>(hash & 0xffffff) / 8388608.f - 1.f);
  }
}

// Every `every`-th result by definition. sums: of squared errors and of squares.
__global__ void compare(ConvProblem p, const __half* x, const __half* w, const __half* y, const __half* bias,
                        int64_t every, double* sums) {
  const int64_t c_each = p.c_per_group(), k_each = p.k_per_group();
  auto product = [&](int64_t n, int64_t k, int64_t c, int64_t o, int64_t q, int64_t r, int64_t s, int what) {
    const int64_t h = o * p.stride.h - p.padding.h + r * p.dilation.h,
                  v = q * p.stride.w - p.padding.w + s * p.dilation.w;
    if (h < 0 || h >= p.h || v < 0 || v >= p.w) return 0.;
    const double in = __half2float(x[n * p.x_strides.n + c * p.x_strides.c + h * p.x_strides.h + v * p.x_strides.w]);
    const double out = __half2float(y[n * p.y_strides.n + k * p.y_strides.c + o * p.y_strides.h + q * p.y_strides.w]);
    const double tap =
        __half2float(w[k * p.w_strides.n + c % c_each * p.w_strides.c + r * p.w_strides.h + s * p.w_strides.w]);
    return what == 0 ? in * tap : what == 1 ? out * tap : in * out;
  };
  const int pass = static_cast<int>(p.pass);
  const int64_t P = p.p(), Q = p.q();
  const int64_t size[3][4] = {{p.n, p.k, P, Q}, {p.n, p.c, p.h, p.w}, {p.k, c_each, p.r, p.s}};
  const int64_t *all = size[pass], total = all[0] * all[1] * all[2] * all[3];
  for (int64_t i = (blockIdx.x * 256 + threadIdx.x) * every; i < total; i += gridDim.x * 256 * every) {
    const int64_t d = i % all[3], c = i / all[3] % all[2], b = i / all[3] / all[2] % all[1],
                  a = i / all[3] / all[2] / all[1];
    double sum = 0;
    const __half* got;
    if (pass == 0) {
      for (int64_t e = 0; e < c_each; ++e) {
        for (int64_t t = 0; t < p.r * p.s; ++t)
          sum += product(a, b, b / k_each * c_each + e, c, d, t / p.s, t % p.s, 0);
      }
      if (bias != nullptr) sum += __half2float(bias[b]);
      got = y + a * p.y_strides.n + b * p.y_strides.c + c * p.y_strides.h + d * p.y_strides.w;
    } else if (pass == 1) {
      for (int64_t t = 0; t < p.r * p.s; ++t) {
        const int64_t o = c + p.padding.h - t / p.s * p.dilation.h, q = d + p.padding.w - t % p.s * p.dilation.w;
        if (o < 0 || q < 0 || o % p.stride.h || q % p.stride.w || o / p.stride.h >= P || q / p.stride.w >= Q) continue;
        for (int64_t e = 0; e < k_each; ++e) {
          sum += product(a, b / c_each * k_each + e, b, o / p.stride.h, q / p.stride.w, t / p.s, t % p.s, 1);
        }
      }
      got = x + a * p.x_strides.n + b * p.x_strides.c + c * p.x_strides.h + d * p.x_strides.w;
    } else {
      for (int64_t n = 0; n < p.n; ++n) {
        for (int64_t o = 0; o < P * Q; ++o) sum += product(n, a, a / k_each * c_each + b, o / Q, o % Q, c, d, 2);
      }
      got = w + a * p.w_strides.n + b * p.w_strides.c + c * p.w_strides.h + d * p.w_strides.w;
    }
    const double error = static_cast<double>(__half2float(*got)) - sum;
    atomicAdd(&sums[0], error * error), atomicAdd(&sums[1], sum * sum);
  }
}

void check(const char* what) {
  const cudaError_t error = cudaDeviceSynchronize();
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

int main(int argc, char** argv) {
  if (argc != 22) return std::printf("22 arguments, see one_kernel.cu\n"), 2;
  int64_t arg[20];
  for (int i = 2; i < argc; ++i) arg[i - 2] = std::atoll(argv[i]);
  auto strides = [](int64_t c, int64_t h, int64_t w, bool nhwc) {
    return nhwc ? Strides{c * h * w, 1, w * c, c} : Strides{c * h * w, h * w, w, 1};
  };
  ConvProblem p{};
  p.pass = static_cast<Pass>(arg[0]), p.dtype = DType::kFloat16, p.precision = Precision::kIeee;
  p.n = arg[1], p.c = arg[2], p.h = arg[3], p.w = arg[4], p.k = arg[5], p.r = arg[6], p.s = arg[7];
  p.stride = {arg[8], arg[9]}, p.padding = {arg[10], arg[11]}, p.dilation = {arg[12], arg[13]}, p.groups = arg[14];
  p.x_strides = strides(p.c, p.h, p.w, arg[15]), p.w_strides = strides(p.c / p.groups, p.r, p.s, arg[16]);
  p.y_strides = strides(p.k, p.p(), p.q(), arg[17]);
  p.has_bias = arg[18] != 0, p.x_align = p.w_align = p.y_align = 128;

  const DeviceSpec device = [] {
    DeviceSpec spec{};
    spec.is_cuda = true, spec.arch = 90, spec.sm_count = 132, spec.smem_optin_bytes = 227 << 10;
    return spec;
  }();
  const KernelEntry* entry = find_kernel(argv[1]);
  if (entry == nullptr) return std::printf("no kernel %s\n", argv[1]), 1;
  if (const char* why = entry->why_not(*entry, p, device)) return std::printf("%s %s\n", argv[1], why), 1;
  const Plan plan = entry->plan(*entry, p, device);
  std::cout << plan << std::endl;

  const int64_t size[3] = {p.n * p.c * p.h * p.w, p.k * p.c / p.groups * p.r * p.s, p.n * p.k * p.p() * p.q()};
  const int result = p.pass == Pass::kFprop ? 2 : p.pass == Pass::kDgrad ? 0 : 1;
  const int64_t bytes = 2 * (size[0] + size[1] + size[2]);
  const int sets = static_cast<int>(std::clamp<int64_t>((int64_t{160} << 20) / bytes, 3, 16));
  auto buffer = [](int64_t count, uint64_t seed) {
    __half* to;
    cudaMalloc(&to, 2 * count + 256);
    seed == 0 ? (void)cudaMemset(to, 0xff, 2 * count) : fill<<<1024, 256>>>(to, count, seed);  // NaN
    return to;
  };
  __half *bias = buffer(p.k, 9), *other = buffer(32 << 20, 9);
  void* workspace;
  cudaMalloc(&workspace, plan.workspace_bytes + 256), cudaMemset(workspace, 0xff, plan.workspace_bytes);
  std::vector<ConvBuffers> buffers(sets);
  for (ConvBuffers& set : buffers) {
    __half* of[3];
    for (int i = 0; i < 3; ++i) of[i] = buffer(size[i], i == result ? 0 : i + 1);
    set = {of[0], of[1], of[2], p.has_bias ? bias : nullptr, workspace};
  }
  check("preparing");

  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  const char* between = std::getenv("FASTCONV_BETWEEN");
  const int calls = std::max(1, 32 / sets) * sets;
  try {
    launch_kernel(plan, p, buffers[0], nullptr);
    check("first call");
    cudaStreamCreate(&stream), cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    for (int i = 0; i < calls; ++i) {
      launch_kernel(plan, p, buffers[i % sets], stream);
      if (between != nullptr) fill<<<4096, 256, 0, stream>>>(other, std::atoll(between), 9);
    }
    cudaStreamEndCapture(stream, &graph), cudaGraphInstantiate(&executable, graph, 0);
  } catch (const std::exception& error) {
    return std::printf("%s\n", error.what()), 1;
  }
  cudaEvent_t start, stop;
  cudaEventCreate(&start), cudaEventCreate(&stop);
  std::vector<float> us;
  for (int64_t i = 0; i < arg[19]; ++i) {
    cudaEventRecord(start, stream), cudaGraphLaunch(executable, stream), cudaEventRecord(stop, stream);
    check("graph");
    float ms;
    cudaEventElapsedTime(&ms, start, stop), us.push_back(ms * 1e3f / calls);
  }

  double* sums;
  cudaMallocManaged(&sums, 16), sums[0] = sums[1] = 0;
  const double terms = static_cast<double>(result == 1 ? p.n * p.p() * p.q() : (result == 2 ? p.c : p.k) * p.r * p.s);
  const auto every = static_cast<int64_t>(static_cast<double>(size[result]) * terms / 1e10) | 1;
  const ConvBuffers& last = buffers[(calls - 1) % sets];
  compare<<<4096, 256>>>(p, static_cast<__half*>(last.x), static_cast<__half*>(last.w), static_cast<__half*>(last.y),
                         p.has_bias ? bias : nullptr, every, sums);
  check("comparing");
  std::sort(us.begin(), us.end());
  if (!us.empty()) std::printf("%.2f us (least %.2f), ", us[us.size() / 2], us[0]);
  std::printf("error %.2e of the norm, every %lld-th result\n", std::sqrt(sums[0] / sums[1]), (long long)every);
  return std::sqrt(sums[0] / sums[1]) < 1e-3 ? 0 : 1;
}
