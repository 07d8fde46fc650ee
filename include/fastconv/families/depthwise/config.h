// What of a depthwise kernel is fixed when it is compiled, what is chosen for each problem, and which filter taps meet.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "fastconv/core/problem.h"

namespace fastconv {

// A window of the source slides over the filter (fprop; dgrad of stride 1, its taps turned round); dgrad of a stride;
// wgrad.
enum class DepthwiseKind : int8_t { kSliding, kTransposed, kWeights };

// What neighbouring threads take: columns of an image (NCHW), or channels (channels_last).
enum class Lanes : int8_t { kColumns, kChannels };

struct DepthwiseConfig {
  DepthwiseKind kind;
  int32_t taps;    // rows of the filter
  int32_t stride;  // in both dimensions
  Lanes lanes;
  int32_t vector;   // columns or channels of an access; of a transposed one's source, columns over the stride
  int32_t columns;  // of a thread: of the target's, for kWeights of dy's
  int32_t ahead;    // rows of the source that are on their way while one is multiplied; 0: see DepthwiseStages
  int32_t unroll;   // shifts in a loop's body: the more the fewer moves, until it does not fit the instruction cache
  // Columns of the filter; of column vectors the padding; and of the target's accesses, where its rows begin at smaller
  // multiples than the source's.
  int32_t taps_w = taps, padding_w = (taps_w - 1) / 2, target_vector = vector;

  // The same with columns in place of rows: what follows counts either.
  constexpr DepthwiseConfig across() const {
    DepthwiseConfig config = *this;
    config.taps = taps_w;
    return config;
  }
  constexpr bool computes(Pass pass) const {
    switch (pass) {
      case Pass::kFprop: return kind == DepthwiseKind::kSliding;
      case Pass::kDgrad: return transposed() || (kind == DepthwiseKind::kSliding && stride == 1);
      case Pass::kWgrad: return kind == DepthwiseKind::kWeights;
    }
    return false;
  }
  constexpr bool transposed() const { return kind == DepthwiseKind::kTransposed; }
  // Whether TMA brings the rows of a block's source to shared memory; otherwise each thread reads its own.
  constexpr bool staged() const { return ahead == 0; }
  // Source columns from those of a thread to its neighbour's.
  constexpr int32_t source_columns() const { return transposed() ? columns / stride : columns * stride; }
  // Whether accesses are runs of columns. They begin at multiples of their size, so their padding is fixed as well.
  constexpr bool column_vectors() const { return lanes == Lanes::kColumns && vector > 1; }
  constexpr int32_t channels() const { return lanes == Lanes::kChannels ? vector : 1; }

  // A thread's outputs and the source rows (or columns) that they see, each counted from its first one:
  //   sliding     output i meets row a at tap a - i * stride;
  //   transposed  output i, where outputs begin at a multiple of the stride, has the phase (i + padding) % stride;
  //               modulo the stride the padding is half the filter.
  constexpr int32_t phase() const { return transposed() ? (taps - 1) / 2 % stride : 0; }
  // Transposed: source rows before that of an output whose tap is its phase.
  constexpr int32_t before() const { return transposed() ? (taps - 1 - phase()) / stride : 0; }
  // The first source row, where the first output is row 0; `padding` of a convolution that slides.
  constexpr int32_t first(int32_t padding) const {
    return transposed() ? (padding - phase()) / stride - before() : -padding;
  }
  FASTCONV_HOST_DEVICE constexpr int32_t seen(int32_t outputs) const {
    return transposed() ? (outputs - 1 + phase()) / stride + before() + 1 : (outputs - 1) * stride + taps;
  }
  // Of columns.
  constexpr int32_t tap(int32_t output, int32_t column) const {
    return transposed() ? output + phase() + stride * (before() - column) : column - output * stride;
  }
  constexpr bool meets(int32_t output, int32_t column) const {
    return tap(output, column) >= 0 && tap(output, column) < taps;
  }

  // Rows pass one by one, and a thread holds the outputs that meet them in slots, the oldest in slot 0. Every
  // rows_a_shift() rows it is done with the first shift() of them, and the others move up.
  constexpr int32_t slots() const { return transposed() ? taps : (taps + stride - 1) / stride; }
  constexpr int32_t shift() const { return transposed() ? stride : 1; }
  constexpr int32_t rows_a_shift() const { return transposed() ? 1 : stride; }
  // The tap at which the slot's output meets row `row` after a shift; `taps` or more if it does not.
  constexpr int32_t row_tap(int32_t slot, int32_t row) const {
    return transposed() ? slot : row + stride * (slots() - 1 - slot);
  }
  // After which of those rows the first slots are done.
  constexpr int32_t last_row() const { return transposed() ? 0 : (taps - 1) % stride; }
  // The output in slot 0 after the first shift.
  constexpr int32_t first_output() const { return transposed() ? -stride * before() - phase() : 1 - slots(); }
};

// Of a block: for the weight gradient all, otherwise at most.
inline constexpr int32_t kDepthwiseThreads = 128;

// How a thread reads a row of `columns` columns: whole vectors, and where these begin at multiples of their size a
// shorter access before and after them.
struct RowAccesses {
  int32_t vector;                // elements of a whole access
  int32_t lead, whole, tail;     // columns that are wanted; `whole`: accesses
  int32_t lead_read, tail_read;  // elements that are read: a power of two

  static constexpr RowAccesses of(const DepthwiseConfig& config, int32_t columns, int32_t vector, int32_t first) {
    if (!config.column_vectors()) return {config.vector, 0, columns, 0, 0, 0};
    auto read = [](int32_t wanted) {
      return wanted == 0 ? 0 : static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(wanted)));
    };
    const int32_t lead = (-first % vector + vector) % vector, tail = (columns - lead) % vector;
    return {vector, lead, (columns - lead) / vector, tail, read(lead), read(tail)};
  }
  // Threads begin at multiples of a vector in the source, too.
  static constexpr RowAccesses source(const DepthwiseConfig& config) {
    const int32_t vector = config.transposed() ? config.vector / config.stride : config.vector;
    return of(config, config.across().seen(config.columns), vector, config.across().first(config.padding_w));
  }
  static constexpr RowAccesses target(const DepthwiseConfig& config) {
    return of(config, config.columns, config.target_vector, 0);
  }
  constexpr int32_t count() const { return (lead > 0) + whole + (tail > 0); }
  constexpr int32_t elements() const { return lead_read + whole * vector + tail_read; }
};

// Whether rows wait in shared memory, where they take no registers. An access copies 4 bytes at least; rows of columns
// are few accesses of several sizes, which took longer that way.
constexpr bool rows_in_smem(const DepthwiseConfig& config, int32_t size) {
  return config.lanes == Lanes::kChannels && config.vector * size >= 4;
}
// Of a block's rows that are on their way, and the one that is multiplied.
constexpr int32_t depthwise_ring_bytes(const DepthwiseConfig& config, int32_t size) {
  if (!rows_in_smem(config, size)) return 0;
  int32_t elements = RowAccesses::source(config).elements();
  if (config.kind == DepthwiseKind::kWeights) elements += RowAccesses::target(config).elements();
  return (config.ahead + 1) * elements * size * kDepthwiseThreads;
}

// Rows of a source that TMA brings to shared memory: a box of a few rows, of all of a block's columns and
// channels, is a stage of a ring. In NCHW [channel][row][column], in channels_last [row][column][channel]; a warp's
// lanes have neighbouring channels there.
struct DepthwiseStages {
  int32_t rows, columns, channels;          // of a box
  int32_t row_bytes, channel_bytes, bytes;  // from one to the next; the last: of stages
  int32_t box_bytes;
  int32_t count;
};
inline constexpr int32_t kDepthwiseBarrierBytes = 128;  // before the stages
inline constexpr int32_t kStagedLanes = 32;             // of channels, so that columns lie fixed bytes apart

// A block's threads: channels (or runs of `vector` channels) times tiles of `columns` columns times runs of rows. For
// the weight gradient only channels; the other threads share the tiles.
struct DepthwiseTiling {
  int32_t run_rows;  // of outputs, that pass through one thread
  int32_t channels, columns, runs;
};

}  // namespace fastconv
