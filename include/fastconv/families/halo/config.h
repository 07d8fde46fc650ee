// What of the halo engine is fixed when a kernel is compiled, and what is chosen for each problem.
#pragma once

#include <cstdint>

#include "fastconv/core/problem.h"
#include "fastconv/tile/operands.h"

namespace fastconv {

// How the halo reaches shared memory.
enum class HaloStaging : int8_t {
  kTma,         // contiguous channels, as they lie
  kTransposed,  // NCHW planes by TMA; warps transpose them and make operands of float32
  kPlanes,      // NCHW and one tap: contiguous pixels, multiplied as they lie
  kShifted,     // the same, where every second plane begins 8 bytes beside what TMA takes: warps move those
  kFloats,      // float32 NCHW planes by TMA; those who multiply make operands of them in registers
  kPixels,      // through the registers of warps, pixel by pixel: any strides
  kFolded       // the same, with the convolution's strides folded into channels, see fold.h
};
// The others need no warps but one that starts copies, of kTma up to three, and of kFloats one that clears padding.
constexpr bool staged_by_warps(HaloStaging staging) {
  return staging != HaloStaging::kTma && staging != HaloStaging::kPlanes && staging != HaloStaging::kFloats;
}

// Operands are rows of pixels, one a channel.
FASTCONV_HOST_DEVICE constexpr bool staged_as_planes(HaloStaging staging) {
  return staging == HaloStaging::kPlanes || staging == HaloStaging::kShifted;
}

// Tensors of other layouts may be written anew for it, see reorder.h.
FASTCONV_HOST_DEVICE constexpr bool reorders(HaloStaging staging) { return staging == HaloStaging::kTma; }

// Where few tiles have many channels, blocks of a cluster share each. Not large ones: there would be few of those.
FASTCONV_HOST_DEVICE constexpr bool shares_tiles(HaloStaging staging, int m_blocks, int columns, bool lines) {
  return staging == HaloStaging::kTma && m_blocks <= 2 && columns == 1 && !lines;
}

// Threads have so many sums that no registers are left to store elements of any strides, one by one. Pointwise, such
// tiles are long rows of pixels, which are copied in pieces.
FASTCONV_HOST_DEVICE constexpr bool is_large_tile(int m_blocks, int block_k) { return m_blocks * block_k >= 384; }

// A filter tile of one step in shared memory.
enum class FilterTile : int8_t {
  kKMajor,  // [filters][channels]
  kNMajor,  // [channels][filters], as dgrad finds it in KRSC
  kPairs    // [filters][2][channels]: dgrad of a column stride of two, for the two columns of the output next to each
            // other that meet neighbouring taps. A thread has both sums and stores them together.
};
// Columns of the output that a filter tile is for.
FASTCONV_HOST_DEVICE constexpr int columns_at_once(FilterTile filter) { return filter == FilterTile::kPairs ? 2 : 1; }

// Whether parts are made of float32 planes on their way to the products. A stage then has all of them side by side.
// Otherwise the workspace holds them, and each product of parts has stages.
FASTCONV_HOST_DEVICE constexpr bool makes_parts(HaloStaging staging) {
  return staging == HaloStaging::kFloats || staging == HaloStaging::kTransposed;
}
FASTCONV_HOST_DEVICE constexpr int parts_a_stage(HaloStaging staging, OperandForm operands) {
  if (!makes_parts(staging) || !has_parts(operands)) return 1;
  return operands == OperandForm::kPromotedParts ? 3 : 2;
}

struct HaloConfig {
  int32_t block_k;   // filters a tile, times the columns at once
  int32_t m_blocks;  // blocks of 64 pixels a consumer warpgroup
  int32_t channels;  // of a staged halo: rows of 128, 64 or 32 bytes
  HaloStaging staging;
  FilterTile filter;
  int32_t columns;  // of the filter that lie side by side on N
  bool lines;       // whole lines of memory are stored, see line_store.cuh
  OperandForm operands;

  constexpr int32_t n() const { return block_k * columns; }
  constexpr int32_t parts_a_stage() const { return fastconv::parts_a_stage(staging, operands); }
  constexpr int32_t pixel_bytes() const { return channels * operand_bytes(operands); }
  // Strides are folded forward alone; a filter is N-major where dgrad finds it in KRSC.
  constexpr bool computes(Pass pass) const {
    return pass == Pass::kFprop ? filter == FilterTile::kKMajor : staging != HaloStaging::kFolded;
  }
};

// Columns of the filter side by side on N are for problems of few filters, whose products would read shared memory
// faster than it delivers. Their sums belong to outputs some pixels apart and are added once, at the end: a row of
// outputs is then 8 strips, one for each group of 8 pixels of the M-blocks that lie side by side, and strips overlap by
// as many positions as the columns are apart.

// M-blocks side by side, where float32 planes are multiplied by three filter rows and columns at once.
inline constexpr int kFloatsAcross = 2;

// Which taps are served from one halo: all that the stride leaves together, those of a filter row, or one.
enum class TapSplit : int8_t { kNone, kRows, kTaps };

// How a problem's output is cut into tiles, and shared memory into stages.
//   rectangular  tile_p x tile_q pixels of one image; the halo is the rectangle that they read;
//   linear       runs of positions in the order (image, row, column) of rows padded to some width and images to some
//                height: just enough padding that a tap is the same shift for every position. It wastes the padding
//                however small the map is, and a tile may span images.
struct HaloTiling {
  TapSplit split;
  bool linear;
  bool turns;            // consumer warpgroups take tiles in turns instead of sharing each
  bool filter_resident;  // all filter taps stay in shared memory
  int16_t tile_p, tile_q, block_w_log2;
  int16_t across_log2;  // M-blocks side by side in a tile, all of them if that is more
  int16_t halo_stages, filter_stages;
  int8_t run_rows;    // HaloConfig::lines: rows of the output that a consumer warpgroup takes one after the other
  int8_t shares = 1;  // kTma: blocks that share a tile, each with some of its channels; a cluster
  bool reorder_in, reorder_out;  // kTma: NCHW tensors pass through the workspace, see reorder.h
};

}  // namespace fastconv
