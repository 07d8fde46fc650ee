// Weight gradient of narrow groups whose rows lie side by side, for sm_90a, see families/grouped/planes.h.
#pragma once

#include "fastconv/families/grouped/planes.h"
#include "fastconv/ptx/dependent_launch.cuh"
#include "fastconv/ptx/mma.cuh"
#include "fastconv/ptx/shared_memory.cuh"
#include "fastconv/tile/element.cuh"
#include "fastconv/tile/kept.cuh"
#include "fastconv/tile/staged_tensor.cuh"
#include "fastconv/tile/truncated_tf32.cuh"

namespace fastconv {

// Words of an operand that a lane has of a row: two columns of 16 bits each, or one.
template <typename T>
inline constexpr int kPlanesWords = kPlanesColumns * static_cast<int>(sizeof(T)) / 16;

// A lane's columns of a row of x and of dy, both from addresses of their planes' rows on.
template <typename T, int kStride>
class PlanesLane {
 public:
  static constexpr int kWords = kPlanesWords<T>, kOfWord = 4 / sizeof(T);
  using Words = uint32_t[kWords];

  // `first`: column of dy.
  __device__ PlanesLane(const GroupedPlanesParams& params, int32_t first) {
    const int32_t column = first + static_cast<int32_t>(threadIdx.x % 4) * kOfWord, columns = params.y.columns;
    offset_ = kept(column * static_cast<int32_t>(sizeof(T)));
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int32_t at = column + i * kStep;
      exists_[i] = kept(int{at < columns});
      left_[i] = kept(int{at > 0 && at < columns});
      right_[i] = kept(int{at < columns && at * kStride + kOfRight < params.x.columns});
    }
  }

  // Words of a row of dy, that begins for lane 0's word of column 0 at `row`.
  __device__ void load_y(uint32_t row, Words& words) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = rounded(load(row + offset_ + i * kStepBytes, exists_[i]));
  }
  // Of a row of x, at each tap: from a column before that of dy (times the stride) on.
  __device__ void load_x(uint32_t row, Words (&taps)[kPlanesTaps]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint32_t at = row + kStride * (offset_ + i * kStepBytes);
      const uint32_t left = load(at - 4, left_[i]), middle = load(at, exists_[i]), right = load(at + 4, right_[i]);
      if constexpr (kOfWord == 1) {
        taps[0][i] = rounded(left), taps[1][i] = rounded(middle), taps[2][i] = rounded(right);
      } else if constexpr (kStride == 1) {
        taps[0][i] = __byte_perm(left, middle, 0x5432);
        taps[1][i] = middle;
        taps[2][i] = __byte_perm(middle, right, 0x5432);
      } else {
        taps[0][i] = __byte_perm(left, middle, 0x7632);
        taps[1][i] = __byte_perm(middle, right, 0x5410);
        taps[2][i] = __byte_perm(middle, right, 0x7632);
      }
    }
  }

 private:
  // Columns from a word to the next one, which are half a product's depth apart; and from a word's first column of dy
  // (times the stride) to the last of x that a tap to the right reads.
  static constexpr int kStep = 4 * kOfWord, kStepBytes = 16;
  static constexpr int kOfRight = kOfWord == 1 ? 1 : 2 + (kStride - 1);

  static __device__ uint32_t load(uint32_t at, int exists) {
    uint32_t word = 0;
    if (exists != 0) ptx::load_shared_ahead(at, word);
    return word;
  }
  static __device__ uint32_t rounded(uint32_t word) { return kOfWord == 1 ? to_truncated_tf32(word) : word; }

  int32_t offset_;
  int exists_[kWords], left_[kWords], right_[kWords];
};

using PlanesSums = float[kPlanesProducts][4];

// A warp's share of a tile: its lanes' planes begin at `x_first` and `y_first` in shared memory, those of x with row
// `x_row` of the image.
template <typename T, int kStride>
__device__ __forceinline__ void add_rows(const GroupedPlanesParams& params, const PlanesLane<T, kStride>& lane,
                                         const GroupedPlanesTile& tile, uint32_t x_first, uint32_t y_first,
                                         int32_t x_row, PlanesSums& sums) {
  using Words = typename PlanesLane<T, kStride>::Words;
  constexpr int kRows = kPlanesTaps, kKept = kRows - kStride;
  Words rows[kRows][kPlanesTaps];  // row i of x, counted from the first, in place i % 3
  const int32_t first = tile.row * kStride - params.padding_h;
  auto load = [&](int32_t index, Words(&row)[kPlanesTaps]) {
    const int32_t h = first + index;
    if (h >= 0 && h < params.x.rows) return lane.load_x(x_first + (h - x_row) * params.x.row_bytes, row);
#pragma unroll
    for (auto& tap : row) {
#pragma unroll
      for (uint32_t& word : tap) word = 0;
    }
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) load(i, rows[i]);
#pragma unroll 1
  for (int32_t target = 0; target < tile.rows; target += kRows) {
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      if (j > 0 && target + j >= tile.rows) break;
#pragma unroll
      for (int i = kKept; i < kRows; ++i) load((target + j) * kStride + i, rows[(j * kStride + i) % kRows]);
      Words y;
      lane.load_y(y_first + (target + j) * params.y.row_bytes, y);
#pragma unroll
      for (int i = 0; i < kPlanesProducts; ++i) {
        const Words(&taps)[kPlanesTaps] = rows[(j * kStride + i / 2) % kRows];
#pragma unroll
        for (int k = 0; k < PlanesLane<T, kStride>::kWords; k += 2) {
          const uint32_t two_taps[4] = {taps[0][k], taps[1][k], taps[0][k + 1], taps[1][k + 1]};
          const uint32_t last_tap[4] = {taps[2][k], 0, taps[2][k + 1], 0};
          ptx::mma(T{}, sums[i], i % 2 == 0 ? two_taps : last_tap, y[k], y[k + 1]);
        }
      }
    }
  }
}

// The sums of all warps, added up.
template <typename T>
__device__ __forceinline__ void store_sums(const GroupedPlanesParams& params, int32_t first_channel, int32_t slice,
                                           uint32_t smem, const PlanesSums& sums) {
  const auto thread = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
#pragma unroll
  for (int i = 0; i < kPlanesProducts; ++i) {
    const float (&sum)[4] = sums[i];
    ptx::store_shared_floats(smem + (i * threads + thread) * 16, sum[0], sum[1], sum[2], sum[3]);
  }
  __syncthreads();
  constexpr int32_t kTaps = kPlanesTaps * kPlanesTaps;
  const int32_t width = 1 << params.group_log2;
  const int32_t squares = params.squares();
  float* slice_sums = params.sums + (int64_t{slice} * params.channels + first_channel) * width * kTaps;
  // As they lie in memory.
#pragma unroll 1
  for (int32_t i = thread; i < params.planes() * width * kTaps; i += threads) {
    const int32_t pair = i / kTaps, tap = i - pair * kTaps, filter = pair >> params.group_log2;
    const int32_t channel = pair & (width - 1), of_block = (filter & -width) + channel;
    const GroupedPlanesSum at(of_block % kPlanes, filter % kPlanes, tap);
    float sum = 0;
    for (int32_t from = 32 * params.square(of_block, filter) + at.lane; from < threads; from += 32 * squares) {
      sum += __uint_as_float(ptx::load_shared4(smem + (at.product * threads + from) * 16 + at.index * 4));
    }
    if (params.sums != nullptr) {
      slice_sums[i] = sum;
    } else {
      const Strides& strides = params.filter_strides;
      static_cast<T*>(params.dw)[(first_channel + filter) * strides.n + channel * strides.c +
                                 tap / kPlanesTaps * strides.h + tap % kPlanesTaps * strides.w] = narrow<T>(sum);
    }
  }
}

template <typename T, int kStride, int kWarps>
__global__ void __launch_bounds__(32 * kPlanesMostWarps, kWarps / kPlanesMostWarps)
    grouped_planes_wgrad(const __grid_constant__ GroupedPlanesParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ptx::follow_previous_kernel();
  extern __shared__ __align__(128) uint8_t smem_raw[];
  const uint32_t barriers = ptx::smem_address(smem_raw), stages = barriers + kPlanesBarrierBytes;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x / 32), 0);
  int32_t slice, first_channel, image, block;
  params.by_chunks.divmod(static_cast<int32_t>(blockIdx.x), slice, first_channel);
  first_channel *= params.planes();
  params.by_blocks.divmod(warp >> 2 * params.halves_log2, image, block);
  const int32_t square = warp & (params.squares() - 1), halves = 1 << params.halves_log2;
  auto staged = [&](const GroupedPlanesTensor& tensor, int32_t plane) {
    return StagedTensor{static_cast<const uint8_t*>(tensor.data) + (first_channel + plane) * tensor.plane_bytes,
                        tensor.image_bytes, tensor.row_bytes, tensor.columns, 0};
  };
  auto x_span = [&](const GroupedPlanesTile& tile) {
    return RowSpan(tile.row * kStride - params.padding_h, static_cast<int32_t>(planes_seen_rows(tile.rows, kStride)),
                   params.x.rows);
  };
  // By one warp: a lane brings some planes.
  auto copy = [&](int32_t index, uint32_t stage) {
    const GroupedPlanesTile tile(params, index);
    const RowSpan x_rows = x_span(tile), y_rows(tile.row, tile.rows, params.y.rows);
    const uint32_t barrier = barriers + stage * 8, at = stages + stage * params.stage_bytes;
    for (int32_t i = lane; i < params.tile_images * 2 * params.planes(); i += 32) {
      const int32_t of_tile = i / (2 * params.planes()), plane = i & (params.planes() - 1);
      if (tile.image + of_tile >= params.images) break;
      const uint32_t to = at + of_tile * params.image_bytes;
      if ((i / kPlanes >> params.halves_log2) % 2 == 0) {
        staged(params.x, plane).copy(tile.image + of_tile, x_rows, to + plane * params.x.pitch, barrier);
      } else {
        staged(params.y, plane)
            .copy(tile.image + of_tile, y_rows, to + params.x.staged_bytes(params.planes()) + plane * params.y.pitch,
                  barrier);
      }
    }
    ptx::mbarrier_arrive(barrier);
  };

  const int32_t begin = slice * params.slice_tiles, end = min(params.tiles, begin + params.slice_tiles);
  if (warp == 0) {
    if (lane == 0) {
      ptx::mbarrier_init(barriers, 32);
      ptx::mbarrier_init(barriers + 8, 32);
      ptx::mbarrier_init_fence();
    }
    __syncwarp();
    if (begin < end) copy(begin, 0);
  }
  const PlanesLane<T, kStride> columns(params, block * kPlanesColumns);
  const int32_t x_plane = square % halves * kPlanes + lane / 4, y_plane = square / halves * kPlanes + lane / 4;
  const StagedTensor x = staged(params.x, x_plane), y = staged(params.y, y_plane);
  PlanesSums sums = {};
#pragma unroll 1
  for (int32_t index = begin; index < end; ++index) {
    const int32_t stage = (index - begin) % 2;
    __syncthreads();  // the barriers exist, and the rows of the tile before are read
    if (warp == 0 && index + 1 < end) copy(index + 1, stage ^ 1);
    ptx::mbarrier_wait(barriers + stage * 8, (index - begin) / 2 % 2);
    const GroupedPlanesTile tile(params, index);
    if (tile.image + image >= params.images) continue;
    const RowSpan x_rows = x_span(tile), y_rows(tile.row, tile.rows, params.y.rows);
    const uint32_t at = stages + stage * params.stage_bytes + image * params.image_bytes;
    add_rows<T, kStride>(
        params, columns, tile, at + x_plane * params.x.pitch + x.lead(tile.image + image, x_rows),
        at + params.x.staged_bytes(params.planes()) + y_plane * params.y.pitch + y.lead(tile.image + image, y_rows),
        x_rows.first, sums);
  }
  __syncthreads();  // all rows are read
  store_sums<T>(params, first_channel, slice, stages, sums);
#endif
}

}  // namespace fastconv
