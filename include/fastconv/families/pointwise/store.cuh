// From the sums of the pointwise kernels to output: through shared memory, which makes whole lines of them.
#pragma once

#include "fastconv/families/pointwise/products.cuh"
#include "fastconv/tile/epilogue.cuh"
#include "fastconv/tile/pixels.cuh"

namespace fastconv {

struct PointwiseOutput {
  int32_t m, n;    // the tile's first
  int32_t length;  // of a line
  const PointwiseColumns& columns;
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
  const int64_t at_n = output.columns.at(n);
  if (at_n < 0) return;
  out += at_n;
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

// The table is of the tile's columns or of its rows.
template <typename Warp>
__device__ __forceinline__ void finish_sums(typename Warp::Sums& sums, const Warp& warp, uint32_t table,
                                            const Bounds<float>& bounds, bool along_n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  auto finish = [&](int row, int column, const FilterEpilogue<float>& epilogue) {
    float& sum = sums[row / 2][4 * (column / 2) + 2 * (row % 2) + column % 2];
    sum = epilogue(sum);
  };
  constexpr int kRows = Warp::kM / 8, kColumns = Warp::kN / 4;  // of a lane
  if (along_n) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const auto epilogue = staged_epilogue(table, warp.column(column / 2, column % 2, lane), bounds);
#pragma unroll
      for (int row = 0; row < kRows; ++row) finish(row, column, epilogue);
    }
  } else {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const auto epilogue = staged_epilogue(table, warp.row(row / 2, row % 2, lane), bounds);
#pragma unroll
      for (int column = 0; column < kColumns; ++column) finish(row, column, epilogue);
    }
  }
}

// `smem`: of which nothing else is needed any more.
template <typename Out, int kM, int kN, typename Warp>
__device__ __forceinline__ void stage_sums(const typename Warp::Sums& sums, const Warp& warp, uint32_t smem) {
  constexpr int kRowBytes = PointwiseTile{kM, kN}.row_bytes(sizeof(Out));
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < Warp::kM / 16; ++i) {
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const int row = warp.row(i, second, lane);
      // Of the product j of eight columns.
      auto sum = [&](int j, int of_two) { return sums[i][4 * j + 2 * second + of_two]; };
      if constexpr (Warp::kFoursN) {
#pragma unroll
        for (int run = 0; run < Warp::kN / 16; ++run) {
          const int j = run / 2 * 4, of_two = run % 2, column = warp.column(j, of_two, lane);
          ptx::store_shared_floats(smem + row * kRowBytes + column * sizeof(Out), sum(j, of_two), sum(j + 1, of_two),
                                   sum(j + 2, of_two), sum(j + 3, of_two));
        }
      } else {
#pragma unroll
        for (int j = 0; j < Warp::kN / 8; ++j) {
          const float low = sum(j, 0), high = sum(j, 1);
          const uint32_t to = smem + row * kRowBytes + warp.column(j, 0, lane) * sizeof(Out);
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
                                                const PointwiseOutput& output, const PointwiseMatrix& matrix, T* out) {
  stage_sums<T, kM, kN>(sums, warp, smem);
  store_lines<T, kM, kN>(smem, output, matrix.lines, out, matrix.vector_bytes);
}

// As they are, [m][n].
template <int kM, int kN, typename Warp>
__device__ __forceinline__ void store_pointwise_sums(const typename Warp::Sums& sums, const Warp& warp, uint32_t smem,
                                                     const PointwiseOutput& output, int32_t lines, float* partial) {
  stage_sums<float, kM, kN>(sums, warp, smem);
  PointwiseLines rows{};
  rows.extent = lines, rows.column = output.length;
  const PointwiseColumns side_by_side{};
  const PointwiseOutput sums_only{output.m, output.n, output.length, side_by_side};
  store_lines<float, kM, kN>(smem, sums_only, rows, partial, output.length % 4 == 0 ? kPointwiseChunkBytes : 4);
}

}  // namespace fastconv
