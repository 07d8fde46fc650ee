// The one tiled multiply-add kernel: a block computes a tile of a matrix product whose operands are reached through
// Coords. direct.cuh makes it a convolution, im2col.cuh a product with a stored columns matrix.
#pragma once

#include <cstdint>

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

// Places of a tile in `partial`.
struct PartialTile {
  int64_t m, n;  // of the whole product
  int64_t first_m, first_n;
  __device__ int64_t offset_m(int row) const { return first_m + row < m ? first_m + row : -1; }
  __device__ int64_t offset_n(int column) const { return first_n + column < n ? (first_n + column) * m : -1; }
  __device__ static float bias(int) { return 0; }
};

// Places of a tile in the output tensor.
template <typename T, typename Gemm>
struct OutputTile {
  const Gemm& gemm;
  const T* bias_of_filters;
  __device__ int64_t offset_m(int row) const { return gemm.out_m(row); }
  __device__ int64_t offset_n(int column) const { return gemm.out_n(column); }
  __device__ Accumulator<T> bias(int column) const {
    return bias_of_filters ? widen(bias_of_filters[gemm.bias_index(column)]) : Accumulator<T>{0};
  }
};

// A chain of float32 additions grows its rounding error with the root of its length, so sums longer than `chain` go
// through the output in pieces. Params::tile(block) gives the block's Gemm: the operands' Coords and the outputs' places.
template <typename T, typename Config, typename AccessA, typename AccessB, int kBlocksPerSm, typename Params>
__global__ void __launch_bounds__(Config::kThreads, kBlocksPerSm)
    simt_gemm(const __grid_constant__ Params params, const __grid_constant__ GemmBuffers<T> buffers, int32_t chain) {
  using Acc = Accumulator<T>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  auto& smem = *reinterpret_cast<SimtStorage<Acc, Config>*>(shared_bytes);

  const auto gemm = params.template tile<Config>(blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); i < Config::kM; i += Config::kThreads) smem.rows_a[i] = gemm.a_row(i);
  for (int j = static_cast<int>(threadIdx.x); j < Config::kN; j += Config::kThreads) smem.rows_b[j] = gemm.b_row(j);
  __syncthreads();
  OperandLoader<T, AccessA, Config::kM, Config::kDepth, Config::kThreads> loader_a(
      buffers.a + gemm.a_base(), smem.rows_a, gemm.extent_h(), gemm.extent_w());
  OperandLoader<T, AccessB, Config::kN, Config::kDepth, Config::kThreads> loader_b(buffers.b + gemm.b_base(),
                                                                                  smem.rows_b, 0, 0);
  int32_t begin = gemm.depth_begin();
  bool accumulate = buffers.accumulate;
  do {
    const int32_t end = gemm.depth_end() - begin > chain ? begin + chain : gemm.depth_end();
    Acc acc[Config::kThreadM][Config::kThreadN] = {};
    mainloop<Config>(gemm, smem, loader_a, loader_b, begin, end, acc);
    if (buffers.partial) {
      const PartialTile place = gemm.partial_tile();
      epilogue<Config>(acc, place, buffers.partial + gemm.partial_base(),
                       place.m % Config::kRun == 0 ? OutputRun::kAlongM : OutputRun::kNone, accumulate);
    } else {
      epilogue<Config>(acc, OutputTile<T, decltype(gemm)>{gemm, buffers.bias}, buffers.out + gemm.out_base(),
                       buffers.run, accumulate);
    }
    begin = end;
    accumulate = true;
  } while (begin < gemm.depth_end());
}

// Adds the slices of `partial` in order and writes the output. One thread an output, neighbours along m.
template <typename T, typename Params>
__global__ void __launch_bounds__(256)
    reduce_splits(const __grid_constant__ Params params, const __grid_constant__ GemmBuffers<T> buffers, int64_t slices) {
  const int64_t m = params.m(), n = params.n();
  const int64_t count = params.batches() * n * m;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    Accumulator<T> sum = 0;
    for (int64_t slice = 0; slice < slices; ++slice) sum += buffers.partial[slice * count + i];
    const auto gemm = params.element(i / m / n, i % m, i / m % n);
    const int64_t offset_m = gemm.out_m(0);
    if (offset_m < 0) continue;
    const OutputTile<T, decltype(gemm)> place{gemm, buffers.bias};
    buffers.out[gemm.out_base() + offset_m + place.offset_n(0)] = narrow<T>(sum + place.bias(0));
  }
}

}  // namespace fastconv
