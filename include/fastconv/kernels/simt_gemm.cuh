// The one tiled multiply-add kernel: a block computes a tile of a matrix product whose operands are reached through
// Coords. direct.cuh makes it a convolution, im2col.cuh a product with a stored columns matrix.
#pragma once

#include <cstdint>
#include <type_traits>

#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/add_partials.cuh"
#include "fastconv/tile/epilogue.cuh"
#include "fastconv/tile/mainloop_simt.cuh"

namespace fastconv {

// Tensors of a product. The output goes to `out`, or as sums to `partial` if that is not null: [slice][batch][n][m],
// to be added up by reduce_splits.
template <typename T>
struct GemmBuffers {
  const T* a;
  const T* b;
  const T* bias;
  T* out;
  Accumulator<T>* partial;
  OutputRun run;    // of `out`
  bool accumulate;  // add to what the output holds
};

template <typename Gemm, typename Config, typename T>
struct GemmStorage : SimtStorage<Accumulator<T>, Config> {
  typename Gemm::Tile tile;
  OutputTable<Accumulator<T>, Config> output;
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

template <typename T, typename Gemm>
__device__ __forceinline__ Accumulator<T> bias_of(const GemmBuffers<T>& buffers, const Gemm& gemm, int column) {
  return buffers.bias ? widen(buffers.bias[gemm.bias_index(column)]) : Accumulator<T>{0};
}

// A reduction longer than `chain` is added up in chains, whose sums meet in shared memory, each thread's in places of
// its own: registers hold one set of sums, not two.
template <typename T, typename Config, typename AccessA, typename AccessB, int kBlocksPerSm, typename Gemm>
__global__ void __launch_bounds__(Config::kThreads, kBlocksPerSm)
    simt_gemm(const __grid_constant__ typename Gemm::Params params, const __grid_constant__ GemmBuffers<T> buffers,
              int32_t chain) {
  ptx::follow_previous_kernel();
  using Acc = Accumulator<T>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  auto& smem = *reinterpret_cast<GemmStorage<Gemm, Config, T>*>(shared_bytes);
  static_assert(sizeof(smem) <= kStorageBytes<Config, Acc>);

  if (threadIdx.x == 0) smem.tile = Gemm::template locate<Config>(params, blockIdx.x);
  __syncthreads();
  const Gemm gemm{params, smem.tile};
  const bool partial = buffers.partial != nullptr;
  for (int i = static_cast<int>(threadIdx.x); i < Config::kM; i += Config::kThreads) {
    smem.rows_a[i] = gemm.a_row(i);
    const int64_t m = smem.tile.first_m + i;
    smem.output.m[i] = !partial ? gemm.out_m(i) : m < gemm.extent_m() ? m : -1;
  }
  for (int j = static_cast<int>(threadIdx.x); j < Config::kN; j += Config::kThreads) {
    smem.rows_b[j] = gemm.b_row(j);
    const int64_t n = smem.tile.first_n + j;
    const bool exists = n < gemm.extent_n();
    smem.output.n[j] = !partial ? gemm.out_n(j) : exists ? n * gemm.extent_m() : -1;
    smem.output.bias[j] = !partial && exists ? bias_of(buffers, gemm, j) : Acc{0};
  }
  __syncthreads();
  OperandLoader<T, AccessA, Config::kM, Config::kDepth, Config::kThreads> loader_a(
      buffers.a + gemm.a_base(), smem.rows_a, gemm.extent_h(), gemm.extent_w());
  OperandLoader<T, AccessB, Config::kN, Config::kDepth, Config::kThreads> loader_b(buffers.b + gemm.b_base(),
                                                                                   smem.rows_b, 0, 0);
  auto* sums = reinterpret_cast<Vector<Acc, Config::kRun>*>(shared_bytes + kStorageBytes<Config, Acc>) + threadIdx.x;
  alignas(16) Acc acc[Config::kThreadM][Config::kThreadN];
  for (int32_t begin = smem.tile.depth_begin;;) {
    const int32_t end = smem.tile.depth_end - begin > chain ? begin + chain : smem.tile.depth_end;
#pragma unroll
    for (auto& row : acc) {
#pragma unroll
      for (Acc& sum : row) sum = 0;
    }
    mainloop<Config>(gemm, smem, loader_a, loader_b, begin, end, acc);
    if (begin != smem.tile.depth_begin) exchange_sums<Config>(acc, sums, /*keep=*/false);
    if (end == smem.tile.depth_end) break;
    exchange_sums<Config>(acc, sums, /*keep=*/true);
    begin = end;
  }
  if (partial) {
    const OutputRun run = gemm.extent_m() % Config::kRun == 0 ? OutputRun::kAlongM : OutputRun::kNone;
    epilogue<Config>(acc, smem.output, buffers.partial + gemm.partial_base(), run, buffers.accumulate);
  } else {
    epilogue<Config>(acc, smem.output, buffers.out + gemm.out_base(), buffers.run, buffers.accumulate);
  }
}

// Adds the slices of `partial` in order and writes the output. One thread an output, neighbours along m.
template <typename T, typename Gemm>
__global__ void __launch_bounds__(256)
    reduce_splits(const __grid_constant__ typename Gemm::Params params, const __grid_constant__ GemmBuffers<T> buffers,
                  int64_t outputs, int64_t slices) {
  ptx::follow_previous_kernel();
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < outputs; i += int64_t{gridDim.x} * blockDim.x) {
    const Accumulator<T> sum = add_in_order(int64_t{0}, int64_t{1}, slices,
                                            [&](int64_t slice) { return buffers.partial[slice * outputs + i]; });
    typename Gemm::Tile tile{};
    const Gemm gemm{params, tile};
    const int64_t column = i / gemm.extent_m();
    const int64_t batch = column / gemm.extent_n();
    tile = Gemm::tile_at(params, batch, 0, i - column * gemm.extent_m(), column - batch * gemm.extent_n());
    const int64_t offset_m = gemm.out_m(0);
    if (offset_m < 0) continue;
    buffers.out[gemm.out_base() + offset_m + gemm.out_n(0)] = narrow<T>(sum + bias_of(buffers, gemm, 0));
  }
}

}  // namespace fastconv
