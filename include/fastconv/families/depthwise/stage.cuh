// Rows of a depthwise block's tensors, which TMA brings to shared memory for all its threads: boxes of a
// few rows, in a ring, with zeros where there is no pixel.
#pragma once

#include <cuda.h>

#include "fastconv/families/depthwise/rows.cuh"
#include "fastconv/ptx/tma.cuh"
#include "fastconv/tile/ring.cuh"

namespace fastconv {

// source.copy(smem, box, barrier) begins the copies of a box, of source.box_bytes(), to a stage of stage_bytes().
template <typename Source>
class StagedBoxes {
 public:
  __device__ StagedBoxes(const Source& source, int32_t boxes, uint32_t smem) : source_(source), boxes_(boxes) {
    ring_.barriers = smem, ring_.data = smem + kDepthwiseBarrierBytes;
    ring_.stage_bytes = source.stage_bytes(), ring_.stages = source.params.stages.count;
    const auto warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
    ring_.init(warp, warps, threadIdx.x % 32, 1, warps);
    ptx::mbarrier_init_fence();
    __syncthreads();
    begun_ = min(ring_.stages, boxes);
    if (threadIdx.x == 0) {
      for (int i = 0; i < begun_; ++i) copy(i, i);
    }
  }
  // Those after so many are not needed.
  __device__ void limit(int32_t boxes) { boxes_ = min(boxes_, boxes); }

  // Waits for the first one, or the next one; all warps go through all boxes.
  __device__ uint32_t first() const {
    ring_.wait_full();
    return ring_.stage();
  }
  __device__ uint32_t next() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ring_.empty());
    // Into the stage before that one, which the other warps have mostly left by now.
    const int before = ring_.index == 0 ? ring_.stages - 1 : ring_.index - 1;
    if (threadIdx.x == 0 && box_ > 0 && begun_ < boxes_) {
      ptx::mbarrier_wait(ring_.barriers + 16 * before + 8, ring_.parity ^ (ring_.index == 0));
      copy(before, begun_++);
    }
    ring_.next();
    ++box_;
    return first();
  }
  // No copy outlives the block, nor the use of its memory.
  __device__ void drain() {
    if (threadIdx.x != 0) return;
    while (++box_ < begun_) {
      ring_.next();
      ring_.wait_full();
    }
  }

 private:
  __device__ void copy(int stage, int32_t box) const {
    const uint32_t full = ring_.barriers + 16 * stage;
    ptx::mbarrier_arrive_expect(full, source_.box_bytes());
    source_.copy(ring_.data + stage * ring_.stage_bytes, box, full);
  }

  const Source& source_;
  Ring ring_;
  int32_t boxes_, box_ = 0, begun_;  // all, the one that is read, and copies begun
};

// `kCount` columns of a staged row.
template <typename T, DepthwiseConfig kConfig, int kCount, RowAccesses kRead>
struct StagedColumns : RowColumns<T, kConfig, kCount, kRead> {
  using Base = RowColumns<T, kConfig, kCount, kRead>;
  static constexpr int kColumnBytes = staged_column_bytes(kConfig, sizeof(T));

  __device__ static void read(uint32_t address, typename Base::Row& values) {
    Base::widen_row(Base::template read_columns<kColumnBytes>(address), values);
  }
};

// A box of the tensor, with the block's first channel and these columns, from a row on.
template <DepthwiseConfig kConfig>
__device__ __forceinline__ void copy_box(uint32_t smem, const CUtensorMap& map, const DepthwisePlace& block,
                                         int32_t column, int32_t row, uint32_t barrier) {
  if constexpr (kConfig.lanes == Lanes::kChannels) {
    ptx::tma_load(smem, &map, block.channel, column, row, block.image, 0, barrier);
  } else {
    ptx::tma_load(smem, &map, column, row, block.channel, block.image, 0, barrier);
  }
}

// What the outputs of a block see; all its threads have the same rows.
template <typename T, DepthwiseConfig kConfig>
class StagedSource {
 public:
  using Columns = StagedColumns<T, kConfig, kConfig.across().seen(kConfig.columns), RowAccesses::source(kConfig)>;
  using Row = typename Columns::Row;

  __device__ StagedSource(const DepthwiseParams& params, const DepthwisePlace& at, const CUtensorMap& map)
      : params(params),
        // A thread without a channel or column of its own reads the first one's.
        offset(staged_offset(kConfig, params, sizeof(T), at.exists ? at : block(), block())),
        map_(map),
        row_(params.h.source(at.row)) {}
  // The block's first one.
  __device__ int32_t channel() const { return block().channel; }
  __device__ int32_t rows_before() const { return max(0, -row_); }
  __device__ int32_t rows_until_end() const { return max(0, params.h.source_extent - row_); }

  __device__ int32_t stage_bytes() const { return params.stages.bytes; }
  __device__ int32_t box_bytes() const { return params.stages.box_bytes; }
  __device__ void copy(uint32_t smem, int32_t box, uint32_t barrier) const {
    const DepthwisePlace first = block();
    copy_box<kConfig>(smem, map_, first, staged_column(kConfig, params, sizeof(T), first),
                      row_ + box * params.stages.rows, barrier);
  }

  const DepthwiseParams& params;
  const int32_t offset;  // of the thread's first column and channel in a stage

 private:
  // The place of its first thread. Worked out for each copy, as one thread has them and all have registers.
  __device__ DepthwisePlace block() const { return depthwise_place(kConfig, params, blockIdx.x, 0); }

  const CUtensorMap& map_;
  int32_t row_;
};

// Its rows one after the other.
template <typename T, DepthwiseConfig kConfig>
class StagedRows {
  using Source = StagedSource<T, kConfig>;

 public:
  // Copies begin, of no more than so many rows.
  __device__ StagedRows(const Source& source, int32_t rows, uint32_t smem)
      : boxes_(source, boxes(source, rows), smem) {}
  __device__ void begin(const Source& source, int32_t first, int32_t end) {
    boxes_.limit(boxes(source, end));
    enter(source, boxes_.first());
    for (; first > left_; first -= source.params.stages.rows) enter(source, boxes_.next());
    at_ += first * source.params.stages.row_bytes;
    left_ -= first;
  }
  __device__ void pop(const Source& source, typename Source::Row& values) {
    if (left_ == 0) enter(source, boxes_.next());
    Source::Columns::read(at_, values);
    at_ += source.params.stages.row_bytes;
    --left_;
  }
  __device__ void drain() { boxes_.drain(); }

 private:
  __device__ static int32_t boxes(const Source& source, int32_t rows) {
    return (rows + source.params.stages.rows - 1) / source.params.stages.rows;
  }
  __device__ void enter(const Source& source, uint32_t stage) {
    at_ = stage + source.offset;
    left_ = source.params.stages.rows;
  }

  StagedBoxes<Source> boxes_;
  uint32_t at_;
  int32_t left_;  // rows of the box
};

// Of the weight gradient: patches of all of an image's rows and some columns, of x and of dy, in which each warp has a
// tile. A box has a few rows of dy and, behind them, the stride times as many of x.
template <typename T, DepthwiseConfig kConfig>
class StagedPatches {
  using Source = StagedColumns<T, kConfig, kConfig.across().seen(kConfig.columns), RowAccesses::source(kConfig)>;
  using Gradient = StagedColumns<T, kConfig, kConfig.columns, RowAccesses::target(kConfig)>;

 public:
  using SourceRow = typename Source::Row;
  using GradientRow = typename Gradient::Row;

  __device__ StagedPatches(const DepthwiseParams& params, int32_t channel, int32_t first, const CUtensorMap& source_map,
                           const CUtensorMap& target_map)
      : params(params), source_map_(source_map), target_map_(target_map), channel_(channel), first_(first) {}

  __device__ int32_t stage_bytes() const { return params.stages.bytes + params.target_stages.bytes; }
  __device__ int32_t box_bytes() const { return params.stages.box_bytes + params.target_stages.box_bytes; }
  __device__ void copy(uint32_t smem, int32_t box, uint32_t barrier) const {
    const int32_t patch = box / params.patch_boxes, part = box - patch * params.patch_boxes;
    const DepthwisePlace block = depthwise_patch(params, channel_, first_ + patch);
    copy_box<kConfig>(smem, target_map_, block, block.column, part * params.target_stages.rows, barrier);
    copy_box<kConfig>(smem + params.target_stages.bytes, source_map_, block,
                      staged_column(kConfig, params, sizeof(T), block), params.h.source(0) + part * params.stages.rows,
                      barrier);
  }

  // Of the warp's tile; a warp without one has the last.
  __device__ void read_gradient(uint32_t stage, int32_t row, GradientRow& values) const {
    const int32_t column = tile() * kConfig.columns * Gradient::kColumnBytes;
    Gradient::read(stage + column + lane_bytes() + row * params.target_stages.row_bytes, values);
  }
  __device__ void read_source(uint32_t stage, int32_t row, SourceRow& values) const {
    const int32_t column = tile() * kConfig.source_columns() * Source::kColumnBytes;
    Source::read(stage + params.target_stages.bytes + column + lane_bytes() + row * params.stages.row_bytes, values);
  }

  const DepthwiseParams& params;

 private:
  __device__ int32_t tile() const { return min32(static_cast<int32_t>(threadIdx.x) / 32, params.tiling.columns - 1); }
  __device__ static int32_t lane_bytes() {
    return static_cast<int32_t>(threadIdx.x) % 32 * kConfig.vector * static_cast<int32_t>(sizeof(T));
  }

  const CUtensorMap &source_map_, &target_map_;
  int32_t channel_;
  int32_t first_;  // patch
};

}  // namespace fastconv
