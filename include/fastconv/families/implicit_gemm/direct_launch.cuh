// Host side of the direct kernels: from a plan to a launch.
#pragma once

#include "fastconv/core/integers.h"
#include "fastconv/families/implicit_gemm/config.h"
#include "fastconv/families/implicit_gemm/direct.cuh"
#include "fastconv/families/implicit_gemm/direct_plan.h"
#include "fastconv/families/implicit_gemm/launchers.h"
#include "fastconv/launch/dtype_of.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/tile/chain_length.h"

namespace fastconv {

// One line of a .def as a type.
template <Pass kPass_, VectorReads kReads_, unsigned kDtypes_, typename Config_>
struct KernelLine {
  static constexpr Pass kPass = kPass_;
  static constexpr VectorReads kReads = kReads_;
  static constexpr unsigned kDtypes = kDtypes_;
  using Config = Config_;
};

// How a pass reads its operands. Without vectors neighbouring lanes take neighbouring elements of NCHW tensors: pixels
// of images, taps of filters. With channel vectors the contiguous channels are a row or the depth, as the pass has it.
template <Pass kPass, VectorReads kReads, typename T>
struct DirectAccess {
  static constexpr bool kWgrad = kPass == Pass::kWgrad;
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr bool kChannels = kReads == VectorReads::kChannelVector;
  static constexpr int kVectorB = kReads == VectorReads::kScalar ? 1 : kVector;
  using A = OperandAccess<kWgrad == kChannels, kChannels ? kVector : 1, true>;
  using B = OperandAccess<kChannels && kPass != Pass::kFprop, kVectorB, false>;
};

// As many blocks as keep 128 registers a thread: latency is hidden by other blocks.
template <typename T, typename Config>
inline constexpr int kBlocksPerSm = 65536 / (128 * Config::kThreads) < 8 ? 65536 / (128 * Config::kThreads) : 8;

// Whether extents and strides, innermost first, leave no gaps.
inline bool is_dense(std::initializer_list<std::pair<int64_t, int64_t>> extents_and_strides) {
  int64_t expected = 1;
  for (const auto& [extent, stride] : extents_and_strides) {
    if (extent != 1 && stride != expected) return false;
    expected *= extent;
  }
  return true;
}

// The axis on which four outputs of a product are one aligned access.
inline OutputRun direct_output_run(const ConvProblem& problem, const ConvMap& map) {
  constexpr int64_t kRun = 4;
  const bool wgrad = problem.pass == Pass::kWgrad;
  const int32_t align = wgrad ? problem.w_align : problem.pass == Pass::kFprop ? problem.y_align : problem.x_align;
  if (align < std::min<int64_t>(16, kRun * element_size(problem.dtype))) return OutputRun::kNone;
  auto whole = [](int64_t extent, int64_t stride) { return extent == 1 || stride % kRun == 0; };
  if (wgrad) {
    const Strides& w = problem.w_strides;
    const int64_t c = problem.c_per_group();
    const bool dense = map.channels_inner ? is_dense({{c, w.c}, {problem.s, w.w}, {problem.r, w.h}})
                                          : is_dense({{problem.s, w.w}, {problem.r, w.h}, {c, w.c}});
    return dense && c * problem.r * problem.s % kRun == 0 && whole(problem.k, w.n) ? OutputRun::kAlongM
                                                                                   : OutputRun::kNone;
  }
  const Strides& out = map.target;
  const int64_t channels = map.filters * problem.groups;
  if (out.c == 1 && map.filters % kRun == 0 && whole(problem.n, out.n) && whole(map.h.target_extent, out.h) &&
      whole(map.w.target_extent, out.w)) {
    return OutputRun::kAlongN;
  }
  const bool one_phase = map.h.target_step == 1 && map.w.target_step == 1;
  if (one_phase && is_dense({{map.w.rows, out.w}, {map.h.rows, out.h}}) &&
      int64_t{map.h.rows} * map.w.rows % kRun == 0 && whole(problem.n, out.n) && whole(channels, out.c)) {
    return OutputRun::kAlongM;
  }
  return OutputRun::kNone;
}

template <typename T>
GemmBuffers<T> gemm_buffers(const ConvProblem& problem, const ConvBuffers& buffers) {
  const Pass pass = problem.pass;
  GemmBuffers<T> gemm{};
  gemm.a = static_cast<const T*>(pass == Pass::kDgrad ? buffers.y : buffers.x);
  gemm.b = static_cast<const T*>(pass == Pass::kWgrad ? buffers.y : buffers.w);
  gemm.out = static_cast<T*>(pass == Pass::kFprop ? buffers.y : pass == Pass::kDgrad ? buffers.x : buffers.w);
  gemm.epilogue = Epilogue<T>(epilogue_params(problem, buffers));
  return gemm;
}

// Of `outputs` sums, runs of `extent_m` neighbours.
template <typename T, typename Gemm>
static void launch_reduce(const Plan& plan, const typename Gemm::Params& params, const GemmBuffers<T>& buffers,
                          int64_t outputs, int64_t extent_m, int64_t slices, Stream& stream) {
  const int strands = reduce_strands(slices);
  auto run = [&](auto sum) {
    const int64_t runs = outputs * static_cast<int64_t>(sizeof(Accumulator<T>)) / static_cast<int64_t>(sizeof(sum));
    launch(plan.kernel->name, reduce_splits<T, Gemm, decltype(sum)>,
           LaunchShape{reduce_blocks(runs, strands), kReduceThreads}, stream, params, buffers, runs,
           static_cast<int32_t>(slices), strands);
  };
  if constexpr (std::is_same_v<Accumulator<T>, float>) {
    if (extent_m % 4 == 0) return run(float4{});
  }
  run(Accumulator<T>{});
}

// Of a kernel whose tiles are m x n, for a split into slices of `slice_depth`.
inline DirectParams direct_params(const ConvProblem& problem, int m, int n, int64_t slice_depth) {
  const GemmExtents extents = direct_extents(problem);
  DirectParams params{};
  params.map = make_conv_map(problem, direct_channels_inner(problem));
  params.extent_m = extents.m;
  params.extent_n = static_cast<int32_t>(extents.n);
  params.slice_depth = slice_depth;
  params.filter_group_stride = problem.k_per_group() * problem.w_strides.n;
  params.batches = extents.batches;
  params.by_tiles_m = FastDivmod(ceil_div(extents.m, m));
  params.by_tiles_n = FastDivmod(ceil_div(extents.n, n));
  params.by_batches = FastDivmod(extents.batches);
  params.by_phases_h = FastDivmod(params.map.h.phases);
  params.by_phases_w = FastDivmod(params.map.w.phases);
  return params;
}

template <typename T, typename Line>
void launch_direct(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  using Config = typename Line::Config;
  using Access = DirectAccess<Line::kPass, Line::kReads, T>;
  using Gemm = DirectGemm<Line::kPass>;
  if (plan.grid == 0) return;

  const DirectParams params =
      direct_params(problem, Config::kM, Config::kN, direct_slice_depth(problem, plan.split, Config::kDepth));
  GemmBuffers<T> gemm = gemm_buffers<T>(problem, buffers);
  gemm.run = direct_output_run(problem, params.map);
  if (plan.split > 1) gemm.partial = static_cast<Accumulator<T>*>(buffers.workspace);
  launch(plan.kernel->name, simt_gemm<T, Config, typename Access::A, typename Access::B, kBlocksPerSm<T, Config>, Gemm>,
         LaunchShape{plan.grid, Config::kThreads, plan.smem_bytes}, stream, params, gemm, chain_length(problem));

  if (plan.split > 1) {
    const int64_t outputs = params.extent_m * params.extent_n * params.batches;
    launch_reduce<T, Gemm>(plan, params, gemm, outputs, params.extent_m, plan.split, stream);
  }
}

template <Pass kPass, typename T, typename Line>
constexpr Launcher direct_launcher_of() {
  if constexpr (Line::kPass == kPass && (Line::kDtypes & dtype_bit(kDTypeOf<T>)) != 0) return launch_direct<T, Line>;
  return nullptr;
}

template <Pass kPass, typename T>
Launcher direct_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define FASTCONV_KERNEL(name, pass, reads, m, n, thread_m, thread_n, dtypes) \
  direct_launcher_of<kPass, T,                                               \
                     KernelLine<Pass::pass, VectorReads::reads, dtypes, TileConfig<m, n, thread_m, thread_n>>>(),
#include "fastconv/families/implicit_gemm/direct.def"
#undef FASTCONV_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
