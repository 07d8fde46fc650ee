// Host side of im2col: the loop over blocks of the columns matrix.
#pragma once

#include "fastconv/families/implicit_gemm/direct_launch.cuh"
#include "fastconv/families/implicit_gemm/im2col.cuh"
#include "fastconv/families/implicit_gemm/im2col_plan.h"
#include "fastconv/tile/chain_length.h"

namespace fastconv {

// The product with one block, and the sums' way out once the reduction is complete.
template <typename T, typename Line>
void multiply_columns(const Plan& plan, const ConvProblem& problem, const ColumnBlock& params,
                      const GemmBuffers<T>& gemm, bool complete, Stream& stream) {
  using Config = typename Line::Config;
  using Gemm = ColumnsGemm<Line::kPass>;
  constexpr bool kWgrad = Line::kPass == Pass::kWgrad;
  const int64_t m = kWgrad ? params.taps : params.pixels;
  const int64_t filters = params.columns.filters;
  // Lanes along the columns' pixels, and along the taps of the filter or the pixels of the target.
  using A = OperandAccess<!kWgrad, 1, false>;
  using B = OperandAccess<false, 1, false>;
  const int64_t grid = ceil_div(m, Config::kM) * ceil_div(filters, Config::kN) * params.groups * params.slices;
  launch(plan.kernel->name, simt_gemm<T, Config, A, B, kBlocksPerSm<T, Config>, Gemm>,
         LaunchShape{grid, Config::kThreads, plan.smem_bytes}, stream, params, gemm, chain_length(problem));
  if (gemm.partial && complete) {
    launch_reduce<T, Gemm>(plan, params, gemm, m * filters * params.groups, m, params.slices, stream);
  }
}

template <typename T, typename Line>
void launch_im2col(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  constexpr bool kWgrad = Line::kPass == Pass::kWgrad;
  const Im2colBlocks blocks = im2col_blocks(*plan.kernel, problem);
  ColumnBlock params{};
  params.columns = make_columns(problem);
  params.slices = blocks.slices;
  params.filter_group_stride = problem.k_per_group() * problem.w_strides.n;
  const int64_t all_taps = params.columns.taps(), all_pixels = params.columns.pixels();
  if (all_pixels == 0 && !kWgrad) return;

  auto* columns = static_cast<T*>(buffers.workspace);
  GemmBuffers<T> gemm = gemm_buffers<T>(problem, buffers);
  const T* source = gemm.a;
  const Epilogue<T> epilogue = gemm.epilogue;
  gemm.a = columns;
  if (blocks.keep_sums) {
    gemm.partial = reinterpret_cast<Accumulator<T>*>(static_cast<char*>(buffers.workspace) + blocks.column_bytes);
  }

  const int64_t outputs = kWgrad ? all_taps : all_pixels, reduction = kWgrad ? all_pixels : all_taps;
  const int64_t output_block = kWgrad ? blocks.taps : blocks.pixels;
  const int64_t reduction_block = kWgrad ? blocks.pixels : blocks.taps;
  for (params.first_group = 0; params.first_group < problem.groups; params.first_group += blocks.groups) {
    params.groups = std::min(blocks.groups, problem.groups - params.first_group);
    for (int64_t output = 0; output < outputs; output += output_block) {
      int64_t depth = 0;
      do {  // once without a reduction too: a gradient over no pixels is zero
        (kWgrad ? params.first_tap : params.first_pixel) = output;
        (kWgrad ? params.taps : params.pixels) = std::min(output_block, outputs - output);
        (kWgrad ? params.first_pixel : params.first_tap) = depth;
        (kWgrad ? params.pixels : params.taps) = std::min(reduction_block, reduction - depth);
        const int64_t elements = params.groups * params.taps * params.pixels;
        if (elements > 0) {
          constexpr int kThreads = 256;
          const int64_t blocks = std::min<int64_t>(ceil_div(elements, kThreads), INT32_MAX);
          launch(plan.kernel->name, fill_columns<T>, LaunchShape{blocks, kThreads}, stream, params, source, columns);
        }
        gemm.accumulate = depth > 0;
        depth += reduction_block;
        const bool complete = depth >= reduction;
        gemm.epilogue = complete ? epilogue : Epilogue<T>{};
        multiply_columns<T, Line>(plan, problem, params, gemm, complete, stream);
      } while (depth < reduction);
    }
  }
}

template <Pass kPass, typename T, typename Line>
constexpr Launcher im2col_launcher_of() {
  if constexpr (Line::kPass == kPass && (Line::kDtypes & dtype_bit(kDTypeOf<T>)) != 0) return launch_im2col<T, Line>;
  return nullptr;
}

template <Pass kPass, typename T>
Launcher im2col_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define FASTCONV_KERNEL(name, pass, reads, m, n, thread_m, thread_n, dtypes) \
  im2col_launcher_of<kPass, T,                                               \
                     KernelLine<Pass::pass, VectorReads::reads, dtypes, TileConfig<m, n, thread_m, thread_n>>>(),
#include "fastconv/families/implicit_gemm/im2col.def"
#undef FASTCONV_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
