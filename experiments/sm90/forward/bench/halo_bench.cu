// Standalone check and timing of the halo engine: every plan of every problem against a simple GPU reference on random
// data with poisoned outputs, then GPU times by graph replay over rotating inputs. Usage: engine [check] [time]
// [names..]
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "fastconv/launch/run_halo.h"

using namespace fastconv;

#define CHECK(call)                                                  \
  do {                                                               \
    const cudaError_t error_ = (call);                               \
    if (error_ != cudaSuccess) {                                     \
      printf("line %d: %s\n", __LINE__, cudaGetErrorString(error_)); \
      fflush(stdout);                                                \
      exit(1);                                                       \
    }                                                                \
  } while (0)

namespace {

__device__ uint32_t hash(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdull, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ull, x ^= x >> 33;
  return static_cast<uint32_t>(x);
}
template <typename T>
__global__ void fill(T* data, int64_t count, uint32_t seed, float scale) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    data[i] = static_cast<T>((hash(i * 0x9e3779b97f4a7c15ull + seed) / 2147483648.f - 1.f) * scale);
  }
}
template <typename T>
__global__ void count_nan(const T* data, ConvProblem p, unsigned long long* nans) {
  const bool dgrad = p.pass == Pass::kDgrad;
  const int64_t c = dgrad ? p.c : p.k, h = dgrad ? p.h : p.p(), w = dgrad ? p.w : p.q();
  const Strides st = dgrad ? p.x_strides : p.y_strides;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.n * c * h * w;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t iw = i % w, ih = i / w % h, ic = i / w / h % c, in = i / w / h / c;
    const float v = static_cast<float>(data[in * st.n + ic * st.c + ih * st.h + iw * st.w]);
    if (isnan(v)) atomicAdd(nans, 1ull);
  }
}
// Sampled outputs in fp64. errors: sum of squared differences, sum of squares, largest difference.
template <typename T>
__global__ void reference(ConvProblem p, const T* x, const T* w, const T* y, const T* bias, int samples, uint32_t seed,
                          double* errors) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= samples) return;
  const int64_t cg = p.c_per_group(), kg = p.k_per_group();
  const Strides xs = p.x_strides, ws = p.w_strides, ys = p.y_strides;
  double sum = 0, value;
  auto pick = [&](int64_t size, int which) {  // a quarter of the samples at an edge
    const uint32_t v = hash(i * 16ull + which + (uint64_t{seed} << 32));
    return (v & 7) == 0 ? size - 1 : (v & 7) == 1 ? int64_t{0} : static_cast<int64_t>((v >> 3) % size);
  };
  if (p.pass == Pass::kFprop) {
    const int64_t n = pick(p.n, 0), k = pick(p.k, 1), op = pick(p.p(), 2), oq = pick(p.q(), 3), g = k / kg;
    for (int64_t r = 0; r < p.r; ++r)
      for (int64_t s = 0; s < p.s; ++s) {
        const int64_t h = op * p.stride.h - p.padding.h + r * p.dilation.h,
                      iw = oq * p.stride.w - p.padding.w + s * p.dilation.w;
        if (h < 0 || h >= p.h || iw < 0 || iw >= p.w) continue;
        for (int64_t c = 0; c < cg; ++c)
          sum += static_cast<double>(static_cast<float>(x[n * xs.n + (g * cg + c) * xs.c + h * xs.h + iw * xs.w])) *
                 static_cast<float>(w[k * ws.n + c * ws.c + r * ws.h + s * ws.w]);
      }
    if (bias) sum += static_cast<float>(bias[k]);
    value = static_cast<float>(y[n * ys.n + k * ys.c + op * ys.h + oq * ys.w]);
  } else {
    const int64_t n = pick(p.n, 0), c = pick(p.c, 1), h = pick(p.h, 2), iw = pick(p.w, 3), g = c / cg;
    for (int64_t r = 0; r < p.r; ++r)
      for (int64_t s = 0; s < p.s; ++s) {
        const int64_t a = h + p.padding.h - r * p.dilation.h, b = iw + p.padding.w - s * p.dilation.w;
        if (a < 0 || b < 0 || a % p.stride.h || b % p.stride.w || a / p.stride.h >= p.p() || b / p.stride.w >= p.q())
          continue;
        for (int64_t k = 0; k < kg; ++k)
          sum += static_cast<double>(static_cast<float>(
                     y[n * ys.n + (g * kg + k) * ys.c + a / p.stride.h * ys.h + b / p.stride.w * ys.w])) *
                 static_cast<float>(w[(g * kg + k) * ws.n + (c - g * cg) * ws.c + r * ws.h + s * ws.w]);
      }
    value = static_cast<float>(x[n * xs.n + c * xs.c + h * xs.h + iw * xs.w]);
  }
  const double d = value - sum;
  atomicAdd(&errors[0], isnan(d) ? 1e30 : d * d);
  atomicAdd(&errors[1], sum * sum);
}

enum Layout { kNchw, kNhwc };
Strides dense(Layout layout, int64_t c, int64_t h, int64_t w, int64_t pad = 0) {
  if (layout == kNchw) return {c * h * (w + pad), h * (w + pad), w + pad, 1};
  return {h * w * (c + pad), 1, w * (c + pad), c + pad};
}

struct Case {
  const char* name;
  int64_t n, c, h, w, k, r, s, stride, ph, pw, dh, dw, groups;
  double cudnn[4];  // fp16 ms: NHWC fwd, NHWC dgrad, NCHW fwd, NCHW dgrad
};
const Case kCases[] = {
    {"seed_5x7", 8, 64, 512, 256, 128, 5, 7, 1, 0, 0, 1, 1, 1, {1.2805, 1.4042, 1.6565, 1.7436}},
    {"seed_3x3", 16, 16, 1024, 1024, 128, 3, 3, 1, 0, 0, 1, 1, 1, {2.6433, 4.496, 7.2243, 9.1935}},
    {"seed_5x9d", 8, 32, 512, 512, 64, 5, 9, 1, 2, 4, 2, 3, 1, {0.8869, 1.6683, 1.2498, 2.0253}},
    {"rn50_l1_3x3", 64, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1, 1, 1, {0.0416, 0.0384, 0.089, 0.0909}},
    {"rn50_l2_3x3", 64, 128, 28, 28, 128, 3, 3, 1, 1, 1, 1, 1, 1, {0.0286, 0.0284, 0.054, 0.054}},
    {"rn50_l3_3x3", 64, 256, 14, 14, 256, 3, 3, 1, 1, 1, 1, 1, 1, {0.0283, 0.0281, 0.0469, 0.0461}},
    {"rn50_l4_3x3", 64, 512, 7, 7, 512, 3, 3, 1, 1, 1, 1, 1, 1, {0.0285, 0.0283, 0.0501, 0.0498}},
    {"rn50_l2_3x3s2", 64, 128, 56, 56, 128, 3, 3, 2, 1, 1, 1, 1, 1, {0.0294, 0.0424, 0.085, 0.1024}},
    {"rn50_l1_1x1", 64, 64, 56, 56, 256, 1, 1, 1, 0, 0, 1, 1, 1, {0.0401, 0.0365, 0.0414, 0.0354}},
    {"rn50_l3_1x1", 64, 1024, 14, 14, 256, 1, 1, 1, 0, 0, 1, 1, 1, {0.0128, 0.0184, 0.0373, 0.047}},
    {"vgg_224", 32, 64, 224, 224, 64, 3, 3, 1, 1, 1, 1, 1, 1, {0.2609, 0.2744, 0.6174, 0.6262}},
    {"unet_512", 8, 128, 256, 256, 128, 3, 3, 1, 1, 1, 1, 1, 1, {0.2422, 0.2796, 0.4716, 0.472}},
    {"sd_vae_512", 2, 512, 128, 128, 512, 3, 3, 1, 1, 1, 1, 1, 1, {0.2321, 0.2381, 0.3008, 0.3118}},
    {"deeplab_d12", 8, 2048, 33, 33, 256, 3, 3, 1, 12, 12, 12, 12, 1, {0.2717, 0.1879, 0.3294, 0.2513}},
    {"b1_l3", 1, 256, 14, 14, 256, 3, 3, 1, 1, 1, 1, 1, 1, {0.0079, 0.0074, 0.0157, 0.0155}},
};

ConvProblem make(const Case& c, Pass pass, Layout in, Layout out, DType dtype = DType::kFloat16) {
  ConvProblem p{};
  p.pass = pass, p.dtype = dtype;
  p.n = c.n, p.c = c.c, p.h = c.h, p.w = c.w, p.k = c.k, p.r = c.r, p.s = c.s, p.groups = c.groups;
  p.stride = {c.stride, c.stride}, p.padding = {c.ph, c.pw}, p.dilation = {c.dh, c.dw};
  const bool dgrad = pass == Pass::kDgrad;
  p.x_strides = dense(dgrad ? out : in, p.c, p.h, p.w);
  p.y_strides = dense(dgrad ? in : out, p.k, p.p(), p.q());
  p.w_strides = dense(in, p.c_per_group(), p.r, p.s);
  p.x_align = p.w_align = p.y_align = 128;
  return p;
}

int64_t span(const Strides& s, int64_t n, int64_t c, int64_t h, int64_t w) {
  return (n - 1) * s.n + (c - 1) * s.c + (h - 1) * s.h + (w - 1) * s.w + 1;
}

DeviceSpec device{true, 90, 132, 232448, 1};
double* errors;
unsigned long long* nans;

struct Tensors {
  ConvBuffers b{};
  int64_t x, w, y;
  Tensors(const ConvProblem& p, int64_t workspace, bool bias) {
    x = span(p.x_strides, p.n, p.c, p.h, p.w), w = span(p.w_strides, p.k, p.c_per_group(), p.r, p.s);
    y = span(p.y_strides, p.n, p.k, p.p(), p.q());
    CHECK(cudaMalloc(&b.x, x * 2 + 512));
    CHECK(cudaMalloc(&b.w, w * 2 + 512));
    CHECK(cudaMalloc(&b.y, y * 2 + 512));
    CHECK(cudaMalloc(&b.workspace, workspace + 512));
    if (bias) CHECK(cudaMalloc(const_cast<void**>(&b.bias), p.k * 2));
  }
  template <typename T>
  void init(const ConvProblem& p, uint32_t seed) {
    const bool dgrad = p.pass == Pass::kDgrad;
    const float scale = 1.7f / std::sqrt(static_cast<float>((dgrad ? p.k_per_group() : p.c_per_group()) * p.r * p.s));
    fill<<<1024, 256>>>(static_cast<T*>(b.w), w, seed + 1, scale);
    if (dgrad) {
      fill<<<1024, 256>>>(static_cast<T*>(b.y), y, seed + 2, 1.7f);
      CHECK(cudaMemset(b.x, 0xff, x * 2 + 512));
    } else {
      fill<<<1024, 256>>>(static_cast<T*>(b.x), x, seed + 2, 1.7f);
      CHECK(cudaMemset(b.y, 0xff, y * 2 + 512));
    }
    if (b.bias) fill<<<1, 256>>>(static_cast<T*>(const_cast<void*>(b.bias)), p.k, seed + 3, 1.f);
  }
  ~Tensors() {
    for (void* a : {b.x, b.w, b.y, b.workspace, const_cast<void*>(b.bias)}) cudaFree(a);
  }
};

template <typename T>
double check(const ConvProblem& p, const HaloPlan& plan, bool bias, int samples, unsigned long long& missing,
             bool& guard) {
  Tensors t(p, plan.packed_filter_bytes, bias);
  t.init<T>(p, static_cast<uint32_t>(rand()));
  CHECK(cudaMemset(t.b.workspace, 0xff, plan.packed_filter_bytes));
  CHECK(run_halo(plan, p, t.b, nullptr));
  CHECK(cudaMemset(errors, 0, 24));
  CHECK(cudaMemset(nans, 0, 8));
  void* out = p.pass == Pass::kDgrad ? t.b.x : t.b.y;
  const int64_t size = p.pass == Pass::kDgrad ? t.x : t.y;
  count_nan<<<1024, 256>>>(static_cast<const T*>(out), p, nans);
  reference<<<(samples + 127) / 128, 128>>>(p, static_cast<const T*>(t.b.x), static_cast<const T*>(t.b.w),
                                            static_cast<const T*>(t.b.y), static_cast<const T*>(t.b.bias), samples,
                                            static_cast<uint32_t>(rand()), errors);
  double host[3];
  CHECK(cudaMemcpy(host, errors, 24, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(&missing, nans, 8, cudaMemcpyDeviceToHost));
  std::vector<uint8_t> tail(512);
  CHECK(cudaMemcpy(tail.data(), static_cast<uint8_t*>(out) + size * 2, 512, cudaMemcpyDeviceToHost));
  guard = std::all_of(tail.begin(), tail.end(), [](uint8_t v) { return v == 0xff; });
  return std::sqrt(host[0] / std::max(host[1], 1e-30));
}

int failures = 0, checked = 0;
double worst_half = 0, worst_bf16 = 0;

void check_all(const ConvProblem& p, const char* name, bool bias, size_t most) {
  const std::string why = halo_why_not(p, device);
  if (!why.empty()) {
    printf("%-14s refused: %s\n", name, why.c_str());
    return;
  }
  std::vector<HaloPlan> plans = halo_plans(p, device);
  for (size_t i = 0; i < plans.size() && i < most; ++i) {
    const HaloPlan& plan = plans[i < most / 2 ? i : rand() % plans.size()];
    unsigned long long missing;
    bool guard;
    const bool half = p.dtype == DType::kFloat16;
    const double error = half ? check<__half>(p, plan, bias, 20000, missing, guard)
                              : check<__nv_bfloat16>(p, plan, bias, 20000, missing, guard);
    ++checked;
    (half ? worst_half : worst_bf16) = std::max(half ? worst_half : worst_bf16, error);
    if (!(error < (half ? 6e-4 : 5e-3)) || missing || !guard) {
      ++failures;
      std::ostringstream text;
      text << plan;
      if (failures < 40)
        printf(
            "FAIL %s pass %d error %.2e nan %llu guard %d: n%ld c%ld %ldx%ld k%ld %ldx%ld stride %ld,%ld pad %ld,%ld "
            "dil %ld,%ld g%ld: %s\n",
            name, static_cast<int>(p.pass), error, missing, guard, p.n, p.c, p.h, p.w, p.k, p.r, p.s, p.stride.h,
            p.stride.w, p.padding.h, p.padding.w, p.dilation.h, p.dilation.w, p.groups, text.str().c_str());
      fflush(stdout);
    }
  }
}

void random_problems(int count) {
  std::mt19937 rng(7);
  auto pick = [&](std::initializer_list<int64_t> v) { return v.begin()[rng() % v.size()]; };
  for (int i = 0; i < count; ++i) {
    Case c{};
    c.groups = pick({1, 1, 1, 2, 3});
    c.n = pick({1, 2, 3, 9});
    c.c = c.groups * pick({16, 24, 32, 40, 64, 72, 128, 200, 17, 61});
    c.k = c.groups * pick({16, 32, 64, 96, 128, 136, 200, 19, 75});
    c.h = pick({5, 7, 13, 14, 28, 33, 40, 57}), c.w = pick({6, 7, 14, 17, 28, 33, 50, 64, 120});
    c.r = pick({1, 2, 3, 3, 5, 7}), c.s = pick({1, 2, 3, 3, 4, 9});
    c.stride = pick({1, 1, 1, 2, 2, 3});
    c.dh = pick({1, 1, 2, 5}), c.dw = pick({1, 1, 2, 3});
    c.ph = pick({0, 1, 2, 3}), c.pw = pick({0, 1, 2, 4});
    if (c.h + 2 * c.ph < c.dh * (c.r - 1) + 1 || c.w + 2 * c.pw < c.dw * (c.s - 1) + 1) continue;
    const Layout in = rng() % 3 == 0 ? kNchw : kNhwc, out = rng() % 3 == 0 ? kNchw : kNhwc;
#if defined(HALO_HALF_ONLY)
    const DType dtype = DType::kFloat16;
#else
    const DType dtype = rng() % 2 ? DType::kFloat16 : DType::kBFloat16;
#endif
    ConvProblem p = make(c, rng() % 2 ? Pass::kFprop : Pass::kDgrad, in, out, dtype);
    if (rng() % 8 == 0) p.stride.w = 1;
    // strided views: padded rows or pixels, which may break alignment
    if (rng() % 6 == 0) p.x_strides = dense(rng() % 2 ? kNchw : kNhwc, p.c, p.h, p.w, rng() % 2 ? 8 : 3);
    p.y_strides = dense(p.pass == Pass::kFprop ? out : in, p.k, p.p(), p.q(), rng() % 6 == 0 ? 5 : 0);
    check_all(p, "random", p.pass == Pass::kFprop && rng() % 2, 6);
  }
}

double time_plan(const ConvProblem& p, const HaloPlan& plan, std::vector<Tensors*>& sets, int launches) {
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) CHECK(run_halo(plan, p, sets[i % sets.size()]->b, stream));
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  std::vector<float> times;
  for (int i = 0; i < 6; ++i) {
    CHECK(cudaEventRecord(start, stream));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(stop, stream));
    CHECK(cudaStreamSynchronize(stream));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, start, stop));
    if (i > 0) times.push_back(ms / launches);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return times[times.size() / 2];
}

void time_case(const Case& c, Pass pass, Layout layout, size_t most) {
  const ConvProblem p = make(c, pass, layout, layout);
  const std::string why = halo_why_not(p, device);
  const double cudnn = c.cudnn[(layout == kNchw ? 2 : 0) + (pass == Pass::kDgrad)];
  const char* label = pass == Pass::kDgrad ? "dgrad" : "fwd";
  if (!why.empty()) {
    printf("%-14s %s %-5s refused: %s\n", c.name, layout == kNchw ? "NCHW" : "NHWC", label, why.c_str());
    return;
  }
  std::vector<HaloPlan> plans = halo_plans(p, device);
  // Of each configuration, the best few by the model.
  std::vector<HaloPlan> few;
  for (const HaloPlan& plan : plans) {
    size_t same = 0;
    for (const HaloPlan& other : few) {
      same += other.config.block_k == plan.config.block_k && other.config.m_blocks == plan.config.m_blocks &&
              other.config.channels == plan.config.channels &&
              other.params.warpgroups_per_tile == plan.params.warpgroups_per_tile;
    }
    if (same < 4) few.push_back(plan);
  }
  plans = few;
  if (plans.size() > most) plans.resize(most);
  int64_t workspace = 0;
  for (const HaloPlan& plan : plans) workspace = std::max(workspace, plan.packed_filter_bytes);
  const double bytes =
      2. * (static_cast<double>(p.n) * p.c * p.h * p.w + static_cast<double>(p.n) * p.k * p.p() * p.q());
  const int copies = std::clamp(static_cast<int>(190e6 / bytes) + 1, 1, 24);
  std::vector<Tensors*> sets;
  for (int i = 0; i < copies; ++i) {
    sets.push_back(new Tensors(p, workspace, false));
    sets.back()->init<__half>(p, i);
  }
  CHECK(cudaDeviceSynchronize());
  const int launches = std::max(copies, bytes > 1e8 ? 4 : 24);
  std::vector<std::pair<double, size_t>> times;
  for (size_t i = 0; i < plans.size(); ++i) times.push_back({time_plan(p, plans[i], sets, launches), i});
  const double chosen = times[0].first, gflop = 2. * p.n * p.p() * p.q() * p.k * p.c_per_group() * p.r * p.s / 1e9;
  std::sort(times.begin(), times.end());
  printf("%-14s %s %-5s chosen %.4f (%4.0f TF/s) x%.2f  best %.4f x%.2f  cudnn %.4f\n", c.name,
         layout == kNchw ? "NCHW" : "NHWC", label, chosen, gflop / chosen, cudnn / chosen, times[0].first,
         cudnn / times[0].first, cudnn);
  for (size_t i = 0; i < 8 && i < times.size(); ++i) {
    std::ostringstream text;
    text << plans[times[i].second];
    printf("    %.4f rank %zu/%zu: %s\n", times[i].first, times[i].second, times.size(), text.str().c_str());
  }
  fflush(stdout);
  for (Tensors* t : sets) delete t;
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  std::set<std::string> args(argv + 1, argv + argc);
  auto has = [&](const char* a) { return args.count(a) > 0; };
  cudaDeviceProp prop;
  CHECK(cudaGetDeviceProperties(&prop, 0));
  device.sm_count = prop.multiProcessorCount;
  CHECK(cudaMalloc(&errors, 24));
  CHECK(cudaMalloc(&nans, 8));
  if (has("check")) {
    for (const Case& c : kCases) {
      for (Pass pass : {Pass::kFprop, Pass::kDgrad}) {
        for (Layout layout : {kNhwc, kNchw}) {
          if (layout == kNchw && has("nhwc")) continue;
          Case small = c;
          while (static_cast<double>(small.n) * small.h * small.w * (small.c + small.k) > 3e7 && small.n > 1)
            small.n /= 2;
          check_all(make(small, pass, layout, layout), c.name, pass == Pass::kFprop, 8);
        }
      }
    }
    printf("suite: %d checked, %d failed, worst error fp16 %.2e bf16 %.2e\n", checked, failures, worst_half,
           worst_bf16);
    random_problems(has("long") ? 400 : 120);
    printf("all: %d checked, %d failed, worst error fp16 %.2e bf16 %.2e\n", checked, failures, worst_half, worst_bf16);
    fflush(stdout);
  }
  if (has("time")) {
    for (Layout layout : {kNhwc, kNchw}) {
      if (layout == kNchw && has("nhwc")) continue;
      for (Pass pass : {Pass::kFprop, Pass::kDgrad}) {
        if (pass == Pass::kDgrad && has("fwd")) continue;
        for (const Case& c : kCases) time_case(c, pass, layout, 60);
      }
    }
  }
  return failures != 0;
}
