// Depthwise convolution of 16-bit elements, and of narrow groups, by products with diagonal matrices for sm_90a: as
// depthwise_diagonal, but the copy engine brings rows of the source in boxes and stores those of targets, so that a
// warp multiplies a few rows without a pause.
#pragma once

#include "fastconv/kernels/depthwise_diagonal.cuh"
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
  __device__ DiagonalLoads(const DepthwiseDiagonalParams& params, const CUtensorMap& map, const DiagonalShare& share,
                           const Ring& ring)
      : params_(params),
        map_(map),
        ring_(ring),
        channel_(share.chunk * kChunk),
        column_(params.first_w + share.column / kPairColumns * kConfig.advance()),
        index_(share.first_unit),
        unit_(kConfig, params, index_) {}

  __device__ void next() {
    if (index_ >= params_.units) return;
    if (box_ < unit_.row_boxes) {
      const DiagonalBoxes& boxes = params_.boxes;
      constexpr int kAdvance = kConfig.advance();
      ptx::mbarrier_arrive_expect(ring_.full(), kAdvance * kConfig.box_rows * boxes.row_bytes());
#pragma unroll 1
      for (int a = 0; a < kAdvance; ++a) {
        ptx::tma_load(ring_.stage() + a * boxes.plane_bytes, &map_, channel_, column_ + a,
                      unit_.source_row + box_ * kConfig.box_rows, unit_.image, 0, ring_.full());
      }
    } else {
      ptx::mbarrier_arrive(ring_.full());
    }
    ring_.next();
    if (++box_ < unit_.boxes) return;
    box_ = 0, index_ += params_.shares;
    unit_ = DiagonalUnit(kConfig, params_, index_);
  }

 private:
  const DepthwiseDiagonalParams& params_;
  const CUtensorMap& map_;
  Ring ring_;
  int32_t channel_, column_;
  int32_t index_, box_ = 0;
  DiagonalUnit unit_;
};

// Output and input gradient of stride 1. Warps are chunks of channels, times runs of columns; all are at the same box.
template <typename T, typename Line>
__global__ void __launch_bounds__(32 * kMostDiagonalWarps, Line::kConfig.warps / kMostDiagonalWarps)
    depthwise_diagonal_sm90(const __grid_constant__ DepthwiseDiagonalParams params,
                            const __grid_constant__ CUtensorMap source_map,
                            const __grid_constant__ CUtensorMap target_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ptx::follow_previous_kernel();
  constexpr DepthwiseDiagonalConfig kConfig = Line::kConfig;
  constexpr DepthwiseConfig kRows = kConfig.rows();
  constexpr int kSlots = kRows.slots(), kBoxRows = kConfig.box_rows, kOperands = kConfig.operands();
  constexpr int kReads = kConfig.reads(), kSources = kConfig.sources();
  constexpr int kAdvance = kConfig.advance();
  static_assert(!kConfig.transposed() && kConfig.stride == 1 && kSlots == kConfig.taps);
  extern __shared__ uint8_t smem_raw[];
  const auto lane = static_cast<int32_t>(threadIdx.x % 32), warps = static_cast<int32_t>(blockDim.x / 32);
  const int32_t warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x / 32), 0);
  Ring ring;
  ring.data = (ptx::smem_address(smem_raw) + 1023) & ~1023u;  // swizzling goes by absolute address
  ring.stage_bytes = params.boxes.stage_bytes, ring.stages = kConfig.ahead;
  const uint32_t targets = ring.data + ring.stages * ring.stage_bytes;
  const uint32_t target_box_bytes = kBoxRows * params.boxes.target_row_bytes;
  ring.barriers = targets + kDiagonalTargetBoxes * target_box_bytes;
  ring.init(warp, warps, lane, 1, 1);
  ptx::mbarrier_init_fence();
  __syncthreads();

  int32_t group, chunk;
  params.by_staged_chunks.divmod(warp, group, chunk);
  const DiagonalShare share(params, params.by_staged_chunks.div(warps));
  DiagonalLoads<kConfig> loads(params, source_map, share, ring);
  const bool copies = warp == warps - 1 && lane == 0;
  for (int i = 0; copies && i < kConfig.ahead; ++i) loads.next();

  // A warp without channels of its own computes the last ones', whose results are not stored.
  const int32_t own_chunk = min(share.chunk + chunk, params.chunks - 1);
  uint32_t diagonals[kConfig.taps][kOperands][4];
  uint32_t not_finite = load_operands<T, kConfig>(params, own_chunk, diagonals);
  const auto* biases = static_cast<const T*>(params.bias);
  const float bias = kept(biases != nullptr ? widen(biases[own_chunk * kChunk + lane / 4]) : 0.f);
  float none[4] = {bias, bias, bias, bias};
  const uint32_t metadata = kept(diagonal_metadata());
  // Lane i names the pixel of pair i % 8 in position i / 8 of each load; and of targets column i / 8 of pair i % 8.
  uint32_t from[kSources][kReads];
#pragma unroll
  for (int i = 0; i < kSources * kReads; ++i) {
    const int32_t position = kReadPositions * (i % kReads) + lane / 8;
    const int32_t pixel = position / kAdvance + kPairs * group + lane % 8, source = i / kReads;
    const int32_t at = position % kAdvance * params.boxes.plane_bytes + pixel * params.boxes.pixel_bytes +
                       (first_source<kConfig>(chunk) + source) * kChunkBytes;
    from[source][i % kReads] = kept(ring.data + params.boxes.swizzled(at));
  }
  const int32_t column = (group * kPairs + lane % 8) * kPairColumns + lane / 8 % 2;
  const uint32_t to = kept(targets + params.boxes.swizzled(column * params.boxes.pixel_bytes + chunk * kChunkBytes));

  int32_t target_box = 0;
#pragma unroll 1
  for (int32_t index = share.first_unit; index < params.units; index += params.shares) {
    const DiagonalUnit unit(kConfig, params, index);
    float sums[kSlots][4];
#pragma unroll
    for (auto& slot : sums) copy_sums(none, slot);
#pragma unroll 1
    for (int32_t box = 0; box < unit.boxes; ++box) {
      const uint32_t target = target_box * target_box_bytes;
      auto store = [&](int row, const float (&sum)[4]) {
        const uint32_t words[] = {pack2<T>(sum[0], sum[1]), pack2<T>(sum[2], sum[3])};
        not_finite = add_zeros<T>(words[0], not_finite);
        not_finite = add_zeros<T>(words[1], not_finite);
        ptx::stmatrix2(to + (target + row * params.boxes.target_row_bytes), words);
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
        float last[4];
        read(0);
        // Between a row's products the next one is read, and the targets are stored that the one before completed.
#pragma unroll
        for (int row = 0; row < kBoxRows; ++row) {
          if (row + 1 < kBoxRows) read(row + 1);
#pragma unroll
          for (int i = 0; i < kOperands; ++i) {
#pragma unroll
            for (int slot = 0; slot < kSlots; ++slot) {
              const int old = slot + (i == 0);  // the oldest targets are done, and the others move up
              const float (&sum)[4] = old < kSlots ? sums[old] : none;
              multiply_pixels<T, kConfig>(i, diagonals[kRows.row_tap(slot, 0)][i], pixels[row % 2], metadata, sum,
                                          sums[slot]);
            }
            if (i == 0 && row > 0) store(row - 1, last);
          }
          copy_sums(sums[0], last);
        }
        store(kBoxRows - 1, last);
      } else {
#pragma unroll
        for (int row = 0; row < kBoxRows; ++row) {
#pragma unroll
          for (int slot = 0; slot < kSlots; ++slot) copy_sums(slot + 1 < kSlots ? sums[slot + 1] : none, sums[slot]);
          store(row, sums[0]);
        }
      }
      ptx::async_proxy_fence();
      __syncthreads();
      if (lane == 0) {
        for (int32_t row = warp; row < kBoxRows; row += warps) {
          const int32_t output = unit.output + box * kBoxRows + row;
          if (output < 0 || output >= unit.outputs) continue;
          ptx::tma_store(&target_map, targets + target + row * params.boxes.target_row_bytes, share.chunk * kChunk,
                         share.column, unit.row + output, unit.image, 0);
        }
        ptx::bulk_commit();
        ptx::bulk_wait_read<1>();  // the box before: the one after the next takes its place
        if (copies) loads.next();
      }
      __syncwarp();
      ring.next();
      target_box = target_box + 1 == kDiagonalTargetBoxes ? 0 : target_box + 1;
    }
  }
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
