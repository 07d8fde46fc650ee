// Host side of the mma family: from a plan to a launch.
#pragma once

#include "fastconv/families/implicit_gemm/direct_launch.cuh"
#include "fastconv/families/implicit_gemm/mma.cuh"

namespace fastconv {

// As DirectAccess; or pixels of NCHW are the depth of both operands.
template <VectorReads kReads, typename T>
struct MmaAccess : DirectAccess<Pass::kWgrad, kReads, T> {};
template <typename T>
struct MmaAccess<VectorReads::kPixelVector, T> {
  using A = OperandAccess<false, kMmaChunkBytes / sizeof(T), true>;
  using B = OperandAccess<false, kMmaChunkBytes / sizeof(T), false>;
};

template <typename T, VectorReads kReads, int m, int n>
void launch_mma(const Plan& plan, const ConvProblem& problem, const ConvBuffers& buffers, Stream& stream) {
  using Config = MmaTile<T, m, n>;
  using Access = MmaAccess<kReads, T>;
  using Gemm = DirectGemm<Pass::kWgrad>;
  if (plan.grid == 0) return;
  const int64_t slice_depth = direct_slice_depth(problem, plan.split, Config::kDepth);
  const DirectParams params = direct_params(problem, m, n, slice_depth);
  GemmBuffers<T> gemm = gemm_buffers<T>(problem, buffers);
  gemm.run = direct_output_run(problem, params.map);
  if (plan.split > 1) gemm.partial = static_cast<float*>(buffers.workspace);
  const int32_t stages = Config::kConfig.stages(plan.smem_bytes);
  launch(plan.kernel->name, mma_gemm<T, Config, typename Access::A, typename Access::B, Gemm>,
         LaunchShape{plan.grid, kMmaThreads, plan.smem_bytes}, stream, params, gemm, stages);
  if (plan.split > 1) {
    const int64_t outputs = params.extent_m * params.extent_n * params.batches;
    launch_reduce<T, Gemm>(plan, params, gemm, outputs, params.extent_m, plan.split, stream);
  }
}

template <typename T, unsigned kDtypes, VectorReads kReads, int m, int n>
constexpr Launcher mma_launcher_of() {
  if constexpr ((kDtypes & dtype_bit(kDTypeOf<T>)) != 0) return launch_mma<T, kReads, m, n>;
  return nullptr;
}

template <typename T>
Launcher mma_launcher(int line) {
  static constexpr Launcher kLaunchers[] = {
#define MMA_KERNEL(name, reads, m, n, dtypes) mma_launcher_of<T, dtypes, VectorReads::reads, m, n>(),
#include "fastconv/families/implicit_gemm/mma.def"
#undef MMA_KERNEL
  };
  return kLaunchers[line];
}

}  // namespace fastconv
