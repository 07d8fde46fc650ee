// Standalone check and timing of the weight gradient: plans of suite and random problems against a float64 reference on
// random data with poisoned output and workspace, then GPU times by graph replay over rotating inputs.
// Usage: wgrad [check] [long] [time] [all] [nhwc|nchw] [problem names..]
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "fastconv/launch/run_wgrad.h"

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
__global__ void count_nan(const T* w, ConvProblem p, unsigned long long* nans) {
  const int64_t cg = p.c_per_group();
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.k * cg * p.r * p.s;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t s = i % p.s, r = i / p.s % p.r, c = i / p.s / p.r % cg, k = i / p.s / p.r / cg;
    const Strides st = p.w_strides;
    if (isnan(static_cast<float>(w[k * st.n + c * st.c + r * st.h + s * st.w]))) atomicAdd(nans, 1ull);
  }
}

// One weight a block, in fp64; `samples` random ones, or all if that is as many.
// errors: sum of squared differences, sum of squares.
template <typename T>
__global__ void reference(ConvProblem p, const T* x, const T* w, const T* y, bool all, uint32_t seed, double* errors) {
  __shared__ double sums[256];
  const int64_t cg = p.c_per_group(), kg = p.k_per_group(), weights = p.k * cg * p.r * p.s;
  const int64_t i = all ? blockIdx.x : hash(blockIdx.x + (uint64_t{seed} << 32)) % weights;
  const int64_t s = i % p.s, r = i / p.s % p.r, c = i / p.s / p.r % cg, k = i / p.s / p.r / cg;
  const Strides xs = p.x_strides, ws = p.w_strides, ys = p.y_strides;
  const int64_t pixels = p.n * p.p() * p.q(), channel = k / kg * cg + c;
  const int32_t out_w = p.q(), out_h = p.p();
  double sum = 0;
  for (int64_t j = threadIdx.x; j < pixels; j += blockDim.x) {
    const int32_t j32 = static_cast<int32_t>(j);
    const int64_t q = j32 % out_w, op = j32 / out_w % out_h, n = j32 / out_w / out_h;
    const int64_t h = op * p.stride.h - p.padding.h + r * p.dilation.h,
                  iw = q * p.stride.w - p.padding.w + s * p.dilation.w;
    if (h < 0 || h >= p.h || iw < 0 || iw >= p.w) continue;
    sum += static_cast<double>(static_cast<float>(x[n * xs.n + channel * xs.c + h * xs.h + iw * xs.w])) *
           static_cast<float>(y[n * ys.n + k * ys.c + op * ys.h + q * ys.w]);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int t = 1; t < blockDim.x; ++t) sum += sums[t];
  const double d = static_cast<float>(w[k * ws.n + c * ws.c + r * ws.h + s * ws.w]) - sum;
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
  double cudnn[2];  // fp16 wgrad ms: NHWC, NCHW (shared problems.json)
};
const Case kCases[] = {
    {"seed_5x7", 8, 64, 512, 256, 128, 5, 7, 1, 0, 0, 1, 1, 1, {2.0784, 2.4026}},
    {"seed_3x3", 16, 16, 1024, 1024, 128, 3, 3, 1, 0, 0, 1, 1, 1, {3.7111, 8.011}},
    {"seed_5x9d", 8, 32, 512, 512, 64, 5, 9, 1, 2, 4, 2, 3, 1, {1.6251, 1.9689}},
    {"rn50_stem", 64, 3, 224, 224, 64, 7, 7, 2, 3, 3, 1, 1, 1, {0.1652, 0.3517}},
    {"rn50_l1_3x3", 64, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1, 1, 1, {0.0434, 0.0903}},
    {"rn50_l2_3x3", 64, 128, 28, 28, 128, 3, 3, 1, 1, 1, 1, 1, 1, {0.0386, 0.063}},
    {"rn50_l3_3x3", 64, 256, 14, 14, 256, 3, 3, 1, 1, 1, 1, 1, 1, {0.0343, 0.0524}},
    {"rn50_l4_3x3", 64, 512, 7, 7, 512, 3, 3, 1, 1, 1, 1, 1, 1, {0.0308, 0.0547}},
    {"rn50_l2_3x3s2", 64, 128, 56, 56, 128, 3, 3, 2, 1, 1, 1, 1, 1, {0.0389, 0.0934}},
    {"rn50_l1_1x1", 64, 64, 56, 56, 256, 1, 1, 1, 0, 0, 1, 1, 1, {0.0444, 0.038}},
    {"rn50_l3_1x1", 64, 1024, 14, 14, 256, 1, 1, 1, 0, 0, 1, 1, 1, {0.0203, 0.0548}},
    {"vgg_224", 32, 64, 224, 224, 64, 3, 3, 1, 1, 1, 1, 1, 1, {0.2801, 0.658}},
    {"unet_512", 8, 128, 256, 256, 128, 3, 3, 1, 1, 1, 1, 1, 1, {0.256, 0.4872}},
    {"sd_vae_512", 2, 512, 128, 128, 512, 3, 3, 1, 1, 1, 1, 1, 1, {0.2452, 0.3235}},
    {"deeplab_d12", 8, 2048, 33, 33, 256, 3, 3, 1, 12, 12, 12, 12, 1, {0.2575, 0.3123}},
    {"b1_l3", 1, 256, 14, 14, 256, 3, 3, 1, 1, 1, 1, 1, 1, {0.0054, 0.0143}},
};

ConvProblem make(const Case& c, Layout x, Layout y, Layout w, DType dtype) {
  ConvProblem p{};
  p.pass = Pass::kWgrad, p.dtype = dtype;
  p.n = c.n, p.c = c.c, p.h = c.h, p.w = c.w, p.k = c.k, p.r = c.r, p.s = c.s, p.groups = c.groups;
  p.stride = {c.stride, c.stride}, p.padding = {c.ph, c.pw}, p.dilation = {c.dh, c.dw};
  p.x_strides = dense(x, p.c, p.h, p.w);
  p.y_strides = dense(y, p.k, p.p(), p.q());
  p.w_strides = dense(w, p.c_per_group(), p.r, p.s);
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
  Tensors(const ConvProblem& p, int64_t workspace) {
    x = span(p.x_strides, p.n, p.c, p.h, p.w), w = span(p.w_strides, p.k, p.c_per_group(), p.r, p.s);
    y = span(p.y_strides, p.n, p.k, p.p(), p.q());
    CHECK(cudaMalloc(&b.x, x * 2 + 512));
    CHECK(cudaMalloc(&b.w, w * 2 + 512));
    CHECK(cudaMalloc(&b.y, y * 2 + 512));
    CHECK(cudaMalloc(&b.workspace, workspace + 512));
  }
  template <typename T>
  void init(const ConvProblem& p, int64_t workspace, uint32_t seed) {
    const float scale = 1.7f / std::sqrt(static_cast<float>(p.n * p.p() * p.q()));
    fill<<<1024, 256>>>(static_cast<T*>(b.x), x, seed + 1, 1.7f);
    fill<<<1024, 256>>>(static_cast<T*>(b.y), y, seed + 2, std::max(scale, 0.004f));
    CHECK(cudaMemset(b.w, 0xff, w * 2 + 512));
    CHECK(cudaMemset(b.workspace, 0xff, workspace + 512));
  }
  ~Tensors() {
    for (void* a : {b.x, b.w, b.y, b.workspace}) cudaFree(a);
  }
};

int failures = 0, checked = 0;
double worst_half = 0, worst_bf16 = 0;

template <typename T>
double check(const ConvProblem& p, const WgradPlan& plan, Tensors& t, unsigned long long& missing, bool& guard) {
  CHECK(cudaMemset(t.b.w, 0xff, t.w * 2 + 512));
  CHECK(cudaMemset(t.b.workspace, 0xff, plan.workspace_bytes + 512));
  CHECK(run_wgrad(plan, p, t.b, nullptr));
  std::vector<uint16_t> first(t.w), second(t.w);  // bitwise the same again, whatever the workspace held
  CHECK(cudaMemcpy(first.data(), t.b.w, t.w * 2, cudaMemcpyDeviceToHost));
  CHECK(cudaMemset(t.b.workspace, 0x11, plan.workspace_bytes));
  CHECK(run_wgrad(plan, p, t.b, nullptr));
  CHECK(cudaMemcpy(second.data(), t.b.w, t.w * 2, cudaMemcpyDeviceToHost));
  CHECK(cudaMemset(errors, 0, 24));
  CHECK(cudaMemset(nans, 0, 8));
  count_nan<<<256, 256>>>(static_cast<const T*>(t.b.w), p, nans);
  const int64_t weights = p.k * p.c_per_group() * p.r * p.s;
  const double pixels = static_cast<double>(p.n) * p.p() * p.q();
  const int64_t most = pixels > 3e5 ? 300 : 6000;
  reference<<<static_cast<unsigned>(std::min(weights, most)), 256>>>(
      p, static_cast<const T*>(t.b.x), static_cast<const T*>(t.b.w), static_cast<const T*>(t.b.y), weights <= most,
      static_cast<uint32_t>(rand()), errors);
  double host[2];
  CHECK(cudaMemcpy(host, errors, 16, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(&missing, nans, 8, cudaMemcpyDeviceToHost));
  std::vector<uint8_t> tail(512);
  guard = first == second;
  for (auto [base, size] : {std::pair<void*, int64_t>{t.b.w, t.w * 2}, {t.b.workspace, plan.workspace_bytes}}) {
    CHECK(cudaMemcpy(tail.data(), static_cast<uint8_t*>(base) + size, 512, cudaMemcpyDeviceToHost));
    guard = guard && std::all_of(tail.begin(), tail.end(), [](uint8_t v) { return v == 0xff; });
  }
  return std::sqrt(host[0] / std::max(host[1], 1e-30));
}

void check_all(const ConvProblem& p, const char* name, size_t most, bool print) {
  const std::string why = wgrad_why_not(p, device);
  if (!why.empty()) {
    printf("%-14s refused: %s\n", name, why.c_str());
    return;
  }
  const std::vector<WgradPlan> plans = wgrad_plans(p, device);
  std::vector<size_t> picks;
  for (size_t i = 0; i < plans.size() && i < most; ++i) picks.push_back(i < (most + 1) / 2 ? i : rand() % plans.size());
  int64_t workspace = 0;
  for (size_t i : picks) workspace = std::max(workspace, plans[i].workspace_bytes);
  const bool half = p.dtype == DType::kFloat16;
  Tensors t(p, workspace);
  const auto seed = static_cast<uint32_t>(rand());
  half ? t.init<__half>(p, workspace, seed) : t.init<__nv_bfloat16>(p, workspace, seed);
  double worst = 0;
  for (size_t i : picks) {
    const WgradPlan& plan = plans[i];
    unsigned long long missing;
    bool guard;
    const double error =
        half ? check<__half>(p, plan, t, missing, guard) : check<__nv_bfloat16>(p, plan, t, missing, guard);
    ++checked;
    worst = std::max(worst, error);
    if (!(error < (half ? 4e-4 : 3e-3)) || missing || !guard) {
      ++failures;
      std::ostringstream text;
      text << plan;
      if (failures < 30) {
        printf(
            "FAIL %s error %.2e nan %llu guard %d: n%ld c%ld %ldx%ld k%ld %ldx%ld stride %ld,%ld pad %ld,%ld dil "
            "%ld,%ld g%ld: %s\n",
            name, error, missing, guard, p.n, p.c, p.h, p.w, p.k, p.r, p.s, p.stride.h, p.stride.w, p.padding.h,
            p.padding.w, p.dilation.h, p.dilation.w, p.groups, text.str().c_str());
      }
      fflush(stdout);
    }
  }
  if (print)
    printf("%-14s %zu of %zu plans checked, worst normwise error %.2e\n", name, picks.size(), plans.size(), worst);
  (half ? worst_half : worst_bf16) = std::max(half ? worst_half : worst_bf16, worst);
}

void random_problems(int count, bool nhwc_only) {
  std::mt19937 rng(7);
  auto pick = [&](std::initializer_list<int64_t> v) { return v.begin()[rng() % v.size()]; };
  for (int i = 0; i < count; ++i) {
    Case c{};
    c.groups = pick({1, 1, 1, 2, 3});
    c.n = pick({1, 2, 3, 9});
    c.c = c.groups *
          (nhwc_only ? pick({16, 24, 32, 40, 64, 72, 128, 200}) : pick({3, 16, 24, 32, 40, 64, 72, 128, 200, 17, 61}));
    c.k =
        c.groups * (nhwc_only ? pick({16, 32, 64, 96, 128, 136, 200}) : pick({16, 32, 64, 96, 128, 136, 200, 19, 75}));
    c.h = pick({5, 7, 13, 14, 28, 33, 40, 57}), c.w = pick({6, 7, 14, 17, 28, 33, 50, 64, 120, 251});
    c.r = pick({1, 2, 3, 3, 5, 7}), c.s = pick({1, 2, 3, 3, 4, 7, 9});
    c.stride = pick({1, 1, 1, 2, 2, 3});
    c.dh = pick({1, 1, 2, 5}), c.dw = pick({1, 1, 2, 3});
    c.ph = pick({0, 1, 2, 3}), c.pw = pick({0, 1, 2, 4});
    if (c.h + 2 * c.ph < c.dh * (c.r - 1) + 1 || c.w + 2 * c.pw < c.dw * (c.s - 1) + 1) continue;
    auto layout = [&] { return !nhwc_only && rng() % 2 ? kNchw : kNhwc; };
    const Layout x = layout(), y = rng() % 4 ? x : layout();
#if defined(WGRAD_HALF_ONLY)
    const DType dtype = DType::kFloat16;
#else
    const DType dtype = rng() % 3 ? DType::kFloat16 : DType::kBFloat16;
#endif
    ConvProblem p = make(c, x, y, rng() % 2 ? kNchw : kNhwc, dtype);
    if (rng() % 8 == 0) p.stride.w = 1;
    if (rng() % 6 == 0) p.x_strides = dense(x, p.c, p.h, p.w, nhwc_only || rng() % 2 ? 8 : 3);  // strided views
    p.y_strides = dense(y, p.k, p.p(), p.q(), rng() % 6 == 0 ? (nhwc_only ? 16 : 5) : 0);
    check_all(p, "random", 6, false);
  }
}

double time_plan(const ConvProblem& p, const WgradPlan& plan, std::vector<Tensors*>& sets, int launches) {
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) CHECK(run_wgrad(plan, p, sets[i % sets.size()]->b, stream));
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
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return times[times.size() / 2];
}

// The plans to time: the cheapest of each configuration and arrangement, most promising first.
std::vector<WgradPlan> shortlist(const std::vector<WgradPlan>& plans, size_t most, size_t of_each) {
  std::vector<WgradPlan> list;
  std::multiset<std::string> seen;
  for (const WgradPlan& plan : plans) {
    std::ostringstream key;
    key << plan.config << plan.params.m_blocks << (plan.params.tap_group[0].part_end > 1)
        << (plan.params.step[1].x - plan.params.step[0].x == plan.config.channels * 2);
    if (list.size() < most && seen.count(key.str()) < of_each) {
      seen.insert(key.str());
      list.push_back(plan);
    }
  }
  return list;
}

void time_case(const Case& c, Layout layout, size_t most, int show) {
  const ConvProblem p = make(c, layout, layout, layout, DType::kFloat16);
  const std::string why = wgrad_why_not(p, device);
  const double cudnn = c.cudnn[layout == kNchw];
  const char* label = layout == kNchw ? "NCHW" : "NHWC";
  if (!why.empty()) {
    printf("%-14s %s refused: %s\n", c.name, label, why.c_str());
    return;
  }
  const std::vector<WgradPlan> plans = shortlist(wgrad_plans(p, device), most, most > 12 ? 12 : 3);
  int64_t workspace = 0;
  for (const WgradPlan& plan : plans) workspace = std::max(workspace, plan.workspace_bytes);
  const double bytes =
      2. * (static_cast<double>(p.n) * p.c * p.h * p.w + static_cast<double>(p.n) * p.k * p.p() * p.q());
  const int copies = std::clamp(static_cast<int>(190e6 / bytes) + 1, 1, 16);
  std::vector<Tensors*> sets;
  for (int i = 0; i < copies; ++i) {
    sets.push_back(new Tensors(p, workspace));
    sets.back()->init<__half>(p, workspace, i);
  }
  CHECK(cudaDeviceSynchronize());
  const int launches = std::max(copies, bytes > 1e8 ? 4 : 24);
  std::vector<std::pair<double, size_t>> times;
  for (size_t i = 0; i < plans.size(); ++i) times.push_back({time_plan(p, plans[i], sets, launches), i});
  const double chosen = times[0].first;
  const double gflop = 2. * p.n * p.p() * p.q() * p.k * p.c_per_group() * p.r * p.s / 1e9;
  std::sort(times.begin(), times.end());
  printf("%-14s %s chosen %.4f (%4.0f TF/s %4.0f GB/s) x%.2f  best %.4f x%.2f  cudnn %.4f\n", c.name, label, chosen,
         gflop / chosen, bytes / chosen / 1e6, cudnn / chosen, times[0].first, cudnn / times[0].first, cudnn);
  for (int i = 0; i < show && i < static_cast<int>(times.size()); ++i) {
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
  const std::set<std::string> args(argv + 1, argv + argc);
  auto has = [&](const char* a) { return args.count(a) > 0; };
  bool named = false;
  for (const Case& c : kCases) named = named || has(c.name);
  if (has("plan")) {
    for (const Case& c : kCases) {
      if (named && !has(c.name)) continue;
      for (Layout layout : {kNhwc, kNchw}) {
        const ConvProblem p = make(c, layout, layout, layout, DType::kFloat16);
        const std::string why = wgrad_why_not(p, device);
        printf("%s %s cudnn %.1f us %s\n", c.name, layout == kNchw ? "NCHW" : "NHWC", c.cudnn[layout == kNchw] * 1e3,
               why.c_str());
        if (!why.empty()) continue;
        const auto all = wgrad_plans(p, device);
        const auto plans = shortlist(all, 8, 1);
        printf("  %zu plans\n", all.size());
        for (const auto& plan : plans) {
          std::ostringstream text;
          text << plan;
          printf("  %s\n", text.str().c_str());
        }
      }
    }
    return 0;
  }
  cudaDeviceProp prop;
  CHECK(cudaGetDeviceProperties(&prop, 0));
  device.sm_count = prop.multiProcessorCount;
  CHECK(cudaMalloc(&errors, 24));
  CHECK(cudaMalloc(&nans, 8));
  const bool nhwc = !has("nchw"), nchw = !has("nhwc");
  if (has("check")) {
    for (const Case& c : kCases) {
      if (named && !has(c.name)) continue;
      for (Layout layout : {kNhwc, kNchw}) {
        if (layout == kNchw ? !nchw : !nhwc) continue;
        Case small = c;
        while (static_cast<double>(small.n) * small.h * small.w * (small.c + small.k) > 6e7 && small.n > 1)
          small.n /= 2;
        check_all(make(small, layout, layout, layout, DType::kFloat16), c.name, 8, true);
      }
    }
    printf("suite: %d checked, %d failed, worst error fp16 %.2e bf16 %.2e\n", checked, failures, worst_half,
           worst_bf16);
    if (!named) {
      random_problems(has("long") ? 300 : 80, !nchw);
      printf("all: %d checked, %d failed, worst error fp16 %.2e bf16 %.2e\n", checked, failures, worst_half,
             worst_bf16);
    }
    fflush(stdout);
  }
  if (has("trace")) {
    for (const Case& c : kCases) {
      if (!has(c.name)) continue;
      const ConvProblem p = make(c, kNhwc, kNhwc, kNhwc, DType::kFloat16);
      const WgradPlan plan = wgrad_plans(p, device)[0];
      Tensors t(p, plan.workspace_bytes);
      t.init<__half>(p, plan.workspace_bytes, 1);
      std::ostringstream text;
      text << plan;
      printf("%s %s\n", c.name, text.str().c_str());
      for (int i = 0; i < 3; ++i) {
        CHECK(cudaMemset(t.b.workspace, 0xff, plan.workspace_bytes));
        CHECK(run_wgrad(plan, p, t.b, nullptr));
        CHECK(cudaDeviceSynchronize());
      }
    }
  }
  if (has("time")) {
    for (Layout layout : {kNhwc, kNchw}) {
      if (layout == kNchw ? !nchw : !nhwc) continue;
      for (const Case& c : kCases) {
        if (!named || has(c.name)) time_case(c, layout, has("all") ? 40 : 12, has("all") ? 6 : 3);
      }
    }
  }
  return failures != 0;
}
