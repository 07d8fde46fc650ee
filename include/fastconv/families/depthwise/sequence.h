// Depthwise convolution along one dimension: filters of one row, or one column, as 1-D layers have them. A sequence is
// what one channel has along it. A warp stages segments of a channel's sequences, one after the other, each in a row of
// shared memory, while it multiplies the one before; where channels lie side by side, the warps of a block stage pixels
// of all its channels together. A dilation's strands follow each other in a row, so that windows have no gaps:
//   target[i] = sum over t of row[lead + i + t] * taps[t], for i in the order of the row.
// Few taps of a dilation of whole pieces are multiplied where they lie instead, with gaps. A stride has the positions
// of the larger tensor: those of the smaller are spread over them, zeros between, or alone are stored.
// Plain C++ as well as CUDA.
#pragma once

#include <cstdint>

#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"
#include "fastconv/families/depthwise/config.h"
#include "fastconv/families/depthwise/tensors.h"

namespace fastconv {

// Of an access, at most: so many bytes of a sequence, or of channels.
inline constexpr int32_t kSequencePieceBytes = 16;
inline constexpr int32_t kSequenceBand = 8;     // targets that one band of taps is for, as in banded.h
inline constexpr int32_t kSequenceBefore = 16;  // zeros before the first tap, which a band may begin with
inline constexpr int32_t kSequenceLags = 16;    // float32: taps whose gradients a lane adds up
inline constexpr int32_t kSequenceRun = 8;      // multiply-adds: targets of a lane, one after the other
inline constexpr int32_t kSequenceGaps = 8;     // most taps with gaps between

struct DepthwiseSequenceConfig {
  DepthwiseKind kind;  // kSliding or kWeights
  int32_t steps;       // products of a tile by tensor cores; 0: multiply-adds
  int32_t threads;     // of a block
  int32_t bytes;       // of an element
  bool gaps;           // between taps

  constexpr bool tensor() const { return steps > 0; }
  constexpr bool weights() const { return kind == DepthwiseKind::kWeights; }
  constexpr bool computes(Pass pass) const { return weights() == (pass == Pass::kWgrad); }
  constexpr int32_t blocks() const { return (weights() ? 3 : 4) - (steps < 8 ? 0 : 1); }  // of an SM: registers
  constexpr int32_t piece() const { return kSequencePieceBytes / bytes; }
  // Targets that a warp multiplies at once.
  constexpr int32_t tile() const { return tensor() && !weights() ? 128 : 256; }
  // Most taps. A band begins at a multiple of 16 bytes, and has a column of taps for each target; the sums of the
  // weight gradient have 16 rows, each a column further on.
  constexpr int32_t most_taps() const {
    if (!tensor()) return gaps ? kSequenceGaps : 128;
    return weights() ? kSequenceBand * steps - 15 - (piece() - 1) : 16 * steps - (kSequenceBand - 1) - (piece() - 1);
  }
  // Elements that a tile reads after its last target's: `taps` with what is before them.
  constexpr int32_t window(int32_t taps) const {
    if (tensor()) return weights() ? kSequenceBand * steps : 16 * steps + piece();
    if (gaps) return piece();
    const int32_t run = taps + piece() - 1;
    return kSequenceRun + (weights() ? kSequenceLags << lag_groups_log2(run) : (run + piece() - 1) / piece() * piece());
  }
  // Float32 weights: lanes that share positions, each with so many taps.
  static FASTCONV_HOST_DEVICE constexpr int32_t lag_groups_log2(int32_t taps) {
    int32_t log2 = 0;
    while (kSequenceLags << log2 < taps) ++log2;
    return log2;
  }
  // Where element i of a row lies: lanes that read 16 bytes a whole number of these apart find them in other banks.
  constexpr bool skips() const { return !tensor() || weights(); }
  FASTCONV_HOST_DEVICE constexpr int32_t place(int32_t i) const {
    return skips() ? i + i / (8 * piece()) * piece() : i;
  }
  // Floats of a warp's sums that are added up at the end.
  constexpr int32_t sums() const { return weights() && tensor() ? 16 * (kSequenceBand * steps + 1) : 0; }
};

struct DepthwiseSequenceTiling {
  int32_t rows;     // channels of a block
  int32_t segment;  // targets of a sequence that a block has at once
  int32_t slices;   // of the segments, by so many blocks
};

// One of the two tensors.
struct SequenceTensor {
  int64_t image, row, channel, step;  // strides; row: from a sequence of a channel's image to the next
  int32_t length;
  int32_t spread;  // positions from an element to the next: of the smaller tensor the stride
  // Elements of an access, which exist all or none: of a sequence or, where `inner`, of channels that lie side by side.
  int32_t piece;
  bool inner;

  // Positions from the first element to the last.
  FASTCONV_HOST_DEVICE int32_t extent() const { return length > 0 ? (length - 1) * spread + 1 : 0; }
};

struct DepthwiseSequenceParams : DepthwiseTensors {
  SequenceTensor from, to;
  int64_t filter_step;
  int32_t taps, padding, channels;
  int32_t rows, segment;
  int32_t chunks_log2;         // of pieces of channels that a block has
  int32_t lead;                // where position `first` of the source lies in a row
  int32_t skipped;             // positions before `first` with which the first piece begins
  int32_t strand;              // from a strand to the next in a row
  int32_t count;               // targets of a strand
  int32_t targets;             // of a row, with what lies between strands
  int32_t extent;              // of a row, in elements that are staged
  int32_t pitch;               // from a row to the next
  int32_t taps_pitch;          // the same of taps
  int32_t target_at;           // weights: rows of dy, after all of the source
  bool words;                  // whether targets can be stored two at a time
  bool pixels;                 // staged by all warps together
  int32_t buffers;             // of rows: 2, unless pixels
  int32_t lag_groups_log2;     // float32 weights: lanes that share positions
  int32_t units, slice_units;  // segments of a channel; and of a slice
  int32_t reach;               // positions from a tap to the next
  int32_t gap;                 // and elements of a row
  FastDivmod dilation, by_strand, stride;
  FastDivmod by_segments, by_rows, by_channels;

  // Elements that the source's segment has.
  FASTCONV_HOST_DEVICE int32_t span() const { return segment + (taps - 1) * reach; }
};

// A segment of one image's sequences.
struct SequenceUnit {
  int32_t image, row, first;  // the latter: of the targets

  FASTCONV_HOST_DEVICE SequenceUnit(const DepthwiseSequenceParams& params, int32_t index) {
    params.by_segments.divmod(index, index, first);
    params.by_rows.divmod(index, image, row);
    first *= params.segment;
  }
};

// Position q of a segment lies in its strand; -1 beyond it.
FASTCONV_HOST_DEVICE int32_t sequence_index(const DepthwiseSequenceParams& params, int32_t position) {
  int32_t in_strand, strand;
  params.dilation.divmod(position, in_strand, strand);
  return strand * params.strand + in_strand;
}
// And back: what lies at an index, at most `count` positions of a strand, or -1.
FASTCONV_HOST_DEVICE int32_t sequence_position(const DepthwiseSequenceParams& params, int32_t index, int32_t count) {
  int32_t strand, in_strand;
  params.by_strand.divmod(index, strand, in_strand);
  const auto strands = static_cast<int32_t>(params.dilation.divisor);
  return strand < strands && in_strand < count ? strand + strands * in_strand : -1;
}

}  // namespace fastconv
