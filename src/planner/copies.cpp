#include "fastconv/planner/copies.h"

#include <bit>
#include <numeric>

#include "fastconv/core/integers.h"

namespace fastconv {

bool copies(int64_t size, int64_t stride) {
  return size == 1 || (stride > 0 && stride % 8 == 0 && stride < int64_t{1} << 39);
}
uint64_t stride_bytes(int64_t size, int64_t stride) { return static_cast<uint64_t>(size == 1 ? 16 : stride * 2); }

int64_t address_phases(int64_t size, int64_t stride) { return size == 1 ? 1 : 8 / std::gcd(stride, int64_t{8}); }
int64_t row_phases(const Side& side) { return address_phases(side.h, side.stride.h); }

bool transposition_can_stage(const Side& in, int64_t groups, int64_t step) {
  const int64_t rows = row_phases(in);
  // The copy engine is slow to write the zeros of channels that do not exist.
  return in.c > 8 && in.stride.w == 1 && in.align >= 16 && in.h >= rows && copies(in.h, in.stride.h * rows) &&
         copies(in.c, in.stride.c) && copies(groups, in.stride.c * in.c) && copies(in.n, in.stride.n) &&
         std::has_single_bit(static_cast<uint64_t>(step));
}

RawRows raw_rows(const Side& in, int64_t pitch, int64_t step, int64_t channels, bool aligned) {
  RawRows raw{};
  const int64_t phases = row_phases(in);
  raw.row_phases_log2 = std::countr_zero(static_cast<uint64_t>(phases));
  raw.step_log2 = std::countr_zero(static_cast<uint64_t>(step));
  for (int64_t row = 0; row < phases; ++row) raw.shift[row] = static_cast<int32_t>(row * in.stride.h % 8);
  const int64_t reach = (pitch - 1) * step + 1 + (aligned && phases == 1 ? 0 : 7);
  raw.boxes = static_cast<int32_t>(ceil_div(reach, kMaxBox - 8));
  // An odd number of 16-byte chunks: the eight rows that a matrix is read from then lie in different banks.
  raw.box_w = static_cast<int32_t>((ceil_div(ceil_div(reach, raw.boxes), 8) | 1) * 8);
  raw.stage_bytes = static_cast<int32_t>(raw.box_w * channels * 2);
  return raw;
}

TensorMapSpec raw_map(const Side& in, int64_t groups, int64_t channels, const RawRows& raw, int row) {
  const int64_t maps = int64_t{1} << raw.row_phases_log2, rows = ceil_div(in.h - row, maps);
  return {{static_cast<uint64_t>(in.w + raw.shift[row]), static_cast<uint64_t>(rows), static_cast<uint64_t>(in.c),
           static_cast<uint64_t>(groups), static_cast<uint64_t>(in.n)},
          {stride_bytes(rows, in.stride.h * maps), stride_bytes(in.c, in.stride.c),
           stride_bytes(groups, in.c * in.stride.c), stride_bytes(in.n, in.stride.n)},
          {static_cast<uint32_t>(raw.box_w), 1, static_cast<uint32_t>(channels), 1, 1},
          {1, 1, 1, 1, 1},
          0,
          row * in.stride.h - raw.shift[row]};
}

}  // namespace fastconv
