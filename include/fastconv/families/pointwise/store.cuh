// From the sums of the pointwise kernels to output: through shared memory, which makes whole lines of them.
#pragma once

#include "fastconv/families/pointwise/products.cuh"
#include "fastconv/tile/epilogue.cuh"
#include "fastconv/tile/pixels.cuh"

namespace fastconv {

struct PointwiseOutput {
  int32_t m, n;    // the tile's first
  int32_t length;  // of a line
};

// The tile's lines from shared memory, kBytes at a time.
template <typename Out, int kM, int kN, int kBytes>
__device__ __forceinline__ void store_lines(uint32_t smem, const PointwiseOutput& output, const PointwiseLines& lines,
                                            Out* out) {
  using Access = PixelBytes<kBytes>;
  constexpr int kRowBytes = PointwiseTile{kM, kN}.row_bytes(sizeof(Out));
  constexpr int kElements = kBytes / sizeof(Out), kUnits = kN / kElements;  // of a line
  constexpr int kRows = kPointwiseThreads / kUnits, kBatch = kM / kRows < 8 ? kM / kRows : 8;
  static_assert(kPointwiseThreads % kUnits == 0 && kM % (kRows * kBatch) == 0);
  const int column = static_cast<int>(threadIdx.x) % kUnits * kElements;
  const int32_t n = output.n + column;
  if (n >= output.length) return;
  out += n;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) / kUnits; row < kM; row += kRows * kBatch) {
    const int32_t m = output.m + row;
    if (m >= lines.extent) return;
    const uint32_t from = smem + row * kRowBytes + column * static_cast<uint32_t>(sizeof(Out));
    each_line<kBatch>(lines, m, kRows, [&](int i, int64_t at) {
      if (m + i * kRows < lines.extent) {
        *reinterpret_cast<typename Access::Value*>(out + at) = Access::load(from + i * kRows * kRowBytes);
      }
    });
  }
}

template <typename Out, int kM, int kN>
__device__ __forceinline__ void store_lines(uint32_t smem, const PointwiseOutput& output, const PointwiseLines& lines,
                                            Out* out, int vector_bytes) {
  __syncthreads();
  if (vector_bytes == kPointwiseChunkBytes) {
    store_lines<Out, kM, kN, kPointwiseChunkBytes>(smem, output, lines, out);
  } else if (vector_bytes == 8) {
    store_lines<Out, kM, kN, 8>(smem, output, lines, out);
  } else if (sizeof(Out) == 4 || vector_bytes == 4) {
    store_lines<Out, kM, kN, 4>(smem, output, lines, out);
  } else {
    store_lines<Out, kM, kN, sizeof(Out)>(smem, output, lines, out);
  }
}

// `smem`: of which nothing else is needed any more. finish(sum, m, n) with places in the tile.
template <typename Out, int kM, int kN, typename Warp, typename F>
__device__ __forceinline__ void stage_sums(const typename Warp::Sums& sums, const Warp& warp, uint32_t smem,
                                           F&& finish) {
  constexpr int kRowBytes = PointwiseTile{kM, kN}.row_bytes(sizeof(Out));
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < Warp::kM / 16; ++i) {
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const int row = warp.row(i, second, lane);
      // Of the product j of eight columns.
      auto sum = [&](int j, int of_two, int column) {
        return finish(sums[i][4 * j + 2 * second + of_two], row, column);
      };
      if constexpr (Warp::kFoursN) {
#pragma unroll
        for (int run = 0; run < Warp::kN / 16; ++run) {
          const int j = run / 2 * 4, of_two = run % 2, column = warp.n + run / 2 * 32 + lane % 4 * 8 + of_two * 4;
          ptx::store_shared_floats(smem + row * kRowBytes + column * sizeof(Out), sum(j, of_two, column),
                                   sum(j + 1, of_two, column + 1), sum(j + 2, of_two, column + 2),
                                   sum(j + 3, of_two, column + 3));
        }
      } else {
#pragma unroll
        for (int j = 0; j < Warp::kN / 8; ++j) {
          const int column = warp.n + 8 * j + lane % 4 * 2;
          const float low = sum(j, 0, column), high = sum(j, 1, column + 1);
          const uint32_t to = smem + row * kRowBytes + column * sizeof(Out);
          if constexpr (sizeof(Out) == 2) {
            ptx::store_shared4(to, pack2<Out>(low, high));
          } else {
            ptx::store_shared_floats(to, low, high);
          }
        }
      }
    }
  }
}

template <typename T, int kM, int kN, typename Warp>
__device__ __forceinline__ void store_pointwise(const typename Warp::Sums& sums, const Warp& warp, uint32_t smem,
                                                const PointwiseOutput& output, const PointwiseMatrix& matrix, T* out,
                                                const Epilogue<T>& epilogue, bool bias_along_n) {
  if (epilogue.does_nothing()) {
    stage_sums<T, kM, kN>(sums, warp, smem, [](float sum, int, int) { return sum; });
  } else {
    const int32_t filters = bias_along_n ? matrix.length : matrix.lines.extent;
    stage_sums<T, kM, kN>(sums, warp, smem, [&](float sum, int m, int n) {
      const int32_t filter = bias_along_n ? output.n + n : output.m + m;
      return epilogue.of(filter, filter < filters)(sum);
    });
  }
  store_lines<T, kM, kN>(smem, output, matrix.lines, out, matrix.vector_bytes);
}

// As they are, [m][n].
template <int kM, int kN, typename Warp>
__device__ __forceinline__ void store_pointwise_sums(const typename Warp::Sums& sums, const Warp& warp, uint32_t smem,
                                                     const PointwiseOutput& output, int32_t lines, float* partial) {
  stage_sums<float, kM, kN>(sums, warp, smem, [](float sum, int, int) { return sum; });
  PointwiseLines rows{};
  rows.extent = lines, rows.column = output.length;
  store_lines<float, kM, kN>(smem, output, rows, partial, output.length % 4 == 0 ? kPointwiseChunkBytes : 4);
}

}  // namespace fastconv
