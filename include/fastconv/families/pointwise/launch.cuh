// Host side of the pointwise kernels: from a plan to a launch.
#pragma once

#include "fastconv/families/pointwise/kernel.cuh"
#include "fastconv/families/pointwise/launchers.h"
#include "fastconv/families/pointwise/plan.h"
#include "fastconv/families/pointwise/reduce.cuh"
#include "fastconv/launch/dtype_of.cuh"
#include "fastconv/launch/launch.cuh"
#include "fastconv/tile/add_partials.cuh"

namespace fastconv {

// Pixels are a's rows where channels lie side by side, else b's.
template <typename T, typename Out = T>
PointwiseBuffers<T, Out> pointwise_buffers(const ConvProblem& problem, const ConvBuffers& buffers, bool pixels_first,
                                           bool split) {
  PointwiseBuffers<T, Out> found{};
  const bool wgrad = problem.pass == Pass::kWgrad, dgrad = problem.pass == Pass::kDgrad;
  const void* pixels = dgrad || wgrad ? buffers.y : buffers.x;
  const void* other = wgrad ? buffers.x : buffers.w;
  found.a = static_cast<const T*>(pixels_first || wgrad ? pixels : other);
  found.b = static_cast<const T*>(pixels_first || wgrad ? other : pixels);
  found.out = static_cast<Out*>(wgrad ? buffers.w : dgrad ? buffers.x : buffers.y);
  found.epilogue = Epilogue<Out>(epilogue_params(problem, buffers));
  if (split) found.partial = static_cast<float*>(buffers.workspace);
  found.gate = buffers.gate;
  return found;
}

template <typename T, typename Out, typename Params>
void launch_pointwise_reduction(const Plan& plan, const Params& params, PointwiseReduction reduction,
                                const PointwiseBuffers<T, Out>& tensors, Stream& stream) {
  reduction.out = params.out, reduction.columns = params.columns, reduction.bias_along_n = params.bias_along_n;
  const int64_t product = int64_t{params.out.lines.extent} * params.out.length;
  reduction.by_product = FastDivmod(product), reduction.by_line = FastDivmod(params.out.length);
  reduction.sums = product * params.by_images.divisor;
  reduction.slices = static_cast<int32_t>(plan.split), reduction.strands = reduce_strands(plan.split);
  const LaunchShape shape{reduce_blocks(reduction.sums, reduction.strands), kReduceThreads};
  launch(plan.kernel->name, reduce_pointwise<T, Out>, shape, stream, reduction, tensors);
}

template <typename T, PointwiseForm kForm, bool kWgmma, int kM, int kN>
  requires(!kWgmma || kM % kWgmmaRows == 0)
void launch_pointwise(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  const PointwiseParams params = pointwise_params(problem, plan.tiling.as<PointwiseTiling>(), plan.split);
  const PointwiseBuffers<T> tensors = pointwise_buffers<T>(problem, buffers, !params.m_inner, plan.split > 1);
  launch(plan.kernel->name, pointwise<T, PointwiseOperands<T, kForm, kWgmma>, kM, kN>,
         LaunchShape{plan.grid, kPointwiseThreads, plan.smem_bytes}, stream, params, tensors);
  if (plan.split > 1) launch_pointwise_reduction(plan, params, {}, tensors, stream);
}

// Of a forward pass or an input gradient m are pixels where channels lie side by side, else channels. Wgmma has no
// tiles of fewer rows than 64, nor plans for them.
template <Pass kPass, typename T, bool kWgmma, int kPixels, int kChannels>
void launch_pointwise_pass(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  using Form = PointwiseForm;
  constexpr Form kInner = kPass == Pass::kFprop   ? Form::kDepthDepth
                          : kPass == Pass::kDgrad ? Form::kDepthRows
                                                  : Form::kRowsRows;
  constexpr Form kApart = kPass == Pass::kFprop   ? Form::kDepthRows
                          : kPass == Pass::kDgrad ? Form::kRowsRows
                                                  : Form::kDepthDepth;
  constexpr int kApartM = kPass == Pass::kWgrad ? kPixels : kChannels, kApartN = kPixels + kChannels - kApartM;
  if (plan.tiling.as<PointwiseTiling>().form == kInner) {
    launch_pointwise<T, kInner, kWgmma, kPixels, kChannels>(plan, problem, buffers, stream);
  } else if constexpr (!kWgmma || kApartM % kWgmmaRows == 0) {
    launch_pointwise<T, kApart, kWgmma, kApartM, kApartN>(plan, problem, buffers, stream);
  }
}

template <Pass kPass, Pass kLinePass, typename T, bool kWgmma, int kPixels, int kChannels, unsigned kDtypes>
constexpr Launcher pointwise_launcher_of() {
  if constexpr (kPass == kLinePass && (kDtypes & dtype_bit(kDTypeOf<T>)) != 0)
    return launch_pointwise_pass<kPass, T, kWgmma, kPixels, kChannels>;
  return nullptr;
}

template <Pass kPass, typename T>
Launcher pointwise_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define POINTWISE_KERNEL(name, pass, m, n, wgmma, dtypes) \
  pointwise_launcher_of<kPass, Pass::pass, T, wgmma, m, n, dtypes>(),
#include "fastconv/families/pointwise/kernels.def"
#undef POINTWISE_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
