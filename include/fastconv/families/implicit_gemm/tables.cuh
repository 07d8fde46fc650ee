// What the tiled kernels, with and without tensor cores, have in common: where operands' rows lie and outputs go, and
// how the sums of several slices are added.
#pragma once

#include "fastconv/families/implicit_gemm/store_tile.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/add_partials.cuh"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {

// Tensors of a product. The output goes to `out`, or as sums to `partial` if that is not null: [slice][batch][n][m],
// to be added up by a second kernel.
template <typename T>
struct GemmBuffers {
  const T* a;
  const T* b;
  Epilogue<T> epilogue;
  T* out;
  Accumulator<T>* partial;
  OutputRun run;    // of `out`
  bool accumulate;  // add to what the output holds; of im2col, by multiply-adds alone
};

// In shared memory.
template <typename Gemm, typename Config, typename Acc>
struct GemmTables {
  Coord rows_a[Config::kM], rows_b[Config::kN];
  typename Gemm::Tile tile;
  OutputTable<Acc, Config> output;
};

// All threads of the block.
template <typename Config, typename Gemm, typename T, typename Tables>
__device__ __forceinline__ void fill_tables(const typename Gemm::Params& params, const GemmBuffers<T>& buffers,
                                            Tables& tables) {
  if (threadIdx.x == 0) tables.tile = Gemm::template locate<Config>(params, blockIdx.x);
  __syncthreads();
  const Gemm gemm{params, tables.tile};
  const bool partial = buffers.partial != nullptr;
  for (int i = static_cast<int>(threadIdx.x); i < Config::kM; i += Config::kThreads) {
    tables.rows_a[i] = gemm.a_row(i);
    const int64_t m = tables.tile.first_m + i;
    tables.output.m[i] = !partial ? gemm.out_m(i) : m < gemm.extent_m() ? m : -1;
  }
  for (int j = static_cast<int>(threadIdx.x); j < Config::kN; j += Config::kThreads) {
    tables.rows_b[j] = gemm.b_row(j);
    const int64_t n = tables.tile.first_n + j;
    const bool exists = n < gemm.extent_n();
    tables.output.n[j] = !partial ? gemm.out_n(j) : exists ? n * gemm.extent_m() : -1;
    tables.output.filter.set(j, buffers.epilogue.of(gemm.filter(j), !partial && exists));
  }
  if (threadIdx.x == 0) tables.output.filter.bounds = partial ? Bounds<Accumulator<T>>{} : buffers.epilogue.bounds;
  __syncthreads();
}

// Adds the slices of `partial` in a fixed order and writes the output. A Sum is one output, or four neighbours along m.
// Static for the reason that reduce_slices() gives.
template <typename T, typename Gemm, typename Sum>
static __global__ void __launch_bounds__(kReduceThreads)
    reduce_splits(const __grid_constant__ typename Gemm::Params params, const __grid_constant__ GemmBuffers<T> buffers,
                  int64_t runs, int32_t slices, int32_t strands) {
  ptx::follow_previous_kernel();
  using Acc = Accumulator<T>;
  constexpr int kRun = sizeof(Sum) / sizeof(Acc);
  add_partials(reinterpret_cast<const Sum*>(buffers.partial), runs, slices, strands, [&](int64_t at, const Sum& sum) {
    typename Gemm::Tile tile{};
    const Gemm gemm{params, tile};
    const int64_t first = at * kRun, column = first / gemm.extent_m(), batch = column / gemm.extent_n();
    tile = Gemm::tile_at(params, batch, 0, first - column * gemm.extent_m(), column - batch * gemm.extent_n());
    T* out = buffers.out + gemm.out_base() + gemm.out_n(0);
    const FilterEpilogue<Acc> finish = buffers.epilogue.of(gemm.filter(0));
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const int64_t offset = gemm.out_m(i);
      if (offset >= 0) out[offset] = narrow<T>(finish(reinterpret_cast<const Acc*>(&sum)[i]));
    }
  });
}

}  // namespace fastconv
