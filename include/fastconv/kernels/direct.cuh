// Convolution as an implicit matrix product: no columns are stored, their Coords are computed on the way.
#pragma once

#include "fastconv/kernels/simt_gemm.cuh"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {

struct DirectParams;

// One tile of one group, phase and slice. fprop and dgrad: m is the pixel, n the produced channel, depth the tap.
// wgrad: m is the tap, n the filter, depth the pixel.
template <Pass kPass>
class DirectGemm {
  static constexpr bool kWgrad = kPass == Pass::kWgrad;

 public:
  __device__ DirectGemm(const DirectParams& params, int32_t batch, int32_t slice, int64_t first_m, int32_t first_n);

  __device__ int64_t a_base() const { return group_ * channels() * map().source.c; }
  __device__ int64_t b_base() const { return kWgrad ? group_ * filters() * map().target.c : filter_base(); }
  __device__ int64_t out_base() const { return kWgrad ? filter_base() : group_ * filters() * map().target.c; }
  __device__ int64_t partial_base() const;
  __device__ PartialTile partial_tile() const;

  __device__ int32_t extent_h() const { return map().h.source_extent; }
  __device__ int32_t extent_w() const { return map().w.source_extent; }
  __device__ int32_t depth_begin() const { return depth_begin_; }
  __device__ int32_t depth_end() const { return depth_end_; }

  __device__ Coord a_row(int row) const {
    if (row >= rows_) return outside();
    return kWgrad ? view_.source_tap(static_cast<int32_t>(first_m_) + row) : source_pixel(row);
  }
  __device__ Coord a_depth(int32_t depth) const { return kWgrad ? source_pixel(depth) : view_.source_tap(depth); }
  __device__ Coord b_row(int column) const {
    if (column >= columns_) return outside();
    return {(first_n_ + column) * (kWgrad ? map().target.c : map().filter.n), 0, 0};
  }
  __device__ Coord b_depth(int32_t depth) const {
    return {kWgrad ? view_.target_pixel(view_.pixel(origin_, depth)) : view_.filter_tap(depth), 0, 0};
  }

  __device__ int64_t out_m(int row) const {
    if (row >= rows_) return -1;
    return kWgrad ? view_.filter_tap(static_cast<int32_t>(first_m_) + row)
                  : view_.target_pixel(view_.pixel(origin_, row));
  }
  __device__ int64_t out_n(int column) const {
    return column < columns_ ? (first_n_ + column) * (kWgrad ? map().filter.n : map().target.c) : -1;
  }
  __device__ int64_t bias_index(int column) const { return group_ * filters() + first_n_ + column; }

 private:
  __device__ const ConvMap& map() const { return view_.map; }
  __device__ int64_t channels() const { return map().channels; }
  __device__ int64_t filters() const { return map().filters; }
  __device__ Coord source_pixel(int32_t step) const { return view_.source_pixel(view_.pixel(origin_, step)); }
  // The groups of a filter tensor follow each other along its first dimension, whichever of its channels is produced.
  __device__ int64_t filter_base() const;

  const DirectParams& params_;
  int32_t group_, phase_h_, phase_w_;
  ConvView view_;
  int32_t batch_, slice_;
  int64_t first_m_;
  int32_t first_n_;
  int32_t rows_, columns_;  // of the tile that exist
  PixelOrigin origin_;      // of the tile's pixels (fprop, dgrad) or the slice's (wgrad)
  int32_t depth_begin_, depth_end_;
};

struct DirectParams {
  ConvMap map;
  bool wgrad;
  int64_t extent_m;
  int32_t extent_n;
  int64_t slice_depth;  // depth of a slice, a multiple of the tile's
  int64_t filter_group_stride;
  int64_t batch_count;  // groups x phases
  FastDivmod by_tiles_m, by_tiles_n, by_batches, by_phases_h, by_phases_w;

  template <Pass kPass>
  struct Of;

  __device__ int64_t m() const { return extent_m; }
  __device__ int64_t n() const { return extent_n; }
  __device__ int64_t batches() const { return batch_count; }
};

template <Pass kPass>
struct DirectParams::Of : DirectParams {
  // Tiles that share pixels are neighbours, so that the second-level cache serves them.
  template <typename Config>
  __device__ DirectGemm<kPass> tile(uint32_t block) const {
    int32_t tile_n, tile_m, batch, slice;
    by_tiles_n.divmod(static_cast<int32_t>(block), tile_m, tile_n);
    by_tiles_m.divmod(tile_m, batch, tile_m);
    by_batches.divmod(batch, slice, batch);
    return DirectGemm<kPass>(*this, batch, slice, int64_t{tile_m} * Config::kM, tile_n * Config::kN);
  }
  __device__ DirectGemm<kPass> element(int64_t batch, int64_t m, int64_t n) const {
    return DirectGemm<kPass>(*this, static_cast<int32_t>(batch), 0, m, static_cast<int32_t>(n));
  }
};

template <Pass kPass>
__device__ __forceinline__ DirectGemm<kPass>::DirectGemm(const DirectParams& params, int32_t batch, int32_t slice,
                                                         int64_t first_m, int32_t first_n)
    : params_(params),
      group_(params.by_phases_h.div(params.by_phases_w.div(batch))),
      phase_h_(params.by_phases_w.div(batch) - group_ * params.map.h.phases),
      phase_w_(batch - params.by_phases_w.div(batch) * params.map.w.phases),
      view_(params.map, phase_h_, phase_w_),
      batch_(batch),
      slice_(slice),
      first_m_(first_m),
      first_n_(first_n) {
  const int64_t left_m = params.extent_m - first_m;
  rows_ = left_m < (1 << 30) ? static_cast<int32_t>(left_m) : 1 << 30;
  columns_ = params.extent_n - first_n;
  const int64_t depth = slice * params.slice_depth;
  const int64_t left = (kWgrad ? params.map.pixels : int64_t{view_.taps()}) - depth;
  const auto length = static_cast<int32_t>(left < 0 ? 0 : left < params.slice_depth ? left : params.slice_depth);
  origin_ = view_.origin(kWgrad ? depth : first_m);
  depth_begin_ = kWgrad || length == 0 ? 0 : static_cast<int32_t>(depth);
  depth_end_ = depth_begin_ + length;
}

template <Pass kPass>
__device__ int64_t DirectGemm<kPass>::filter_base() const {
  return group_ * params_.filter_group_stride;
}
template <Pass kPass>
__device__ int64_t DirectGemm<kPass>::partial_base() const {
  return (slice_ * params_.batch_count + batch_) * params_.extent_n * params_.extent_m;
}
template <Pass kPass>
__device__ PartialTile DirectGemm<kPass>::partial_tile() const {
  return {params_.extent_m, params_.extent_n, first_m_, first_n_};
}

}  // namespace fastconv
