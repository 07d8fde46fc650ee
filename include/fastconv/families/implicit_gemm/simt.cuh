// The one tiled multiply-add kernel: a block computes a tile of a matrix product whose operands are reached through
// Coords. direct.cuh makes it a convolution, im2col.cuh a product with a stored columns matrix.
#pragma once

#include <cstdint>
#include <type_traits>

#include "fastconv/families/implicit_gemm/simt_mainloop.cuh"
#include "fastconv/families/implicit_gemm/tables.cuh"
#include "fastconv/ptx/dependent_launch.cuh"

namespace fastconv {

template <typename Gemm, typename Config, typename T>
struct GemmStorage : SimtStorage<Accumulator<T>, Config> {
  GemmTables<Gemm, Config, Accumulator<T>> tables;
};

template <typename Config, typename Acc>
inline constexpr int kStorageBytes = simt_storage_bytes(Config::kM, Config::kN, sizeof(Acc));

// Stores a thread's sums, or adds those stored to them.
template <typename Config, typename Acc>
__device__ __forceinline__ void exchange_sums(Acc (&acc)[Config::kThreadM][Config::kThreadN],
                                              Vector<Acc, Config::kRun>* sums, bool keep) {
  constexpr int kRun = Config::kRun;
#pragma unroll
  for (int i = 0; i < Config::kThreadM; ++i) {
#pragma unroll
    for (int j = 0; j < Config::kThreadN; j += kRun) {
      auto& place = sums[(i * Config::kThreadN + j) / kRun * Config::kThreads];
      auto& run = *reinterpret_cast<Vector<Acc, kRun>*>(&acc[i][j]);
      if (keep) {
        place = run;
      } else {
        const Vector<Acc, kRun> earlier = place;
#pragma unroll
        for (int r = 0; r < kRun; ++r) run.data[r] += earlier.data[r];
      }
    }
  }
}

// A reduction longer than `chain` is added up in chains, whose sums meet in shared memory, each thread's in places of
// its own: registers hold one set of sums, not two.
template <typename T, typename Config, typename AccessA, typename AccessB, int kBlocksPerSm, typename Gemm>
static __global__ void __launch_bounds__(Config::kThreads, kBlocksPerSm)
    simt_gemm(const __grid_constant__ typename Gemm::Params params, const __grid_constant__ GemmBuffers<T> buffers,
              int32_t chain) {
  ptx::follow_previous_kernel();
  using Acc = Accumulator<T>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  auto& smem = *reinterpret_cast<GemmStorage<Gemm, Config, T>*>(shared_bytes);
  static_assert(sizeof(smem) <= kStorageBytes<Config, Acc>);

  fill_tables<Config, Gemm>(params, buffers, smem.tables);
  const auto& tables = smem.tables;
  const Gemm gemm{params, tables.tile};
  OperandLoader<T, AccessA, Config::kM, Config::kDepth, Config::kThreads> loader_a(
      buffers.a + gemm.a_base(), tables.rows_a, gemm.extent_h(), gemm.extent_w());
  OperandLoader<T, AccessB, Config::kN, Config::kDepth, Config::kThreads> loader_b(buffers.b + gemm.b_base(),
                                                                                   tables.rows_b, 0, 0);
  auto* sums = reinterpret_cast<Vector<Acc, Config::kRun>*>(shared_bytes + kStorageBytes<Config, Acc>) + threadIdx.x;
  alignas(16) Acc acc[Config::kThreadM][Config::kThreadN];
  for (int32_t begin = tables.tile.depth_begin;;) {
    const int32_t end = tables.tile.depth_end - begin > chain ? begin + chain : tables.tile.depth_end;
#pragma unroll
    for (auto& row : acc) {
#pragma unroll
      for (Acc& sum : row) sum = 0;
    }
    mainloop<Config>(gemm, smem, loader_a, loader_b, begin, end, acc);
    if (begin != tables.tile.depth_begin) exchange_sums<Config>(acc, sums, /*keep=*/false);
    if (end == tables.tile.depth_end) break;
    exchange_sums<Config>(acc, sums, /*keep=*/true);
    begin = end;
  }
  if (buffers.partial != nullptr) {
    const OutputRun run = gemm.extent_m() % Config::kRun == 0 ? OutputRun::kAlongM : OutputRun::kNone;
    store_tile<Config>(acc, tables.output, buffers.partial + gemm.partial_base(), run, buffers.accumulate);
  } else {
    store_tile<Config>(acc, tables.output, buffers.out + gemm.out_base(), buffers.run, buffers.accumulate);
  }
}

}  // namespace fastconv
