// Convolution as an implicit matrix product: no columns are stored, their Coords are computed on the way.
#pragma once

#include "fastconv/families/implicit_gemm/simt.cuh"
#include "fastconv/tile/conv_coords.cuh"

namespace fastconv {

struct DirectParams {
  ConvMap map;
  int64_t extent_m;
  int32_t extent_n;
  int64_t slice_depth;  // depth of a slice, a multiple of the tile's
  int64_t filter_group_stride;
  int64_t batches;  // groups x phases
  FastDivmod by_tiles_m, by_tiles_n, by_batches, by_phases_h, by_phases_w;
};

// A tile of one group, phase and slice. It lives in shared memory: a block's threads need it now and then, and it would
// take registers from the sums.
struct DirectTile {
  ConvPhase phase;
  int32_t group, batch, slice;
  int64_t first_m;
  int32_t first_n;
  int32_t rows, columns;  // that exist
  PixelOrigin origin;     // of the tile's pixels (fprop, dgrad) or the slice's (wgrad)
  int32_t depth_begin, depth_end;
};

// Operands and output of a tile. fprop and dgrad: m is the pixel, n the produced channel, depth the tap. wgrad: m is
// the tap, n the filter, depth the pixel.
template <Pass kPass>
struct DirectGemm {
  static constexpr bool kWgrad = kPass == Pass::kWgrad;
  using Params = DirectParams;
  using Tile = DirectTile;

  const DirectParams& params;
  const DirectTile& tile;

  // Tiles that share pixels are neighbours, so that the second-level cache serves them.
  template <typename Config>
  __device__ static DirectTile locate(const DirectParams& params, uint32_t block) {
    int32_t tile_n, tile_m, batch, slice;
    params.by_tiles_n.divmod(static_cast<int32_t>(block), tile_m, tile_n);
    params.by_tiles_m.divmod(tile_m, batch, tile_m);
    params.by_batches.divmod(batch, slice, batch);
    return tile_at(params, batch, slice, int64_t{tile_m} * Config::kM, tile_n * Config::kN);
  }
  __device__ static DirectTile tile_at(const DirectParams& params, int32_t batch, int32_t slice, int64_t first_m,
                                       int32_t first_n) {
    DirectTile tile;
    int32_t phase_h, phase_w;
    params.by_phases_w.divmod(batch, tile.group, phase_w);
    params.by_phases_h.divmod(tile.group, tile.group, phase_h);
    tile.phase = params.map.phase(phase_h, phase_w);
    tile.batch = batch;
    tile.slice = slice;
    tile.first_m = first_m;
    tile.first_n = first_n;
    tile.rows = static_cast<int32_t>(min(params.extent_m - first_m, int64_t{kMaxExtent}));
    tile.columns = params.extent_n - first_n;
    const ConvView view{params.map, tile.phase};
    const int64_t depth = slice * params.slice_depth;
    const int64_t left = (kWgrad ? params.map.pixels : int64_t{view.taps()}) - depth;
    const auto length = static_cast<int32_t>(max(min(left, params.slice_depth), int64_t{0}));
    tile.origin = view.origin(kWgrad ? depth : first_m);
    tile.depth_begin = kWgrad || length == 0 ? 0 : static_cast<int32_t>(depth);
    tile.depth_end = tile.depth_begin + length;
    return tile;
  }

  __device__ int64_t a_base() const { return int64_t{tile.group} * map().channels * map().source.c; }
  __device__ int64_t b_base() const { return kWgrad ? target_base() : filter_base(); }
  __device__ int64_t out_base() const { return kWgrad ? filter_base() : target_base(); }
  __device__ int64_t partial_base() const {
    return (tile.slice * params.batches + tile.batch) * params.extent_n * params.extent_m;
  }
  __device__ int64_t batches() const { return params.batches; }
  __device__ int64_t extent_m() const { return params.extent_m; }
  __device__ int64_t extent_n() const { return params.extent_n; }

  __device__ Coord a_row(int row) const {
    if (row >= tile.rows) return outside();
    return kWgrad ? view().source_tap(static_cast<int32_t>(tile.first_m) + row) : source_pixel(row);
  }
  __device__ Coord a_depth(int32_t depth) const { return kWgrad ? source_pixel(depth) : view().source_tap(depth); }
  __device__ Coord b_row(int column) const {
    if (column >= tile.columns) return outside();
    return {(tile.first_n + column) * (kWgrad ? map().target.c : map().filter.n), 0, 0};
  }
  __device__ Coord b_depth(int32_t depth) const {
    return {kWgrad ? target_pixel(depth) : view().filter_tap(depth), 0, 0};
  }

  __device__ int64_t out_m(int row) const {
    if (row >= tile.rows) return -1;
    return kWgrad ? view().filter_tap(static_cast<int32_t>(tile.first_m) + row) : target_pixel(row);
  }
  __device__ int64_t out_n(int column) const {
    return column < tile.columns ? (tile.first_n + column) * (kWgrad ? map().filter.n : map().target.c) : -1;
  }
  __device__ int64_t filter(int column) const { return int64_t{tile.group} * map().filters + tile.first_n + column; }

  __device__ int32_t extent_h() const { return map().h.source_extent; }
  __device__ int32_t extent_w() const { return map().w.source_extent; }

 private:
  __device__ const ConvMap& map() const { return params.map; }
  __device__ ConvView view() const { return {params.map, tile.phase}; }
  __device__ Coord source_pixel(int32_t step) const { return view().source_pixel(view().pixel(tile.origin, step)); }
  __device__ int64_t target_pixel(int32_t step) const { return view().target_pixel(view().pixel(tile.origin, step)); }
  // Groups follow each other along the filter tensor's first dimension, whichever of its channels is produced.
  __device__ int64_t filter_base() const { return tile.group * params.filter_group_stride; }
  __device__ int64_t target_base() const { return int64_t{tile.group} * map().filters * map().target.c; }
};

}  // namespace fastconv
