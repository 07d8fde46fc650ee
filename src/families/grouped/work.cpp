#include "fastconv/families/grouped/work.h"

#include <bit>
#include <cmath>
#include <cstdlib>

#include "fastconv/families/grouped/cost.h"

namespace fastconv::grouped {
namespace {

using namespace cost::grouped;

constexpr int64_t kMostChannels = 16;  // of a group

}  // namespace

GroupedRows make_rows(const ConvProblem& problem, const GroupedConfig& config, const Side& side, int64_t tile_h,
                      int64_t tile_w, int64_t tile_g) {
  const int64_t size = element_size(problem.dtype);
  GroupedRows rows{};
  rows.stride = side.stride;
  rows.extent_h = static_cast<int32_t>(side.h), rows.extent_w = static_cast<int32_t>(side.w);
  rows.channels = static_cast<int32_t>(side.c), rows.chunks = static_cast<int32_t>(ceil_div(side.c, config.chunk()));
  rows.tile_h = static_cast<int32_t>(tile_h), rows.tile_w = static_cast<int32_t>(tile_w);
  const auto planes = static_cast<int32_t>(tile_g * rows.chunks);
  rows.lanes_log2 = std::min(5, static_cast<int32_t>(std::bit_width(static_cast<uint32_t>(planes - 1))));
  // The planes of a pixel, and of some pixels if there are fewer than eight, begin in different banks.
  const int32_t apart = std::max(1, 8 >> rows.lanes_log2), all = rows.tile_h * rows.tile_w;
  rows.plane_bytes = kGroupedRowBytes * (all + (apart - all % 8 + 8) % 8);

  auto copied = [&](int64_t bytes) {
    const int64_t values = bytes / size;
    return values > 0 && side.stride.c == 1 && side.c % values == 0 && side.align >= bytes &&
           keeps_multiples(side.stride.n, side.n, values) && keeps_multiples(side.stride.h, side.h, values) &&
           keeps_multiples(side.stride.w, side.w, values);
  };
  rows.copy_bytes = copied(16) ? 16 : copied(8) ? 8 : copied(4) ? 4 : 0;
  rows.channels_inner = side.stride.c < side.stride.w;
  rows.pairs = rows.copy_bytes == 0 && size == 2 && side.stride.w == 1 && side.w % 2 == 0 && side.align >= 4 &&
               keeps_multiples(side.stride.n, side.n, 2) &&
               keeps_multiples(side.stride.c, side.c * problem.groups, 2) && keeps_multiples(side.stride.h, side.h, 2);
  rows.columns = rows.pairs ? rows.tile_w / 2 + 1 : rows.tile_w;
  const int32_t pixels = rows.tile_h * rows.columns;
  rows.units = planes * pixels;
  rows.copied = GroupedPixels(rows.tile_w, kGroupedThreads >> rows.lanes_log2);
  rows.by_columns = FastDivmod(rows.columns);
  rows.by_chunks = FastDivmod(rows.chunks);
  rows.by_inner = FastDivmod(rows.channels_inner ? planes : pixels);
  return rows;
}

void set_walk(const ConvProblem& problem, const GroupedConfig& config, const GroupedTiling& tiling, GroupedWalk& walk) {
  const ConvMap map = make_conv_map(problem, false);
  walk.h = map.h, walk.w = map.w;
  walk.rows = make_rows(problem, config, source_side(problem), source_extent(map.h, tiling.tile_p),
                        source_extent(map.w, tiling.tile_q), tiling.tile_g);
  walk.filter = map.filter;
  walk.filter_group = problem.k_per_group() * problem.w_strides.n;
  walk.groups = static_cast<int32_t>(problem.groups), walk.filters = map.filters;
  walk.chunk = config.chunk();
  walk.tile_p = tiling.tile_p, walk.tile_q = tiling.tile_q, walk.tile_g = tiling.tile_g;
  walk.by_group_blocks = FastDivmod(ceil_div(problem.groups, tiling.tile_g));
  walk.by_tiles_w = FastDivmod(ceil_div(map.w.rows, tiling.tile_q));
  walk.by_tiles_h = FastDivmod(ceil_div(map.h.rows, tiling.tile_p));
  walk.by_phases_w = FastDivmod(map.w.phases), walk.by_phases_h = FastDivmod(map.h.phases);
  walk.named = GroupedPixels(tiling.tile_q, config.lane_pixels());
  walk.row_bytes = walk.h.source_step * walk.rows.tile_w * kGroupedRowBytes;
  walk.column_bytes = walk.w.source_step * kGroupedRowBytes;
  walk.last_row = (tiling.tile_p - 1) * walk.row_bytes + (tiling.tile_q - 1) * walk.column_bytes;
}

const char* grouped_why_not(const KernelEntry& entry, const ConvProblem& problem) {
  if (entry.config.as<GroupedConfig>().operands == GroupedOperands::kTf32 && problem.precision != Precision::kTf32) {
    return "rounds operands to TF32";
  }
  const int64_t channels = problem.c_per_group(), filters = problem.k_per_group();
  if (std::min(channels, filters) < 1 || std::max(channels, filters) < 2 ||
      std::max(channels, filters) > kMostChannels) {
    return "is for groups of 2 to 16 channels and filters";
  }
  // Lanes name up to 128 rows of a tile, which may have fewer: so many rows further fit 32 bits.
  constexpr int64_t kMaxStride = 64;
  if (std::max(problem.stride.h, problem.stride.w) > kMaxStride) return "takes strides up to 64";
  if (!images_fit_int32(problem)) return "counts with 32 bits: extents, and elements of an image or a group's filters";
  return nullptr;
}

double stage_clocks(const GroupedRows& rows, int32_t tile_g) {
  const double row = rows.copy_bytes > 0 ? kCopied + kCopiedBytes / rows.copy_bytes
                     : rows.pairs        ? kStagedPairs
                                         : kStaged;
  return rows.tile_h * rows.tile_w * tile_g * rows.chunks * row;
}

double tile_bytes(const ConvProblem& problem, double pixels, int32_t tile_g, int32_t channels, bool inner) {
  const double run = static_cast<double>(tile_g) * channels * static_cast<double>(element_size(problem.dtype));
  return pixels * (inner ? static_cast<double>(round_up(static_cast<int64_t>(run), 32)) : run);
}

double tile_bytes(const ConvProblem& problem, const GroupedRows& rows, int32_t tile_g) {
  // Padding is not read.
  const double pixels =
      static_cast<double>(std::min(rows.tile_h, rows.extent_h)) * std::min(rows.tile_w, rows.extent_w);
  return tile_bytes(problem, pixels, tile_g, rows.channels, rows.channels_inner);
}

double blocks_us(const ConvProblem& problem, const DeviceSpec& device, const Blocks& blocks) {
  const double rounds = std::ceil(blocks.count / device.sm_count);
  const double clocks = rounds * blocks.clocks + std::ceil(rounds / blocks.resident) * kLatencyClocks;
  // Memory and the rest overlap as far as blocks of an SM are at different stages, or tiles of a block.
  const double turns = rounds / blocks.resident * blocks.tiles;
  const double apart = blocks.tiles > 1 ? turns : std::min(blocks.resident, turns);
  const double bytes = std::max(compulsory_bytes(problem), blocks.bytes / kL2Rate);
  return time_us({.clocks = clocks, .bytes = bytes, .shown = 1 / std::max(1., apart)}, device);
}

}  // namespace fastconv::grouped
