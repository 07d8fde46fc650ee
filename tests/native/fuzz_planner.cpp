// The planner and what launches are made of, by random problems under sanitizers:
// every legal problem has a plan or sentences that say why not, and every plan keeps what is promised of plans.
//   fuzz_planner [COUNT [SEED]]   problem i is that of seed SEED + i, so that one which fails can be had alone
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "fastconv/core/integers.h"
#include "fastconv/core/problem.h"
#include "fastconv/core/validate.h"
#include "fastconv/families/depthwise/any_plan.h"
#include "fastconv/families/depthwise/banded_plan.h"
#include "fastconv/families/depthwise/cross_plan.h"
#include "fastconv/families/depthwise/diagonal_plan.h"
#include "fastconv/families/depthwise/pairs_plan.h"
#include "fastconv/families/depthwise/plan.h"
#include "fastconv/families/depthwise/sequence_plan.h"
#include "fastconv/families/few_channels/embed_plan.h"
#include "fastconv/families/few_channels/quads_plan.h"
#include "fastconv/families/few_channels/quads_wgrad_plan.h"
#include "fastconv/families/few_channels/stem_plan.h"
#include "fastconv/families/grouped/plan.h"
#include "fastconv/families/grouped/planes_plan.h"
#include "fastconv/families/halo/plan.h"
#include "fastconv/families/implicit_gemm/config.h"
#include "fastconv/families/implicit_gemm/direct_plan.h"
#include "fastconv/families/implicit_gemm/im2col_plan.h"
#include "fastconv/families/pointwise/plan.h"
#include "fastconv/families/pointwise/taps_plan.h"
#include "fastconv/families/space_to_depth/patches_plan.h"
#include "fastconv/families/space_to_depth/subpixel_plan.h"
#include "fastconv/families/wgrad/plan.h"
#include "fastconv/planner/bias_grad.h"
#include "fastconv/planner/planner.h"
#include "fastconv/planner/registry.h"
#include "fastconv/planner/scaled.h"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {
namespace {

std::string asked;  // what is being planned, for whoever ends the process

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n%s\n", what.c_str(), asked.c_str());
  std::_Exit(1);
}
void expect(bool holds, const char* what) {
  if (!holds) fail(what);
}

template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. The standard's distributions
// differ from library to library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  // Of [least, most].
  int64_t of(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(next() % static_cast<uint64_t>(most - least + 1));
  }
  bool one_in(int64_t count) { return of(1, count) == 1; }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[of(0, static_cast<int64_t>(values.size()) - 1)];
  }
  // All orders of magnitude alike, up to 2^bits; often a power of two or beside one.
  int64_t size(int bits) {
    const int64_t power = int64_t{1} << of(0, bits);
    return one_in(2) ? std::max<int64_t>(1, power + of(-1, 1)) : of(std::max<int64_t>(1, power / 2), power);
  }

 private:
  uint64_t state_;
};

int64_t channels(Random& random) {
  if (random.one_in(2)) return random.pick<int64_t>({1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024});
  return random.size(random.one_in(8) ? 14 : 9);
}

// One dimension of image and filter.
struct Extent {
  int64_t size, taps, stride, padding, dilation;
};

Extent everyday_extent(Random& random) {
  const int64_t taps = random.one_in(3) ? 1 : random.one_in(2) ? 3 : random.of(1, random.one_in(6) ? 35 : 11);
  const int64_t dilation = random.one_in(6) ? random.of(1, 20) : 1;
  const int64_t stride = random.one_in(3) ? random.of(1, random.one_in(6) ? 40 : 4) : 1;
  const int64_t padding = random.one_in(3)   ? 0
                          : random.one_in(3) ? random.of(0, 2 * dilation * taps)
                                             : dilation * (taps - 1) / 2;
  return {random.one_in(4) ? random.size(11) : random.of(1, 256), taps, stride, padding, dilation};
}

// Whatever is legal: to 2^31 and beyond.
Extent wild_extent(Random& random) {
  auto parameter = [&](int64_t least) {
    return random.one_in(2) ? random.of(least, 5) : std::min<int64_t>(random.size(31), INT32_MAX);
  };
  Extent out{random.one_in(2) ? random.of(1, 300) : random.size(random.one_in(2) ? 20 : 40),
             random.one_in(2) ? random.of(1, 9) : random.size(random.one_in(2) ? 9 : 33), parameter(1), parameter(0),
             parameter(1)};
  if (random.one_in(2))
    out.dilation = std::max<int64_t>(1, (out.size + 2 * out.padding) / std::max<int64_t>(1, out.taps));
  out.dilation = std::min<int64_t>(out.dilation, INT32_MAX);
  return out;
}

// Beyond this many elements nothing has an address.
constexpr double kMostElements = 0x1p54;

double span(const std::array<int64_t, 4>& size, const Strides& strides) {
  auto times = [](int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
  return times(size[0], strides.n) + times(size[1], strides.c) + times(size[2], strides.h) + times(size[3], strides.w);
}

// None, as of an expanded element, where the tensor could not lie in memory.
Strides strides_of(const std::array<int64_t, 4>& size, std::array<int, 4> order, int64_t gap) {
  std::array<int64_t, 4> out{};
  int64_t step = 1;
  for (const int dim : order) {
    out[dim] = step;
    const int64_t extent = std::max<int64_t>(1, size[dim]);
    if (static_cast<double>(step) * static_cast<double>(extent) > kMostElements) return {};
    step = step * extent + gap;
  }
  return {out[0], out[1], out[2], out[3]};
}

// As tensors can lie that an op is given.
Strides any_strides(Random& random, const std::array<int64_t, 4>& size, bool channels_last) {
  constexpr std::array<int, 4> kPlanes{3, 2, 1, 0}, kPixels{1, 3, 2, 0};
  const std::array<int, 4> order = channels_last ? kPixels : kPlanes;
  const Strides dense = strides_of(size, order, 0);
  if (random.one_in(2)) return dense;
  std::array<int, 4> mixed = order;
  if (random.one_in(4)) std::swap(mixed[random.of(0, 3)], mixed[random.of(0, 3)]);
  Strides out = strides_of(size, mixed, random.one_in(2) ? 0 : random.one_in(2) ? 8 : random.of(1, 20));
  std::array<int64_t*, 4> each{&out.n, &out.c, &out.h, &out.w};
  for (int dim = 0; dim < 4; ++dim) {
    if (size[dim] == 1 && random.one_in(3)) *each[dim] = random.size(50);
    if (random.one_in(10)) *each[dim] = random.one_in(2) ? 0 : random.size(40);
  }
  return span(size, out) < kMostElements ? out : dense;
}

struct Question {
  ConvProblem problem;
  DeviceSpec device;
};

DeviceSpec any_device(Random& random) {
  DeviceSpec device;
  if (random.one_in(12)) {
    device.threads = static_cast<int>(random.of(1, 128));
    return device;
  }
  device.is_cuda = true;
  device.arch = random.one_in(2) ? 90 : random.pick({70, 75, 80, 86, 87, 89, 100, 103, 120});
  device.sm_count = static_cast<int>(random.one_in(4) ? random.of(1, 200) : random.pick({132, 108, 40, 84, 148}));
  // From the CUDA programming guide's table; or an H200's, which is what explain() takes for any architecture.
  const std::map<int, int64_t> kib{{70, 96}, {75, 64}, {80, 163}, {86, 99}, {87, 163}, {89, 99}, {120, 99}};
  const auto own = kib.find(device.arch);
  device.smem_optin_bytes = (own == kib.end() || random.one_in(8) ? 227 : own->second) << 10;
  return device;
}

// None where the sizes drawn are no convolution.
std::optional<Question> draw(Random& random) {
  const bool wild = random.one_in(3);
  Extent h = wild && random.one_in(2) ? wild_extent(random) : everyday_extent(random);
  Extent w = wild && random.one_in(2) ? wild_extent(random) : everyday_extent(random);
  if (random.one_in(2)) {  // square
    const int64_t size = w.size;
    w = h;
    if (random.one_in(2)) w.size = size;
  }
  if (random.one_in(8)) {  // one dimension
    if (random.one_in(2)) std::swap(h, w);
    h = {1, 1, 1, 0, 1};
    if (random.one_in(2)) w.size = std::max(w.size, random.of(1, 20000));
  }
  int64_t n = random.one_in(3) ? 1 : random.of(1, 64), groups = 1, c = channels(random), k = channels(random);
  switch (random.of(0, 7)) {
    case 0:  // depthwise, some with several filters a channel
      groups = c, k = c * (random.one_in(3) ? random.of(1, 4) : 1);
      break;
    case 1:  // narrow groups
      groups = random.of(1, 64), c = groups * random.of(1, 32),
      k = groups * (random.one_in(2) ? c / groups : random.of(1, 32));
      break;
    case 2:  // few channels, or few filters
      (random.one_in(2) ? c : k) = random.of(1, 5);
      break;
    case 3:  // pointwise
      h.taps = w.taps = h.stride = w.stride = 1, h.padding = w.padding = 0;
      break;
    case 4:  // patches
      for (Extent* extent : {&h, &w}) extent->taps = extent->stride = random.of(1, 32), extent->padding = 0;
      h.dilation = w.dilation = 1;
      if (random.one_in(2)) c = random.of(1, 4);
      break;
    default: break;
  }
  if (wild) {
    if (random.one_in(3)) n = random.size(random.one_in(3) ? 40 : 24);
    if (random.one_in(4)) c = groups * random.size(random.one_in(3) ? 40 : 24);
    if (random.one_in(4)) k = groups * random.size(random.one_in(3) ? 40 : 24);
    if (random.one_in(20)) groups = random.size(36), c = groups * random.of(1, 4), k = groups * random.of(1, 4);
  }
  if (random.one_in(25)) (random.one_in(2) ? n : c) = 0;
  const ConvGeometry geometry{{n, c, h.size, w.size}, {k, c / groups, h.taps, w.taps}, {h.stride, w.stride},
                              {h.padding, w.padding}, {h.dilation, w.dilation},        groups};
  if (!validate(geometry).empty()) return std::nullopt;
  Question out{};
  ConvProblem& p = out.problem;
  p.pass = random.pick({Pass::kFprop, Pass::kDgrad, Pass::kWgrad});
  p.dtype = random.pick({DType::kFloat32, DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64});
  p.precision = random.pick({Precision::kIeee, Precision::kBf16x3, Precision::kTf32});
  p.has_bias = p.pass == Pass::kFprop && random.one_in(2);
  p.n = n, p.c = c, p.h = h.size, p.w = w.size, p.k = k, p.r = h.taps, p.s = w.taps, p.groups = groups;
  p.stride = geometry.stride, p.padding = geometry.padding, p.dilation = geometry.dilation;
  const bool channels_last = random.one_in(2);
  p.x_strides = any_strides(random, {n, c, p.h, p.w}, channels_last != random.one_in(20));
  p.w_strides = any_strides(random, {k, c / groups, p.r, p.s}, channels_last != random.one_in(20));
  p.y_strides = any_strides(random, {n, k, p.p(), p.q()}, channels_last != random.one_in(20));
  for (int32_t* align : {&p.x_align, &p.w_align, &p.y_align}) {
    const int64_t bytes = element_size(p.dtype);
    *align =
        static_cast<int32_t>(random.one_in(6) ? bytes << random.of(0, 7 - std::bit_width(uint64_t(bytes)) + 1) : 128);
  }
  out.device = any_device(random);
  return out;
}

// What a launcher asks of the planner.
void make_launch(const Plan& plan, const ConvProblem& problem) {
  const KernelEntry& kernel = *plan.kernel;
  const bool wgrad = problem.pass == Pass::kWgrad;
  const auto& config = kernel.config;
  const auto& tiling = plan.tiling;
  if (config.holds<GemmConfig>()) {
    if (config.as<GemmConfig>().method == GemmMethod::kIm2col) {
      im2col_blocks(kernel, problem);
    } else {
      const ConvMap map = make_conv_map(problem, direct_channels_inner(problem));
      for (const int32_t phase : {0, 1, 2})
        map.phase(std::min(phase, map.h.phases - 1), std::min(phase, map.w.phases - 1));
    }
  } else if (config.holds<DepthwiseConfig>()) {
    depthwise_params(plan, problem);
    if (config.as<DepthwiseConfig>().staged()) depthwise_maps(plan, problem);
  } else if (config.holds<DepthwiseAnyConfig>()) {
    depthwise_any_params(config.as<DepthwiseAnyConfig>(), problem, tiling.as<DepthwiseAnyTiling>(), plan.split);
  } else if (config.holds<DepthwiseBandedConfig>()) {
    depthwise_banded_params(plan, problem);
  } else if (config.holds<DepthwiseDiagonalConfig>()) {
    wgrad ? (void)depthwise_diagonal_wgrad_params(plan, problem) : (void)depthwise_diagonal_params(plan, problem);
    if (config.as<DepthwiseDiagonalConfig>().boxed()) {
      wgrad ? depthwise_diagonal_wgrad_maps(plan, problem) : depthwise_diagonal_maps(plan, problem);
    }
  } else if (config.holds<DepthwisePairsConfig>()) {
    depthwise_pairs_params(plan, problem), depthwise_pairs_maps(plan, problem);
  } else if (config.holds<DepthwiseCrossConfig>()) {
    depthwise_cross_params(plan, problem), depthwise_cross_maps(plan, problem);
  } else if (config.holds<DepthwiseSequenceConfig>()) {
    depthwise_sequence_params(plan, problem);
  } else if (config.holds<GroupedConfig>()) {
    const auto& grouped = config.as<GroupedConfig>();
    wgrad ? (void)grouped_wgrad_params(grouped, problem, tiling.as<GroupedTiling>(), plan.split)
          : (void)grouped_params(grouped, problem, tiling.as<GroupedTiling>());
  } else if (config.holds<GroupedPlanesConfig>()) {
    grouped_planes_params(plan, problem);
  } else if (config.holds<StemConfig>()) {
    wgrad ? (void)stem_wgrad_params(config.as<StemConfig>(), problem, tiling.as<StemTiling>())
          : (void)stem_params(config.as<StemConfig>(), problem, tiling.as<StemTiling>());
  } else if (config.holds<QuadsConfig>()) {
    quads_params(config.as<QuadsConfig>(), problem, tiling.as<QuadsTiling>());
  } else if (config.holds<QuadsWgradConfig>()) {
    quads_wgrad_params(config.as<QuadsWgradConfig>(), problem, tiling.as<QuadsTiling>());
  } else if (config.holds<EmbedConfig>()) {
    embed_params(config.as<EmbedConfig>(), problem, tiling.as<EmbedTiling>());
  } else if (config.holds<HaloConfig>()) {
    halo_launch(plan, problem);
  } else if (config.holds<WgradConfig>()) {
    wgrad_launch(plan, problem);
  } else if (config.holds<PointwiseConfig>() && tiling.holds<TapTiling>()) {
    const auto& taps = tiling.as<TapTiling>();
    const Pair phases = tap_phases(problem);
    for (const int64_t phase : {int64_t{0}, phases.h * phases.w - 1}) {
      tap_params(problem, config.as<PointwiseConfig>().operands, taps, plan.split,
                 static_cast<int32_t>(phase / phases.w), static_cast<int32_t>(phase % phases.w));
    }
    tap_splits(plan, problem);
  } else if (config.holds<PointwiseConfig>()) {
    pointwise_params(problem, tiling.as<PointwiseTiling>(), plan.split);
  } else if (config.holds<PatchesConfig>()) {
    make_patches(config.as<PatchesConfig>(), problem);
  } else if (config.holds<SubpixelConfig>()) {
    make_subpixel(config.as<SubpixelConfig>(), problem);
  } else {
    expect(!kernel.is_cuda(), "every family of kernels is checked");
  }
  if (is_scaled(kernel)) read_tensors(problem);
}

void check_plan(const Plan& plan, const ConvProblem& problem, const DeviceSpec& device) {
  expect(plan.kernel != nullptr && plan.kernel->pass == problem.pass && plan.kernel->is_cuda() == device.is_cuda,
         "a plan has a kernel of its pass and device");
  expect(device.is_cuda ? plan.cost_us > 0 : plan.cost_us >= 0, "a cost is positive");
  expect(plan.workspace_bytes >= 0 && plan.workspace_bytes <= max_workspace_bytes(problem), "workspace has a bound");
  if (device.is_cuda) {
    expect(plan.grid >= 0 && plan.grid <= INT32_MAX, "a grid has up to 2^31 - 1 blocks");
    expect(plan.block_threads >= 32 && plan.block_threads <= 1024, "a block has 32 to 1,024 threads");
    expect(plan.smem_bytes >= 0 && plan.smem_bytes <= device.smem_optin_bytes, "shared memory is the device's");
  }
  expect(plan.split >= 1, "parts are counted from 1");
  make_launch(plan, problem);
  for (const InnerPlan& inner : plan.inner) {
    check_plan(inner.plan, inner.problem, device);
    expect(plan.workspace_bytes >= inner.plan.workspace_bytes, "an inner plan's workspace is part of the outer one's");
  }
  for (const Plan& others : plan.others) {
    check_plan(others, problem, device);
    expect(plan.workspace_bytes > others.workspace_bytes, "a pair's workspace is large enough for both");
  }
}

// Each tensor by itself fits the memory of a GPU.
bool is_allocable(const ConvProblem& problem) {
  return std::max({x_elements(problem), w_elements(problem), y_elements(problem)}) <= int64_t{1} << 37;
}

struct Times {
  std::string slowest;
  double seconds = 0;
};

void check(const Question& question, bool explains, Times& times, std::map<std::string, int64_t>& plans) {
  using Clock = std::chrono::steady_clock;
  const auto& [problem, device] = question;
  const Clock::time_point start = Clock::now();
  const Choice choice = make_plan(problem, device);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (seconds > times.seconds) times = {asked, seconds};
  if (choice.plan.kernel == nullptr) {
    expect(choice.reason.find("no kernel for") == 0, "where there is no plan a reason is given");
    expect(device.is_cuda && (device.arch < 75 || !is_allocable(problem)), "what fits a memory has a plan");
    ++plans["none"];
  } else {
    check_plan(choice.plan, problem, device);
    expect(std::isfinite(choice.plan.cost_us), "the cost of what is chosen is finite");
    ++plans[choice.plan.kernel->name];
  }
  for (const KernelEntry& entry : kernel_table()) {
    if (entry.pass != problem.pass || entry.is_cuda() != device.is_cuda) continue;
    const Offer offered = offer(entry, problem, device);
    if (offered.why_not != nullptr) continue;
    expect(choice.plan.kernel != nullptr, "what can be planned is");
    if (&entry != choice.plan.kernel) check_plan(offered.plan, problem, device);
    expect(is_scaled(entry) || offered.plan.cost_us >= choice.plan.cost_us, "the cheapest is chosen");
  }
  if (explains) expect(explain(problem, device).find('\n') != std::string::npos, "an explanation has lines");
  if (device.is_cuda) {
    // As conv2d_bias has it: a filter of one pixel over one channel.
    ConvProblem plainest = problem;
    plainest.c = plainest.groups = plainest.r = plainest.s = 1, plainest.h = problem.p(), plainest.w = problem.q();
    plainest.stride = plainest.dilation = {1, 1}, plainest.padding = {0, 0};
    const BiasGradPlan bias = plan_bias_grad(plainest, device);
    expect(bias.grid() >= 1 && bias.workspace_bytes > 0, "bias gradients are planned");
    expect(problem.n == 0 || bias.workspace_bytes <= max_workspace_bytes(plainest),
           "a bias gradient's workspace has a bound");
  }
}

}  // namespace
}  // namespace fastconv

// Both end the process as a failed assert() does, so that one handler says of which problem.
#define FASTCONV_FOR_SANITIZERS extern "C" __attribute__((visibility("default"))) const char*
FASTCONV_FOR_SANITIZERS __asan_default_options() { return "abort_on_error=1"; }
FASTCONV_FOR_SANITIZERS __ubsan_default_options() { return "abort_on_error=1"; }

int main(int argc, char** argv) {
  using namespace fastconv;
  std::signal(SIGABRT, [](int) { fail("a sanitizer or an assertion objects"); });
  const int64_t count = argc > 1 ? std::atoll(argv[1]) : 1000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  std::map<std::string, int64_t> plans;
  Times times;
  int64_t legal = 0;
  for (int64_t i = 0; i < count; ++i) {
    Random random(seed + static_cast<uint64_t>(i));
    std::optional<Question> question = draw(random);
    while (!question) question = draw(random);
    const auto& [problem, device] = *question;
    asked = "seed " + std::to_string(seed + static_cast<uint64_t>(i)) + ": " + show(problem) + ", aligned " +
            std::to_string(problem.x_align) + " " + std::to_string(problem.w_align) + " " +
            std::to_string(problem.y_align) + "; " + (device.is_cuda ? "sm_" + std::to_string(device.arch) : "CPU") +
            ", " + std::to_string(device.sm_count) + " SMs, " + std::to_string(device.smem_optin_bytes) + " bytes";
    check(*question, i % 16 == 0, times, plans);
    ++legal;
  }
  for (const auto& [name, planned] : plans) std::printf("%8lld %s\n", static_cast<long long>(planned), name.c_str());
  std::printf("%lld problems; %.1f ms for %s\n", static_cast<long long>(legal), 1e3 * times.seconds,
              times.slowest.c_str());
  return 0;
}
