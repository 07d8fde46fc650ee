// Blocked matrix product after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", TOMS 2008,
// with the im2col done while a block is packed. Sums are formed in an order that depends on the problem alone.
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "fastconv/core/integers.h"
#include "fastconv/cpu/kernels.h"
#include "fastconv/cpu/lowering.h"
#include "fastconv/cpu/pack.h"
#include "fastconv/cpu/simd.h"
#include "fastconv/cpu/work_queue.h"

namespace fastconv {
namespace {

// Depth of a packed block. Partial sums of this length are formed in registers, then added up, which also keeps the
// rounding error of a long reduction small.
constexpr int64_t kDepth = 128;
constexpr int64_t kMaxRows = 256;     // of a tile of the result
constexpr int64_t kPackedRows = 64;   // packed at a time: a share of L2, while a panel of columns stays in L1
constexpr int64_t kTargetItems = 32;  // tiles times parts of the reduction
constexpr int64_t kMinPartDepth = 1024;

// Columns of a tile: a multiple of every instruction set's panel.
template <class Scalar>
constexpr int64_t kMaxCols = 960 / static_cast<int64_t>(sizeof(Scalar));
template <class Scalar>
constexpr int64_t kColUnit = 192 / static_cast<int64_t>(sizeof(Scalar));

// How the result and the reduction are cut. Items are numbered with the part fastest, then columns, rows, phase, group.
struct Tiling {
  int64_t rows, cols, part_depth;  // of an item
  int64_t row_tiles, col_tiles, phases, groups, parts;

  int64_t tiles() const { return groups * phases * row_tiles * col_tiles; }
  int64_t tile_size() const { return rows * cols; }
};

template <class Scalar>
Tiling make_tiling(const ConvProblem& problem) {
  const Lowering lowering = lower(problem, 0);  // no phase has more positions
  const bool wgrad = problem.pass == Pass::kWgrad;
  const int64_t columns = wgrad ? lowering.taps() : lowering.positions();
  const int64_t phases = phase_count(problem);
  Tiling tiling = {};
  tiling.phases = phases;
  tiling.groups = problem.groups;
  tiling.rows = std::clamp(ceil_div(lowering.m, 8) * 8, int64_t{8}, kMaxRows);
  tiling.cols = kMaxCols<Scalar>;
  const auto count_tiles = [&] {
    tiling.row_tiles = ceil_div(lowering.m, tiling.rows);
    // Even shares, in whole panels.
    tiling.col_tiles = ceil_div(columns, tiling.cols);
    if (tiling.col_tiles > 0) {
      tiling.cols = ceil_div(ceil_div(columns, tiling.col_tiles), kColUnit<Scalar>) * kColUnit<Scalar>;
      tiling.col_tiles = ceil_div(columns, tiling.cols);
    }
  };
  count_tiles();
  // wgrad finds its parallelism in the reduction.
  if (!wgrad && tiling.tiles() < kTargetItems / 4 && tiling.rows > kPackedRows) {
    tiling.rows = ceil_div(tiling.rows, 16) * 8;
    count_tiles();
  }
  // Other passes have reductions too short to be worth the partial sums' memory traffic.
  const int64_t depth = wgrad ? lowering.positions() : 0;
  const int64_t parts = tiling.tiles() > 0 ? kTargetItems / tiling.tiles() : 0;
  tiling.part_depth = std::max(kMinPartDepth, ceil_div(ceil_div(depth, std::max<int64_t>(parts, 1)), kDepth) * kDepth);
  tiling.parts = std::max<int64_t>(1, ceil_div(depth, tiling.part_depth));
  return tiling;
}

// c[m][n] (+)= sum over k of a[k][m] * b[k][n], for Isa::kRows values of m and three vectors of n.
template <class Isa, class Scalar>
FASTCONV_INLINE void multiply_panels(Scalar* c, int64_t c_row_step, const Scalar* a, const Scalar* b, int64_t depth,
                                     bool accumulate) {
  using Vector = typename VectorOf<Isa, Scalar>::Type;
  constexpr int kLanes = VectorOf<Isa, Scalar>::kLanes;
  Vector sum[Isa::kRows][3] = {};
  for (int64_t k = 0; k < depth; ++k, a += Isa::kRows, b += 3 * kLanes) {
    const auto* column = reinterpret_cast<const Vector*>(b);
    for (int m = 0; m < Isa::kRows; ++m) {
      for (int n = 0; n < 3; ++n) sum[m][n] += a[m] * column[n];
    }
  }
  for (int m = 0; m < Isa::kRows; ++m) {
    auto* row = reinterpret_cast<Vector*>(c + m * c_row_step);
    for (int n = 0; n < 3; ++n) row[n] = accumulate ? row[n] + sum[m][n] : sum[m][n];
  }
}

template <class Scalar>
struct Scratch {
  explicit Scratch(const Tiling& tiling)
      : columns(tiling.cols * kDepth), rows(kPackedRows * kDepth), tile(tiling.tile_size()) {}
  AlignedBuffer<Scalar> columns, rows, tile;
  std::vector<Run> column_runs, reduction_runs;
};

// A tile's place in the result.
struct TileRange {
  Lowering lowering;
  int64_t group, row_begin, row_end, col_begin, col_end;
};

TileRange tile_range(const ConvProblem& problem, const Tiling& tiling, int64_t tile) {
  const int64_t col = tile % tiling.col_tiles * tiling.cols;
  tile /= tiling.col_tiles;
  const int64_t row = tile % tiling.row_tiles * tiling.rows;
  tile /= tiling.row_tiles;
  TileRange range = {lower(problem, tile % tiling.phases), tile / tiling.phases, row, 0, col, 0};
  const Lowering& lowering = range.lowering;
  const int64_t columns = problem.pass == Pass::kWgrad ? lowering.taps() : lowering.positions();
  range.row_end = std::min(row + tiling.rows, lowering.m);
  range.col_end = std::min(col + tiling.cols, columns);
  return range;
}

template <class T, bool kWgrad>
struct MultiplyTile {
  using Scalar = Accumulator<T>;

  // One part of the reduction of a tile, into `tile`, whose rows are tiling.cols apart.
  template <class Isa>
  FASTCONV_INLINE static void run(const TileRange& range, const Tiling& tiling, const Operands<T>& operands,
                                  const int64_t& part, Scratch<Scalar>& scratch, Scalar*& tile) {
    constexpr int64_t kRows = Isa::kRows;
    constexpr int64_t kPanel = 3 * VectorOf<Isa, Scalar>::kLanes;
    const Lowering& lowering = range.lowering;
    const T* image = operands.image + range.group * lowering.image_group;
    const T* matrix = kWgrad ? operands.target + range.group * lowering.target_group
                             : operands.filter + range.group * lowering.filter_group;
    const int64_t matrix_row_step = kWgrad ? lowering.target.c : lowering.filter.n;
    const int64_t depth = kWgrad ? lowering.positions() : lowering.taps();
    const int64_t begin = kWgrad ? part * tiling.part_depth : 0;
    const int64_t end = kWgrad ? std::min(begin + tiling.part_depth, depth) : depth;
    const auto list_columns = kWgrad ? tap_runs : position_runs;
    const auto list_reduction = kWgrad ? position_runs : tap_runs;

    list_columns(lowering, range.col_begin, range.col_end, kPanel, scratch.column_runs);
    for (int64_t k = begin; k < end; k += kDepth) {
      const int64_t block_depth = std::min(kDepth, end - k);
      list_reduction(lowering, k, k + block_depth, kDepth, scratch.reduction_runs);
      Scalar* columns = scratch.columns.data();
      pack_im2col<kPanel, !kWgrad>(columns, image, lowering, block_depth, std::span<const Run>(scratch.reduction_runs),
                                   std::span<const Run>(scratch.column_runs));
      for (int64_t row = range.row_begin; row < range.row_end; row += kPackedRows) {
        const int64_t rows = std::min(kPackedRows, range.row_end - row);
        Scalar* tile_rows = tile + (row - range.row_begin) * tiling.cols;
        for (int64_t m = 0; m < rows; m += kRows) {
          Scalar* panel = scratch.rows.data() + m * block_depth;
          const int64_t panel_rows = std::min(kRows, rows - m);
          for (const Run& step : scratch.reduction_runs) {
            const T* from = matrix + ((row + m) * matrix_row_step + step.other);
            Scalar* to = panel + step.begin * kRows;
            if (panel_rows < kRows) fill_zero(to, kRows, step.length, kRows);
            copy_in(to, kRows, from, step.length, panel_rows, step.other_step, matrix_row_step);
          }
        }
        for (int64_t n = 0; n < range.col_end - range.col_begin; n += kPanel) {
          for (int64_t m = 0; m < rows; m += kRows) {
            multiply_panels<Isa>(tile_rows + m * tiling.cols + n, tiling.cols, scratch.rows.data() + m * block_depth,
                                 columns + n * block_depth, block_depth, k > begin);
          }
        }
      }
    }
    if (begin >= end) fill_zero(tile, tiling.cols, range.row_end - range.row_begin, tiling.cols);
  }
};

// Rounds a tile and writes it to where it belongs in the result.
template <class T, bool kWgrad>
struct StoreTile {
  using Scalar = Accumulator<T>;

  template <class Isa>
  FASTCONV_INLINE static void run(const TileRange& range, const Tiling& tiling, const Operands<T>& operands,
                                  const T* const& bias, Scratch<Scalar>& scratch, const Scalar* const& tile) {
    const Lowering& lowering = range.lowering;
    T* matrix = kWgrad ? operands.filter + range.group * lowering.filter_group
                       : operands.target + range.group * lowering.target_group;
    const int64_t row_step = kWgrad ? lowering.filter.n : lowering.target.c;
    const auto list_columns = kWgrad ? tap_runs : position_runs;
    list_columns(lowering, range.col_begin, range.col_end, tiling.cols, scratch.column_runs);
    for (const Run& column : scratch.column_runs) {
      copy_out(matrix + (range.row_begin * row_step + column.other), row_step, column.other_step, tile + column.begin,
               tiling.cols, range.row_end - range.row_begin, column.length,
               bias ? bias + (range.group * lowering.m + range.row_begin) : nullptr);
    }
  }
};

template <class T, bool kWgrad>
void run_gemm(const ConvProblem& problem, const ConvBuffers& buffers, const ParallelFor& parallel_for) {
  using Scalar = Accumulator<T>;
  const Tiling tiling = make_tiling<Scalar>(problem);
  const Operands<T> operands(problem.pass, buffers);
  const T* bias = problem.pass == Pass::kFprop && problem.has_bias ? static_cast<const T*>(buffers.bias) : nullptr;
  const int64_t tiles = tiling.tiles();
  const Lowering whole = lower(problem, 0);
  const int64_t tile_cost =
      tiling.tile_size() * (kWgrad ? std::min(tiling.part_depth, whole.positions()) : whole.taps());
  const bool split = tiling.parts > 1;
  AlignedBuffer<Scalar> partial(split ? tiles * tiling.parts * tiling.tile_size() : 0);

  for_each_item(parallel_for, tiles * tiling.parts, tile_cost, [&] {
    return [&, scratch = std::make_unique<Scratch<Scalar>>(tiling)](int64_t item) {
      const TileRange range = tile_range(problem, tiling, item / tiling.parts);
      if (range.col_begin >= range.col_end) return;  // this phase has fewer positions
      const int64_t part = item % tiling.parts;
      Scalar* tile = split ? partial.data() + item * tiling.tile_size() : scratch->tile.data();
      call_best<MultiplyTile<T, kWgrad>>(range, tiling, operands, part, *scratch, tile);
      const Scalar* result = tile;
      if (!split) call_best<StoreTile<T, kWgrad>>(range, tiling, operands, bias, *scratch, result);
    };
  });
  if (!split) return;
  for_each_item(parallel_for, tiles, tiling.tile_size() * tiling.parts, [&] {
    return [&, scratch = std::make_unique<Scratch<Scalar>>(tiling)](int64_t item) {
      const TileRange range = tile_range(problem, tiling, item);
      Scalar* sum = partial.data() + item * tiling.parts * tiling.tile_size();
      const int64_t used = (range.row_end - range.row_begin) * tiling.cols;
      for (int64_t part = 1; part < tiling.parts; ++part) {
        const Scalar* addend = sum + part * tiling.tile_size();
        for (int64_t i = 0; i < used; ++i) sum[i] += addend[i];
      }
      const Scalar* result = sum;
      call_best<StoreTile<T, kWgrad>>(range, tiling, operands, bias, *scratch, result);
    };
  });
}

}  // namespace

template <class T>
void gemm_cpu(const ConvProblem& problem, const ConvBuffers& buffers, const ParallelFor& parallel_for) {
  if (problem.pass == Pass::kWgrad) {
    run_gemm<T, true>(problem, buffers, parallel_for);
  } else {
    run_gemm<T, false>(problem, buffers, parallel_for);
  }
}

template void gemm_cpu<float>(const ConvProblem&, const ConvBuffers&, const ParallelFor&);
template void gemm_cpu<double>(const ConvProblem&, const ConvBuffers&, const ParallelFor&);
template void gemm_cpu<Half>(const ConvProblem&, const ConvBuffers&, const ParallelFor&);
template void gemm_cpu<BFloat16>(const ConvProblem&, const ConvBuffers&, const ParallelFor&);

}  // namespace fastconv
