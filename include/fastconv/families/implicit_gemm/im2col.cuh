// Convolution through a stored columns matrix, block by block, for any problem whatever its size.
#pragma once

#include "fastconv/families/implicit_gemm/simt.cuh"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {

// A block of the columns matrix: [group][tap][pixel].
struct ColumnBlock {
  Columns columns;
  int64_t first_group, first_tap, first_pixel;
  int64_t groups, taps, pixels;
  int64_t slices;  // of the reduction, each with sums of its own
  int64_t filter_group_stride;
};

// Neighbouring threads take neighbouring pixels.
template <typename T>
__global__ void __launch_bounds__(256)
    fill_columns(const __grid_constant__ ColumnBlock block, const T* source, T* columns) {
  ptx::follow_previous_kernel();
  const int64_t count = block.groups * block.taps * block.pixels;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t pixel = block.first_pixel + i % block.pixels;
    const int64_t tap = block.first_tap + i / block.pixels % block.taps;
    const int64_t group = block.first_group + i / block.pixels / block.taps;
    const int64_t element = block.columns.source_element(pixel, tap);
    columns[i] = element < 0 ? narrow<T>(0) : source[group * block.columns.channels * block.columns.source.c + element];
  }
}

struct ColumnsTile {
  int64_t batch, slice, first_m, first_n;
  int32_t depth_begin, depth_end;
};

// As DirectGemm, with the columns for the gathered operand.
template <Pass kPass>
struct ColumnsGemm {
  static constexpr bool kWgrad = kPass == Pass::kWgrad;
  using Params = ColumnBlock;
  using Tile = ColumnsTile;

  const ColumnBlock& block;
  const ColumnsTile& tile;

  template <typename Config>
  __device__ static ColumnsTile locate(const ColumnBlock& block, uint32_t index) {
    const int64_t tiles_n = (block.columns.filters + Config::kN - 1) / Config::kN;
    const int64_t tiles_m = ((kWgrad ? block.taps : block.pixels) + Config::kM - 1) / Config::kM;
    const int64_t tile_m = index / tiles_n, batch = tile_m / tiles_m;
    return tile_at(block, batch % block.groups, batch / block.groups, tile_m % tiles_m * Config::kM,
                   index % tiles_n * Config::kN);
  }
  __device__ static ColumnsTile tile_at(const ColumnBlock& block, int64_t batch, int64_t slice, int64_t first_m,
                                        int64_t first_n) {
    const int64_t depth = kWgrad ? block.pixels : block.taps;
    const int64_t slice_depth = (depth + block.slices - 1) / block.slices;
    const int64_t begin = min(slice * slice_depth, depth);
    return {batch,
            slice,
            first_m,
            first_n,
            static_cast<int32_t>(begin),
            static_cast<int32_t>(min(begin + slice_depth, depth))};
  }

  __device__ int64_t a_base() const { return tile.batch * block.taps * block.pixels; }
  __device__ int64_t b_base() const { return kWgrad ? target_base() : filter_base(); }
  __device__ int64_t out_base() const { return kWgrad ? filter_base() : target_base(); }
  __device__ int64_t partial_base() const { return (tile.slice * block.groups + tile.batch) * extent_n() * extent_m(); }
  __device__ int64_t batches() const { return block.groups; }
  __device__ int64_t extent_m() const { return kWgrad ? block.taps : block.pixels; }
  __device__ int64_t extent_n() const { return block.columns.filters; }

  __device__ Coord a_row(int row) const {
    if (tile.first_m + row >= extent_m()) return outside();
    return {(tile.first_m + row) * (kWgrad ? block.pixels : 1), 0, 0};
  }
  __device__ Coord a_depth(int32_t depth) const { return {depth * (kWgrad ? 1 : block.pixels), 0, 0}; }
  __device__ Coord b_row(int column) const {
    if (tile.first_n + column >= extent_n()) return outside();
    return {(tile.first_n + column) * (kWgrad ? columns().target.c : columns().filter.n), 0, 0};
  }
  __device__ Coord b_depth(int32_t depth) const {
    return {kWgrad ? columns().target_pixel(block.first_pixel + depth) : columns().filter_tap(block.first_tap + depth),
            0, 0};
  }

  __device__ int64_t out_m(int row) const {
    if (tile.first_m + row >= extent_m()) return -1;
    return kWgrad ? columns().filter_tap(block.first_tap + tile.first_m + row)
                  : columns().target_pixel(block.first_pixel + tile.first_m + row);
  }
  __device__ int64_t out_n(int column) const {
    if (tile.first_n + column >= extent_n()) return -1;
    return (tile.first_n + column) * (kWgrad ? columns().filter.n : columns().target.c);
  }
  __device__ int64_t filter(int column) const { return group() * extent_n() + tile.first_n + column; }

  // The columns have no padding of their own.
  __device__ static int32_t extent_h() { return 0; }
  __device__ static int32_t extent_w() { return 0; }

 private:
  __device__ const Columns& columns() const { return block.columns; }
  __device__ int64_t group() const { return block.first_group + tile.batch; }
  __device__ int64_t filter_base() const { return group() * block.filter_group_stride; }
  __device__ int64_t target_base() const { return group() * extent_n() * columns().target.c; }
};

}  // namespace fastconv
