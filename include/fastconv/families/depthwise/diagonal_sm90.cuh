// Depthwise convolution of 16-bit elements, and of narrow groups, also in TF32, by products with diagonal matrices for
// sm_90a: as depthwise_diagonal, but TMA brings rows of the source in boxes and stores those of targets, so
// that a warp multiplies a few rows without a pause.
#pragma once

#include "fastconv/families/depthwise/diagonal.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/ring.cuh"

namespace fastconv {

// What a block works on: channels and columns of all its units.
struct DiagonalShare {
  int32_t chunk, column;  // its first
  int32_t first_unit;

  __device__ DiagonalShare(const DepthwiseDiagonalParams& params, int32_t groups) {
    params.by_chunk_blocks.divmod(static_cast<int32_t>(blockIdx.x), first_unit, chunk);
    params.by_column_blocks.divmod(first_unit, first_unit, column);
    chunk *= params.staged.chunks, column *= kDiagonalColumns * groups;
  }
};

// The boxes of a block's units, one after the other, by one thread.
template <DepthwiseDiagonalConfig kConfig>
class DiagonalLoads {
 public:
  __device__ DiagonalLoads(const DepthwiseDiagonalParams& params, const CUtensorMap& map, const DiagonalShare& share)
      : params_(params),
        map_(map),
        channel_(share.chunk * kChunk),
        column_(params.first_w + share.column / kPairColumns * kConfig.advance()),
        index_(share.first_unit),
        unit_(kConfig, params, index_) {}

  // To the ring's stage, which is free: a ring has as many boxes on their way as stages.
  __device__ void next(const Ring& ring) {
    if (index_ >= params_.units) return;
    if (box_ < unit_.row_boxes) {
      const DiagonalBoxes& boxes = params_.boxes;
      ptx::mbarrier_arrive_expect(ring.full(), kConfig.planes() * boxes.plane_bytes);
#pragma unroll 1
      for (int a = 0; a < kConfig.planes(); ++a) {
        ptx::tma_load(ring.stage() + a * boxes.plane_bytes, &map_, channel_, column_ + a,
                      unit_.source_row + box_ * kConfig.box_rows, unit_.image, 0, ring.full());
      }
    } else {
      ptx::mbarrier_arrive(ring.full());
    }
    if (++box_ < unit_.boxes) return;
    box_ = 0, index_ += params_.shares;
    unit_ = DiagonalUnit(kConfig, params_, index_);
  }

 private:
  const DepthwiseDiagonalParams& params_;
  const CUtensorMap& map_;
  int32_t channel_, column_;
  int32_t index_, box_ = 0;
  DiagonalUnit unit_;
};

// Where a warp's row of targets goes in shared memory: lane i has channel i / 4 of both columns of two pairs. In 16
// bits its lanes name column i / 8 of pair i % 8, and two channels are stored as a word.
template <typename T>
class DiagonalTargets {
 public:
  static __device__ int32_t pair(int32_t i) { return i; }  // that column i of a product is

  __device__ DiagonalTargets(const DiagonalBoxes& boxes, uint32_t targets, int32_t column, int32_t chunk) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    column += lane % 8 * kPairColumns + lane / 8 % 2;
    to_ = kept(targets + boxes.swizzled(column * boxes.pixel_bytes + chunk * kChunkBytes));
  }
  // So many bytes further on. Adds all zeros times their values to `not_finite`.
  __device__ uint32_t store(uint32_t offset, const float (&sum)[4], uint32_t not_finite) const {
    const uint32_t words[] = {pack2<T>(sum[0], sum[1]), pack2<T>(sum[2], sum[3])};
    ptx::stmatrix2(to_ + offset, words);
    return add_zeros<T>(words[1], add_zeros<T>(words[0], not_finite));
  }

 private:
  uint32_t to_;
};

// Of float32 one by one, of pairs that lie in different banks.
template <>
class DiagonalTargets<float> {
 public:
  static __device__ int32_t pair(int32_t i) { return i / 2 + i % 2 * (kPairs / 2); }

  __device__ DiagonalTargets(const DiagonalBoxes& boxes, uint32_t targets, int32_t column, int32_t chunk) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t at = column + pair(lane % 4 * 2 + i % 2) * kPairColumns + i / 2;
      to_[i] = kept(targets + boxes.swizzled(at * boxes.pixel_bytes + (chunk * kChunk + lane / 4) * 4));
    }
  }
  __device__ uint32_t store(uint32_t offset, const float (&sum)[4], uint32_t not_finite) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ptx::store_shared_float(to_[i] + offset, sum[i]);
      not_finite = add_zeros<float>(__float_as_uint(sum[i]), not_finite);
    }
    return not_finite;
  }

 private:
  uint32_t to_[4];
};

// Of a box of targets: the first, and those that exist, counted from it.
struct DiagonalRows {
  int32_t image, row;
  int32_t begin, end;
};

// Output and input gradient. Warps are chunks of channels, times runs of columns; all are at the same box or the next.
template <typename T, typename Line>
__global__ void __launch_bounds__(32 * kMostDiagonalWarps, Line::kConfig.warps / kMostDiagonalWarps)
    depthwise_diagonal_sm90(const __grid_constant__ DepthwiseDiagonalParams params,
                            const __grid_constant__ CUtensorMap source_map,
                            const __grid_constant__ CUtensorMap target_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ptx::follow_previous_kernel();
  constexpr DepthwiseDiagonalConfig kConfig = Line::kConfig;
  constexpr DepthwiseConfig kRows = kConfig.rows();
  constexpr int kSlots = kRows.slots(), kShift = kRows.shift(), kStageRows = kConfig.stage_rows();
  constexpr int kBoxRows = kConfig.box_rows, kBoxTargets = kConfig.box_targets(), kOperands = kConfig.operands();
  constexpr int kReads = kConfig.reads(), kSources = kConfig.sources();
  constexpr int kPlanes = kConfig.planes(), kPairPixels = kConfig.advance() / kPlanes;
  using Targets = DiagonalTargets<T>;
  static_assert(kBoxRows % kStageRows == 0);
  constexpr bool kStoresLate = kConfig.stores_late();
  static_assert(!kStoresLate || kConfig.ahead > 1);  // a box is asked for when the next one is there
  extern __shared__ uint8_t smem_raw[];
  const auto lane = static_cast<int32_t>(threadIdx.x % 32), warps = static_cast<int32_t>(blockDim.x / 32);
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x / 32), 0);
  Ring ring;
  ring.data = (ptx::smem_address(smem_raw) + 1023) & ~1023u;  // swizzling goes by absolute address
  ring.stage_bytes = params.boxes.stage_bytes, ring.stages = kConfig.ahead;
  const uint32_t targets = ring.data + ring.stages * ring.stage_bytes;
  const uint32_t target_box_bytes = kBoxTargets * params.boxes.target_row_bytes;
  ring.barriers = targets + params.boxes.targets_bytes;
  ring.init(warp, warps, lane, 1, warps);
  ptx::mbarrier_init_fence();
  __syncthreads();

  int32_t group, chunk;
  params.by_staged_chunks.divmod(warp, group, chunk);
  const DiagonalShare share(params, params.by_staged_chunks.div(warps));
  DiagonalLoads<kConfig> loads(params, source_map, share);
  const bool copies = warp == warps - 1 && lane == 0;
  const int32_t chunks = min(params.staged.chunks, params.chunks - share.chunk);
  if (copies) {
    // Filters come with the first box, to where targets will be: lanes want values far apart, one by one.
    const auto* filter = static_cast<const FilterBits<T>*>(params.filter) - params.first_tap_offset();
    const int32_t bytes = chunks * params.boxes.filter_bytes;
    ptx::mbarrier_expect(ring.full(), bytes);
    ptx::bulk_load(targets, filter + share.chunk * kChunk * params.filter_strides.n, bytes, ring.full());
    Ring stages = ring;
    for (int i = 0; i < kConfig.ahead; ++i, stages.next()) loads.next(stages);
  }

  // A warp without channels of its own computes the last ones', whose results are not stored.
  const int32_t own_chunk = min(chunk, chunks - 1);
  const FilterEpilogue<float> finish = Epilogue<T>(params.epilogue).of((share.chunk + own_chunk) * kChunk + lane / 4);
  const auto* filter = reinterpret_cast<const FilterBits<T>*>(smem_raw + (targets - ptx::smem_address(smem_raw)));
  uint32_t diagonals[kConfig.taps][kOperands][4];
  ring.wait_full();
  uint32_t not_finite = load_operands<T, kConfig>(params, filter + params.first_tap_offset(), own_chunk, diagonals);
  float none[4] = {};  // not const: nvcc takes no conditional of two kinds of arrays
  const uint32_t metadata = kept(diagonal_metadata());
  // Lane i names the pixel of a pair in piece i / 8 of each load.
  uint32_t from[kSources][kReads];
#pragma unroll
  for (int i = 0; i < kSources * kReads; ++i) {
    const int32_t piece = kReadPieces * (i % kReads) + lane / 8, position = piece / kConfig.pieces();
    const int32_t pair = kPairs * group + Targets::pair(lane % 8), source = i / kReads;
    const int32_t at = position % kPlanes * params.boxes.plane_bytes +
                       (position / kPlanes + kPairPixels * pair) * params.boxes.pixel_bytes +
                       (first_source<kConfig>(chunk) + source) * kConfig.chunk_bytes() +
                       piece % kConfig.pieces() * kPieceBytes;
    from[source][i % kReads] = kept(ring.data + params.boxes.swizzled(at));
  }
  const Targets to(params.boxes, targets, group * kDiagonalColumns, chunk);
  __syncthreads();  // all have their operands

  int32_t target_box = 0;
  // Stores a box of targets that all warps have written, each warp some of its rows. What a warp stored of the box
  // before has been read then.
  auto store_box = [&](const DiagonalRows& rows, int32_t place) {
    const uint32_t first = targets + place * target_box_bytes;
    for (int32_t i = warp; i < kBoxTargets; i += warps) {
      if (i < rows.begin || i >= rows.end) continue;
      ptx::tma_store(&target_map, first + i * params.boxes.target_row_bytes, share.chunk * kChunk, share.column,
                     rows.row + i, rows.image, 0);
    }
    ptx::bulk_commit();
    ptx::bulk_wait_read<1>();
  };
  DiagonalRows written{-1, 0, 0, 0};  // by this warp, not yet by all
  // By a warp that has begun with the next box, if there is one, so that it need not wait for the others, but has not
  // come to its targets, whose place is that of the last box but two.
  auto store_written = [&] {
    if (lane == 0 && written.image >= 0) {
      const Ring left = ring.previous();
      left.wait_left();
      store_box(written, (target_box > 0 ? target_box : kDiagonalTargetBoxes) - 1);
      if (copies) loads.next(left);
    }
    __syncwarp();
  };
#pragma unroll 1
  for (int32_t index = share.first_unit; index < params.units; index += params.shares) {
    const DiagonalUnit unit(kConfig, params, index);
    float sums[kSlots][4] = {};
#pragma unroll 1
    for (int32_t box = 0; box < unit.boxes; ++box) {
      const uint32_t target = target_box * target_box_bytes;
      // The targets that are done after a stage.
      auto store = [&](int stage, float (&done)[kShift][4]) {
#pragma unroll
        for (int i = 0; i < kShift; ++i) {
#pragma unroll
          for (float& sum : done[i]) sum = finish(sum);
          not_finite = to.store(target + (stage * kShift + i) * params.boxes.target_row_bytes, done[i], not_finite);
        }
      };
      ring.wait_full();
      if (box < unit.row_boxes) {
        uint32_t pixels[2][kSources][kReads][4];
        auto read = [&](int row) {
          const uint32_t at = ring.index * ring.stage_bytes + row * params.boxes.row_bytes();
#pragma unroll
          for (int i = 0; i < kSources * kReads; ++i) {
            ptx::ldmatrix4<false>(from[i / kReads][i % kReads] + at, pixels[row % 2][i / kReads][i % kReads]);
          }
        };
        float done[kShift][4];
        read(0);
        // Between a row's products the next one is read, and the targets are stored that the one before completed.
#pragma unroll
        for (int row = 0; row < kBoxRows; ++row) {
          const int a = row % kStageRows;
          if (row + 1 < kBoxRows) read(row + 1);
#pragma unroll
          for (int i = 0; i < kOperands; ++i) {
#pragma unroll
            for (int slot = 0; slot < kSlots; ++slot) {
              // At a stage's begin the oldest targets are done, and the others move up.
              const int old = slot + (a == 0 && i == 0 ? kShift : 0), r = kRows.row_tap(slot, a);
              const float (&sum)[4] = old < kSlots ? sums[old] : none;
              if (r < kConfig.taps) {
                multiply_pixels<T, kConfig>(i, diagonals[r][i], pixels[row % 2], metadata, sum, sums[slot]);
              } else if (old != slot) {
                copy_sums(sum, sums[slot]);
              }
            }
            if (i == 0 && row > 0 && (row - 1) % kStageRows == kRows.last_row()) store((row - 1) / kStageRows, done);
          }
          if (kStoresLate && row == 0) store_written();
          if (a != kRows.last_row()) continue;
#pragma unroll
          for (int i = 0; i < kShift; ++i) copy_sums(sums[i], done[i]);
        }
        if (kRows.last_row() == kStageRows - 1) store(kBoxRows / kStageRows - 1, done);
      } else {
        if (kStoresLate) store_written();
#pragma unroll
        for (int stage = 0; stage < kConfig.box_stages(); ++stage) {
#pragma unroll
          for (int slot = 0; slot < kSlots; ++slot) {
            copy_sums(slot + kShift < kSlots ? sums[slot + kShift] : none, sums[slot]);
          }
          float done[kShift][4];
#pragma unroll
          for (int i = 0; i < kShift; ++i) copy_sums(sums[i], done[i]);
          store(stage, done);
        }
      }
      ptx::async_proxy_fence();
      const int32_t output = unit.output + box * kBoxTargets;
      const DiagonalRows rows{unit.image, unit.row + output, -output, unit.outputs - output};
      if constexpr (kStoresLate) {
        written = rows;
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(ring.empty());
      } else {
        __syncthreads();
        if (lane == 0) {
          store_box(rows, target_box);
          if (copies) loads.next(ring);
        }
        __syncwarp();
      }
      ring.next();
      target_box = target_box + 1 == kDiagonalTargetBoxes ? 0 : target_box + 1;
    }
  }
  if (kStoresLate) store_written();
  if (lane == 0) ptx::bulk_wait();
  __syncthreads();
  if (!__any_sync(0xffffffffu, not_finite != 0) || share.chunk + chunk >= params.chunks) return;
  // By definition: a zero beside the diagonals, or a row of padding, has met an infinity or NaN.
  for (int32_t index = share.first_unit; index < params.units; index += params.shares) {
    const DiagonalUnit unit(kConfig, params, index);
    compute_by_definition<T, kConfig>(params, unit.image, share.chunk + chunk, unit.row, unit.row + unit.outputs,
                                      share.column + (group * kPairs + lane / 4) * kPairColumns);
  }
#endif
}

}  // namespace fastconv
