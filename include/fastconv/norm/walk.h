// How blocks go through a tensor of images: threads keep their channels, and neighbours read neighbours.
#pragma once

#include <cstdint>

#include "fastconv/core/activation.h"
#include "fastconv/core/fast_divmod.h"
#include "fastconv/core/problem.h"
#include "fastconv/planner/device_spec.h"

namespace fastconv {

// Images without gaps, at multiples of 16 bytes.
struct NormProblem {
  DType dtype;
  bool channels_last;
  int64_t n, c, pixels;

  int64_t elements() const { return n * c * pixels; }
  int64_t of_channel() const { return n * pixels; }
};

inline constexpr int kNormThreads = 256;
inline constexpr int kNormBlocks = 3;  // that an SM has room for, if it has the shared memory
inline constexpr int kNormVectorBytes = 16;
inline constexpr int kNormRingVectors = 8;  // of a thread in shared memory

// What a thread reads at once: 16 bytes of one channel's elements or of several channels', or, where vectors do not
// begin and end with a tile's channels, as many elements of one channel that lie apart, so that neighbours still read
// neighbours.
enum class NormReads { kChannel, kChannels, kApart };

// The tensor as rows that repeat their channels: runs of pixels' channels in channels_last, else images. A group is the
// part of all rows that has the same channels; a block takes some items of a group, which are its tiles in all rows.
// Within a tile every thread reads once.
struct NormWalk {
  int64_t row_stride, tile_stride, group_stride;  // elements; of kApart a row may be several
  int64_t apart;                                  // of kApart, from one of a thread's elements to the next
  bool apart_in_rows;                             // one in each row, or else all in one
  int64_t row_extent, group_extent, total;
  FastDivmod tiles;  // of a group in a row
  FastDivmod run;    // elements of a channel that lie side by side; of channels_last, the channels
  bool channels_last;
  int32_t items, slices, groups;
  int32_t threads;  // of a block that read
  int64_t channels;
  // What a block adds up of a tile, a sum of each thread or, of kChannels, of each element: those of channel c are at
  // c * step_c, + step, ... `fold` of them.
  FastDivmod tile_channels;
  int32_t fold, step_c, step;
  int32_t row_parts;  // sums that a slice has of each channel

  FASTCONV_HOST_DEVICE int64_t grid() const { return int64_t{groups} * slices; }
  FASTCONV_HOST_DEVICE int64_t parts() const { return int64_t{slices} * row_parts; }
};

struct NormPlan {
  NormWalk walk;
  NormReads reads;
  int64_t room;  // most blocks of a launch that wait for each other
};
// Of a problem with elements.
NormPlan plan_norm(const NormProblem& problem, const DeviceSpec& device);

// Elements side by side that have a byte of the mask.
int norm_vector(const NormProblem& problem);

}  // namespace fastconv
