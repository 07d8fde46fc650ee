// Convolution through a stored columns matrix, block by block, for any problem whatever its size.
#pragma once

#include "fastconv/kernels/simt_gemm.cuh"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {

// A block of the columns matrix: [group][tap][pixel].
struct ColumnBlock {
  Columns columns;
  int64_t first_group, first_tap, first_pixel;
  int64_t groups, taps, pixels;
  int64_t filter_group_stride;
};

// Neighbouring threads take neighbouring pixels.
template <typename T>
__global__ void __launch_bounds__(256)
    fill_columns(const __grid_constant__ ColumnBlock block, const T* source, T* columns) {
  const int64_t count = block.groups * block.taps * block.pixels;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t pixel = block.first_pixel + i % block.pixels;
    const int64_t tap = block.first_tap + i / block.pixels % block.taps;
    const int64_t group = block.first_group + i / block.pixels / block.taps;
    const int64_t element = block.columns.source_element(pixel, tap);
    columns[i] = element < 0 ? narrow<T>(0) : source[group * block.columns.channels * block.columns.source.c + element];
  }
}

// As DirectGemm, with the columns for the gathered operand.
template <Pass kPass>
class ColumnsGemm {
  static constexpr bool kWgrad = kPass == Pass::kWgrad;

 public:
  __device__ ColumnsGemm(const ColumnBlock& block, int64_t batch, int64_t first_m, int64_t first_n)
      : block_(block), batch_(batch), first_m_(first_m), first_n_(first_n) {}

  __device__ int64_t a_base() const { return batch_ * block_.taps * block_.pixels; }
  __device__ int64_t b_base() const { return kWgrad ? target_base() : filter_base(); }
  __device__ int64_t out_base() const { return kWgrad ? filter_base() : target_base(); }
  __device__ int64_t partial_base() const { return batch_ * columns().filters * extent_m(); }
  __device__ PartialTile partial_tile() const { return {extent_m(), columns().filters, first_m_, first_n_}; }

  __device__ int32_t extent_h() const { return 0; }
  __device__ int32_t extent_w() const { return 0; }
  __device__ int32_t depth_begin() const { return 0; }
  __device__ int32_t depth_end() const { return static_cast<int32_t>(kWgrad ? block_.pixels : block_.taps); }

  __device__ Coord a_row(int row) const {
    return first_m_ + row < extent_m() ? Coord{(first_m_ + row) * (kWgrad ? block_.pixels : 1), 0, 0} : outside();
  }
  __device__ Coord a_depth(int32_t depth) const { return {depth * (kWgrad ? 1 : block_.pixels), 0, 0}; }
  __device__ Coord b_row(int column) const {
    if (first_n_ + column >= columns().filters) return outside();
    return {(first_n_ + column) * (kWgrad ? columns().target.c : columns().filter.n), 0, 0};
  }
  __device__ Coord b_depth(int32_t depth) const {
    return {kWgrad ? columns().target_pixel(block_.first_pixel + depth) : columns().filter_tap(block_.first_tap + depth),
            0, 0};
  }

  __device__ int64_t out_m(int row) const {
    if (first_m_ + row >= extent_m()) return -1;
    return kWgrad ? columns().filter_tap(block_.first_tap + first_m_ + row)
                  : columns().target_pixel(block_.first_pixel + first_m_ + row);
  }
  __device__ int64_t out_n(int column) const {
    if (first_n_ + column >= columns().filters) return -1;
    return (first_n_ + column) * (kWgrad ? columns().filter.n : columns().target.c);
  }
  __device__ int64_t bias_index(int column) const { return group() * columns().filters + first_n_ + column; }

 private:
  __device__ const Columns& columns() const { return block_.columns; }
  __device__ int64_t extent_m() const { return kWgrad ? block_.taps : block_.pixels; }
  __device__ int64_t group() const { return block_.first_group + batch_; }
  __device__ int64_t filter_base() const { return group() * block_.filter_group_stride; }
  __device__ int64_t target_base() const { return group() * columns().filters * columns().target.c; }

  const ColumnBlock& block_;
  int64_t batch_, first_m_, first_n_;
};

template <Pass kPass>
struct ColumnsParams : ColumnBlock {
  __device__ int64_t m() const { return kPass == Pass::kWgrad ? taps : pixels; }
  __device__ int64_t n() const { return columns.filters; }
  __device__ int64_t batches() const { return groups; }

  template <typename Config>
  __device__ ColumnsGemm<kPass> tile(uint32_t index) const {
    const int64_t tiles_n = (n() + Config::kN - 1) / Config::kN;
    const int64_t tiles_m = (m() + Config::kM - 1) / Config::kM;
    return {*this, index / tiles_n / tiles_m, index / tiles_n % tiles_m * Config::kM, index % tiles_n * Config::kN};
  }
  __device__ ColumnsGemm<kPass> element(int64_t batch, int64_t row, int64_t column) const {
    return {*this, batch, row, column};
  }
};

}  // namespace fastconv
