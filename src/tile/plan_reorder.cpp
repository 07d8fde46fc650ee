#include "fastconv/tile/plan_reorder.h"

#include <algorithm>
#include <initializer_list>

#include "fastconv/core/integers.h"
#include "fastconv/tile/copies.h"
#include "fastconv/tile/cost.h"

namespace fastconv {
namespace {

using namespace cost::reorder;

int64_t row_of(const Side& side, int64_t groups) { return round_up(side.c * groups, 8); }

int vector_of(const Side& side, int64_t groups) {
  for (const int vector : {8, 2}) {
    if (side.align >= 2 * vector && side.h * side.w % vector == 0 && (side.n == 1 || side.stride.n % vector == 0) &&
        (side.c * groups == 1 || side.stride.c % vector == 0)) {
      return vector;
    }
  }
  return 1;
}

}  // namespace

bool reorderable(const Side& side, int64_t groups) {
  constexpr int64_t kFewPixels = 16;
  const int64_t pixels = side.h * side.w;
  if ((side.w != 1 && side.stride.w != 1) || (side.h != 1 && side.stride.h != side.w)) return false;
  if (pixels < kFewPixels || pixels >= kMaxExtent || (groups != 1 && side.c % 8 != 0)) return false;
  return static_cast<double>(side.n) * static_cast<double>(pixels) * static_cast<double>(row_of(side, groups)) < 1e12;
}

Side reordered(const Side& side, int64_t groups) {
  const int64_t row = row_of(side, groups);
  return {side.n, side.c, side.h, side.w, {row * side.w * side.h, 1, row * side.w, row}, 128};
}

int64_t reordered_bytes(const Side& side, int64_t groups) {
  return round_up(side.n * side.h * side.w * row_of(side, groups) * 2, 128);
}

Reorder make_reorder(const Side& side, int64_t groups) {
  const int64_t row = row_of(side, groups), pixels = side.h * side.w;
  Reorder out{};
  out.plane_n = side.stride.n, out.plane_c = side.stride.c;
  out.channels = static_cast<int32_t>(side.c * groups), out.row = static_cast<int32_t>(row);
  out.vector = vector_of(side, groups);
  // Runs begin and end up to 14 bytes beyond the pixels that they are for, never beyond an image.
  const bool runs = side.align >= 16 && side.stride.c == pixels && (side.n == 1 || side.stride.n % 8 == 0);
  const bool whole = out.channels == row;
  const bool boxes = out.vector == 8 && copies(side.n, side.stride.n) && copies(out.channels, side.stride.c);
  out.copy = whole && boxes ? ReorderCopy::kBoxes : whole && runs ? ReorderCopy::kRuns : ReorderCopy::kValues;
  const int64_t channel_blocks = ceil_div(row, kReorderChannels), pixel_blocks = ceil_div(pixels, kReorderPixels);
  const int64_t even = round_up(ceil_div(pixels, pixel_blocks), 8);
  out.pixels = FastDivmod(pixels);
  out.block_pixels = FastDivmod(out.copy == ReorderCopy::kRuns ? even : kReorderPixels);
  out.channel_blocks = FastDivmod(channel_blocks), out.pixel_blocks = FastDivmod(pixel_blocks);
  out.units = out.early = static_cast<int32_t>(side.n * channel_blocks * pixel_blocks);
  return out;
}

TensorMapSpec reorder_boxes(const Side& side, int64_t groups) {
  if (make_reorder(side, groups).copy != ReorderCopy::kBoxes) return {};
  const int64_t c = side.c * groups;
  auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  return {
      {u64(side.h * side.w), u64(c / 8), 8, u64(side.n), 1},
      {stride_bytes(c / 8, 8 * side.stride.c), stride_bytes(8, side.stride.c), stride_bytes(side.n, side.stride.n), 16},
      {kReorderBoxPixels, kReorderChannels / 8, 8, 1, 1},
      {1, 1, 1, 1, 1},
      kReorderBoxPixels * 2};
}

bool can_stream(const Side& side, int64_t groups, int64_t grid, int64_t warps) {
  const Reorder order = make_reorder(side, groups);
  return order.copy == ReorderCopy::kBoxes && order.units > grid * warps && side.n * side.h * side.w < INT32_MAX;
}

void stream(Reorder& order, int64_t grid, int64_t warps) {
  const int64_t round = kReorderStreamers * grid;
  order.early = static_cast<int32_t>(std::min<int64_t>(order.units, grid * warps));
  order.rounds = static_cast<int32_t>(ceil_div(order.units - order.early, round));
  order.round = FastDivmod(round);
}

double rewrite_us(double read, double written, double share, const DeviceSpec& device) {
  if (read + written == 0) return 0;
  const double again = kReadAgain * std::max(0., written - kKept * static_cast<double>(device.l2_bytes));
  return memory_us(read + written + again, device) / (kRate * std::min(1., kShares * share));
}

double reorder_us(const Side& side, int64_t groups, double share, const DeviceSpec& device) {
  const auto bytes = static_cast<double>(reordered_bytes(side, groups));
  const double fixed_us = make_reorder(side, groups).copy == ReorderCopy::kValues ? kValuesUs : kFixedUs;
  return fixed_us + rewrite_us(bytes, bytes, share, device);
}

double stream_us(const Side& side, int64_t groups, int64_t grid, int64_t warps, double share,
                 const DeviceSpec& device) {
  Reorder order = make_reorder(side, groups);
  stream(order, grid, warps);
  const double early = static_cast<double>(order.early) / order.units;
  return reorder_us(side, groups, share, device) * (early + kSeen * (1 - early));
}

}  // namespace fastconv
