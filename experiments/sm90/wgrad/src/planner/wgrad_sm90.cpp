#include "fastconv/planner/wgrad_sm90.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <ostream>

#include "fastconv/planner/planner.h"

namespace fastconv {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int64_t kBarrierSmem = 16 * 8, kAlignment = 1024, kMaxStages = 8;
constexpr int64_t kFilters = 64;  // a block of M
constexpr int64_t kYRowBytes = kFilters * 2;
constexpr double kClockMhz = 1755;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// One of the two operands; c is a group's channels.
struct Side {
  int64_t n, c, h, w;
  Strides stride;
  int32_t align;
};

// Taps along one dimension that read inputs stride * output + d + i * stride * step, i < count.
struct Axis {
  int64_t d, count, step, tap0, dtap;
};

std::vector<Axis> axes_of(int64_t taps, int64_t pad, int64_t dilation, int64_t stride) {
  const int64_t common = std::gcd(dilation, stride), period = stride / common;
  std::vector<Axis> axes;
  for (int64_t r = 0; r < std::min(period, taps); ++r) {
    axes.push_back({r * dilation - pad, ceil_div(taps - r, period), dilation / common, r, period});
  }
  return axes;
}

struct Problem {
  Side x, y;
  Pair stride;
  int64_t groups, taps;
  std::vector<Axis> rows, cols;
};

bool is_linear(const Side& side) { return side.h == 1 || side.stride.h == side.w * side.stride.w; }

Problem normalise(const ConvProblem& p) {
  Problem out;
  out.x = {p.n, p.c_per_group(), p.h, p.w, p.x_strides, p.x_align};
  out.y = {p.n, p.k_per_group(), p.p(), p.q(), p.y_strides, p.y_align};
  out.stride = p.stride, out.groups = p.groups, out.taps = p.r * p.s;
  out.rows = axes_of(p.r, p.padding.h, p.dilation.h, p.stride.h);
  out.cols = axes_of(p.s, p.padding.w, p.dilation.w, p.stride.w);
  const bool pointwise = out.taps == 1 && p.stride.h == 1 && p.stride.w == 1 && p.padding.h == 0 && p.padding.w == 0;
  if (pointwise && is_linear(out.x) && is_linear(out.y) && p.h * p.w < kInt32Max) {
    for (Side* side : {&out.x, &out.y}) side->w *= side->h, side->h = 1;
    auto images_linear = [](const Side& side) { return side.n == 1 || side.stride.n == side.w * side.stride.w; };
    if (images_linear(out.x) && images_linear(out.y) && out.x.n * out.x.w < kInt32Max) {
      for (Side* side : {&out.x, &out.y}) side->w *= side->n, side->n = 1;
    }
  }
  return out;
}

// Strides that a dimension of one element never uses need not be multiples of anything.
bool copyable(const Side& side, int64_t groups) {
  auto whole = [](int64_t size, int64_t stride) { return size == 1 || (stride > 0 && stride % 8 == 0); };
  return (side.c == 1 || side.stride.c == 1) && side.align >= 16 && whole(side.n, side.stride.n) &&
         whole(side.h, side.stride.h) && whole(side.w, side.stride.w) && (groups == 1 || side.c % 8 == 0);
}

HaloTensorMap tensor_map(const Side& side, int64_t groups, int64_t channels, int64_t box_w, int64_t box_h,
                         int64_t box_n, Pair step) {
  auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  auto bytes = [&](int64_t size, int64_t stride) { return u64(size == 1 ? 16 : stride * 2); };
  return {
      {u64(side.c), u64(groups), u64(side.w), u64(side.h), u64(side.n)},
      {bytes(groups, side.c), bytes(side.w, side.stride.w), bytes(side.h, side.stride.h), bytes(side.n, side.stride.n)},
      {u32(channels), 1, u32((box_w - 1) * step.w + 1), u32((box_h - 1) * step.h + 1), u32(box_n)},
      {1, 1, u32(step.w), u32(step.h), 1}};
}

WgradOperand operand(const Side& side, int64_t groups, int64_t box_w, int64_t box_h, int64_t box_n, Pair step) {
  auto i32 = [](int64_t v) { return static_cast<int32_t>(v); };
  WgradOperand out{};
  out.n_stride = side.stride.n, out.c_stride = side.stride.c;
  out.h_stride = side.stride.h, out.w_stride = side.stride.w;
  out.n = i32(side.n), out.c = i32(side.c), out.h = i32(side.h), out.w = i32(side.w);
  out.step_h = i32(step.h), out.step_w = i32(step.w);
  out.vector = 8;
  auto whole = [&](int64_t size, int64_t stride) { return size == 1 || stride % out.vector == 0; };
  while (out.vector > 1 &&
         !(side.stride.w == 1 && step.w == 1 && side.w % out.vector == 0 && side.align >= 2 * out.vector &&
           whole(side.n, side.stride.n) && whole(side.c * groups, side.stride.c) && whole(side.h, side.stride.h))) {
    out.vector /= 2;
  }
  out.box_h = FastDivmod(box_h), out.box_rows = i32(box_n * box_h), out.pitch = i32(box_w);
  out.row_units = FastDivmod((box_w + 2 * out.vector - 2) / out.vector);
  return out;
}

// Taps that share a staged box of x: all of a phase, those of a filter row, or none.
enum class Split { kNone, kRows, kTaps };

struct Tap {
  int row_axis, col_axis, i, j, c_block;
};

// One instruction's blocks. Either taps of one box at equal distances or, split by taps, whole boxes in a row.
using Unit = std::vector<Tap>;

// Lines of up to `blocks` taps through a rows x cols grid, with as few lines as possible.
void cut_into_lines(int row_axis, int col_axis, int row0, int rows, int cols, int blocks, std::vector<Unit>& units) {
  auto line = [&](int i, int j, int di, int dj, int count) {
    Unit unit;
    for (int b = 0; b < count; ++b) unit.push_back({row_axis, col_axis, row0 + i + b * di, j + b * dj, 0});
    units.push_back(unit);
  };
  const int whole_cols = cols / blocks * blocks, whole_rows = rows / blocks * blocks;
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < whole_cols; j += blocks) line(i, j, 0, 1, blocks);
  }
  for (int j = whole_cols; j < cols; ++j) {
    for (int i = 0; i < whole_rows; i += blocks) line(i, j, 1, 0, blocks);
  }
  const int left_rows = rows - whole_rows, left_cols = cols - whole_cols;
  if (left_rows <= left_cols) {
    for (int i = whole_rows; i < rows; ++i) line(i, whole_cols, 0, 1, left_cols);
  } else {
    for (int j = whole_cols; j < cols; ++j) line(whole_rows, j, 1, 0, left_rows);
  }
}

struct Grouping {
  Split split;
  int64_t m_blocks, units_per_m_block, c_blocks_per_job;
  std::vector<std::vector<Unit>> groups;  // tap groups
};

bool make_grouping(const Problem& p, const WgradConfig& config, Split split, int64_t m_blocks, Grouping& out) {
  const int64_t slots = int64_t{config.units} * config.warpgroups;
  out.split = split, out.m_blocks = m_blocks, out.units_per_m_block = slots / m_blocks;
  const int64_t room = out.units_per_m_block, c_blocks = ceil_div(p.x.c, config.channels);
  std::vector<Unit> units;
  const int rows = static_cast<int>(p.rows.size()), cols = static_cast<int>(p.cols.size());
  if (split == Split::kTaps) {
    std::vector<Tap> taps;
    for (int a = 0; a < rows; ++a) {
      for (int i = 0; i < p.rows[a].count; ++i) {
        for (int b = 0; b < cols; ++b) {
          for (int j = 0; j < p.cols[b].count; ++j) taps.push_back({a, b, i, j, 0});
        }
      }
    }
    const auto per_job = static_cast<size_t>(room * config.blocks);
    out.c_blocks_per_job = std::clamp<int64_t>(static_cast<int64_t>(per_job / taps.size()), 1, c_blocks);
    const std::vector<Tap> once = taps;
    for (int64_t c = 1; c < out.c_blocks_per_job; ++c) {
      for (Tap tap : once) taps.push_back((tap.c_block = static_cast<int>(c), tap));
    }
    for (size_t i = 0; i < taps.size(); i += config.blocks) {
      units.emplace_back(taps.begin() + i, taps.begin() + std::min(i + config.blocks, taps.size()));
    }
  } else {
    for (int a = 0; a < rows; ++a) {
      for (int b = 0; b < cols; ++b) {
        const int count = static_cast<int>(p.rows[a].count), parts = split == Split::kRows ? count : 1;
        for (int i = 0; i < parts; ++i) {
          cut_into_lines(a, b, i, count / parts, static_cast<int>(p.cols[b].count), config.blocks, units);
        }
      }
    }
    if (rows == 1) {  // neighbours in the filter read neighbouring rows: a group of them needs a smaller box
      std::stable_sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) { return a[0].i < b[0].i; });
    }
    out.c_blocks_per_job = std::clamp<int64_t>(room / static_cast<int64_t>(units.size()), 1, c_blocks);
    const std::vector<Unit> once = units;
    for (int64_t c = 1; c < out.c_blocks_per_job; ++c) {
      for (Unit unit : once) {
        for (Tap& tap : unit) tap.c_block = static_cast<int>(c);
        units.push_back(unit);
      }
    }
  }
  if (static_cast<int64_t>(units.size()) > kMaxWgradUnits) return false;
  out.groups.clear();
  for (size_t i = 0; i < units.size(); i += room) {
    out.groups.emplace_back(units.begin() + i, units.begin() + std::min(i + static_cast<size_t>(room), units.size()));
  }
  return out.groups.size() <= kMaxWgradTapGroups;
}

// A box of x and the taps it serves: (i, j) from min to max.
struct Part {
  int row_axis, col_axis, c_block;
  int i0, i1, j0, j1;
};

bool shares_box(const Part& part, const Tap& tap, Split split) {
  return part.row_axis == tap.row_axis && part.col_axis == tap.col_axis && part.c_block == tap.c_block &&
         (split == Split::kNone || part.i0 == tap.i) && (split != Split::kTaps || part.j0 == tap.j);
}

std::vector<Part> parts_of(const std::vector<Unit>& group, Split split) {
  std::vector<Part> parts;
  for (const Unit& unit : group) {
    for (const Tap& tap : unit) {
      auto found =
          std::find_if(parts.begin(), parts.end(), [&](const Part& part) { return shares_box(part, tap, split); });
      if (found == parts.end()) {
        parts.push_back({tap.row_axis, tap.col_axis, tap.c_block, tap.i, tap.i, tap.j, tap.j});
      } else {
        found->i0 = std::min(found->i0, tap.i), found->i1 = std::max(found->i1, tap.i);
        found->j0 = std::min(found->j0, tap.j), found->j1 = std::max(found->j1, tap.j);
      }
    }
  }
  return parts;
}

// Positions a row (or image) must have so that a shift by `extent` off its end meets padding: its own, or the zeros
// that the next row starts with.
int64_t linear_size(int64_t outputs, int64_t inputs, int64_t stride, int64_t extent, int64_t d) {
  if (d >= 0) return outputs + extent;
  const int64_t lead = ceil_div(-d, stride), inputs_end = ceil_div(inputs - d, stride);
  return std::min(outputs + extent, std::max(outputs + extent - lead, inputs_end));
}

struct TileShape {
  bool linear;
  int64_t n, p, q;  // linear: q is ignored
};

// Clocks of one wgmma m64 x n x k16: the tensor cores' rate, or shared memory's 128 bytes a clock, which the copies
// that fill the stage share.
double wgmma_clocks(int64_t n) { return std::max(n / 2., (64 + n) / 4.); }

bool make_plan(const Problem& p, const DeviceSpec& device, const WgradConfig& config, const Grouping& grouping,
               const std::vector<std::vector<Part>>& parts, const TileShape& shape, WgradPlan& plan) {
  plan.config = config;
  WgradParams& out = plan.params;
  std::memset(static_cast<void*>(&out), 0, sizeof(out));
  const int64_t row_bytes = config.channels * 2;

  int64_t extent_h = 0, extent_w = 0, most_parts = 0;
  int64_t pitch = 0, image_rows = p.y.h;
  if (shape.linear) pitch = p.y.w;
  for (const auto& group : parts) {
    most_parts = std::max<int64_t>(most_parts, group.size());
    for (const Part& part : group) {
      const Axis &row = p.rows[part.row_axis], &col = p.cols[part.col_axis];
      const int64_t eh = (part.i1 - part.i0) * row.step, ew = (part.j1 - part.j0) * col.step;
      extent_h = std::max(extent_h, eh), extent_w = std::max(extent_w, ew);
      if (shape.linear) {
        const int64_t dh = row.d + part.i0 * row.step * p.stride.h, dw = col.d + part.j0 * col.step * p.stride.w;
        pitch = std::max(pitch, linear_size(p.y.w, p.x.w, p.stride.w, ew, dw));
        image_rows = std::max(image_rows, linear_size(p.y.h, p.x.h, p.stride.h, eh, dh));
      }
    }
  }

  const int64_t tile_n = shape.n, tile_p = shape.p, tile_q = shape.linear ? p.y.w : shape.q;
  if (!shape.linear) pitch = tile_q + extent_w;
  const int64_t y_pitch = shape.linear ? pitch : tile_q;
  const int64_t y_rows = tile_n > 1 ? image_rows : tile_p, x_rows = tile_n > 1 ? image_rows : tile_p + extent_h;
  out.x_copied = copyable(p.x, p.groups), out.y_copied = copyable(p.y, p.groups);
  const Pair unit_step{1, 1};
  out.x = operand(p.x, p.groups, pitch, x_rows, tile_n, p.stride);
  out.y = operand(p.y, p.groups, y_pitch, y_rows, tile_n, unit_step);
  plan.x_map = tensor_map(p.x, p.groups, config.channels, pitch, x_rows, tile_n, p.stride);
  plan.y_map = tensor_map(p.y, p.groups, kFilters, y_pitch, y_rows, tile_n, unit_step);
  auto fits_copy = [](const HaloTensorMap& map) {
    return std::ranges::all_of(map.box, [](uint32_t b) { return b <= 256; });
  };
  if ((out.x_copied && !fits_copy(plan.x_map)) || (out.y_copied && !fits_copy(plan.y_map))) return false;

  int64_t steps = 0;
  auto add_step = [&](int64_t x_row, int64_t y_row) {
    if (steps < kMaxWgradSteps) {
      out.step[steps] = {static_cast<uint16_t>(x_row * row_bytes / 16), static_cast<uint16_t>(y_row * kYRowBytes / 16)};
    }
    ++steps;
  };
  int64_t x_positions = tile_n * x_rows * pitch, y_positions = tile_n * y_rows * y_pitch;
  if (shape.linear) {
    const int64_t used =
        tile_n > 1 ? ((tile_n - 1) * image_rows + p.y.h - 1) * pitch + p.y.w : (tile_p - 1) * pitch + p.y.w;
    for (int64_t i = 0; i < round_up(used, 32); i += 16) add_step(i, i);
    x_positions = std::max(x_positions, steps * 16 + extent_h * pitch + extent_w);
    y_positions = std::max(y_positions, steps * 16);
    out.x_group_pitch = static_cast<int32_t>(8 * row_bytes), out.y_group_pitch = 8 * kYRowBytes;
  } else if (tile_q % 16 == 0) {
    for (int64_t i = 0; i < tile_p; ++i) {
      for (int64_t j = 0; j < tile_q; j += 16) add_step(i * pitch + j, i * y_pitch + j);
    }
    out.x_group_pitch = static_cast<int32_t>(8 * row_bytes), out.y_group_pitch = 8 * kYRowBytes;
  } else {
    if (tile_q % 8 != 0 || tile_p % 2 != 0) return false;
    for (int64_t i = 0; i < tile_p; i += 2) {
      for (int64_t j = 0; j < tile_q; j += 8) add_step(i * pitch + j, i * y_pitch + j);
    }
    out.x_group_pitch = static_cast<int32_t>(pitch * row_bytes);
    out.y_group_pitch = static_cast<int32_t>(y_pitch * kYRowBytes);
  }
  if (steps > kMaxWgradSteps || steps % 2 != 0) return false;
  out.step_pairs = static_cast<int32_t>(steps / 2);

  out.x_box_bytes = static_cast<int32_t>(tile_n * x_rows * pitch * row_bytes);
  out.y_box_bytes = static_cast<int32_t>(tile_n * y_rows * y_pitch * kYRowBytes);
  out.x_part_bytes = static_cast<int32_t>(round_up(x_positions * row_bytes, kAlignment));
  out.y_block_bytes = static_cast<int32_t>(round_up(y_positions * kYRowBytes, kAlignment));
  const int64_t stage_bytes = most_parts * out.x_part_bytes + grouping.m_blocks * out.y_block_bytes;
  const int64_t room = device.smem_optin_bytes - kAlignment - kBarrierSmem;
  out.stage_bytes = static_cast<int32_t>(stage_bytes);
  out.stages = static_cast<int32_t>(std::min<int64_t>(kMaxStages, room / stage_bytes));
  if (out.stages < 2) return false;
  out.y_offset = static_cast<int32_t>(most_parts * out.x_part_bytes);
  const int64_t slots = int64_t{config.units} * config.warpgroups, n = config.blocks * config.channels;
  const int64_t job_bytes = slots * kFilters * n * 4;
  out.data_bytes = static_cast<int32_t>(std::max(out.stages * stage_bytes, job_bytes));
  plan.smem_bytes = static_cast<int32_t>(kAlignment + kBarrierSmem + out.data_bytes);

  const int64_t tiles_n = ceil_div(p.y.n, tile_n), tiles_p = ceil_div(p.y.h, tile_p), tiles_q = ceil_div(p.y.w, tile_q);
  const int64_t tiles = tiles_n * tiles_p * tiles_q;
  if (tiles > kInt32Max) return false;
  out.tiles = static_cast<int32_t>(tiles);
  out.tiles_q = FastDivmod(tiles_q), out.tiles_p = FastDivmod(tiles_p);
  out.tile_n = static_cast<int32_t>(tile_n), out.tile_p = static_cast<int32_t>(tile_p);
  out.tile_q = static_cast<int32_t>(tile_q);
  out.stride_h = static_cast<int32_t>(p.stride.h), out.stride_w = static_cast<int32_t>(p.stride.w);
  out.m_blocks = static_cast<int32_t>(grouping.m_blocks);
  out.units_per_m_block = static_cast<int32_t>(grouping.units_per_m_block);
  out.c_blocks_per_job = static_cast<int32_t>(grouping.c_blocks_per_job);
  out.c = static_cast<int32_t>(p.x.c), out.k = static_cast<int32_t>(p.y.c);

  int part_count = 0, unit_count = 0;
  for (size_t g = 0; g < grouping.groups.size(); ++g) {
    WgradTapGroup& group = out.tap_group[g];
    group.part_begin = static_cast<int16_t>(part_count), group.unit_begin = static_cast<int16_t>(unit_count);
    for (const Part& part : parts[g]) {
      if (part_count == kMaxWgradParts) return false;
      const Axis &row = p.rows[part.row_axis], &col = p.cols[part.col_axis];
      out.part[part_count++] = {static_cast<int32_t>(row.d + part.i0 * row.step * p.stride.h),
                                static_cast<int32_t>(col.d + part.j0 * col.step * p.stride.w), part.c_block};
    }
    for (const Unit& unit : grouping.groups[g]) {
      WgradUnit& to = out.unit[unit_count++];
      int64_t offset[kMaxWgradBlocks];  // 16 bytes
      for (int b = 0; b < kMaxWgradBlocks; ++b) {
        to.c_block[b] = -1;
        if (b >= static_cast<int>(unit.size())) continue;
        const Tap& tap = unit[b];
        const auto index = std::find_if(parts[g].begin(), parts[g].end(),
                                        [&](const Part& part) { return shares_box(part, tap, grouping.split); }) -
                           parts[g].begin();
        const Part& part = parts[g][index];
        const Axis &row = p.rows[tap.row_axis], &col = p.cols[tap.col_axis];
        const int64_t shift = (tap.i - part.i0) * row.step * pitch + (tap.j - part.j0) * col.step;
        offset[b] = (index * out.x_part_bytes + shift * row_bytes) / 16;
        to.r[b] = static_cast<int16_t>(row.tap0 + tap.i * row.dtap);
        to.s[b] = static_cast<int16_t>(col.tap0 + tap.j * col.dtap);
        to.c_block[b] = static_cast<int16_t>(tap.c_block);
      }
      to.start = static_cast<uint16_t>(offset[0]);
      to.step = static_cast<uint16_t>(unit.size() > 1 ? offset[1] - offset[0] : 0);
      // Blocks without a tap read what lies there; it must be this stage's.
      const int64_t last = offset[0] * 16 + (config.blocks - 1) * int64_t{to.step} * 16;
      if (last + (steps * 16 + pitch) * row_bytes > stage_bytes && unit.size() < static_cast<size_t>(config.blocks)) {
        return false;
      }
    }
    group.part_end = static_cast<int16_t>(part_count), group.unit_end = static_cast<int16_t>(unit_count);
  }

  // Jobs, and as many splits of the pixels as fill the device.
  const int64_t c_jobs = ceil_div(ceil_div(p.x.c, config.channels), grouping.c_blocks_per_job);
  const int64_t k_jobs = ceil_div(ceil_div(p.y.c, kFilters), grouping.m_blocks);
  const int64_t tap_groups = static_cast<int64_t>(grouping.groups.size());
  const int64_t jobs = tap_groups * c_jobs * k_jobs * p.groups;
  if (jobs > kInt32Max / 64) return false;
  out.jobs = FastDivmod(jobs), out.tap_groups = FastDivmod(tap_groups);
  out.c_jobs = FastDivmod(c_jobs), out.k_jobs = FastDivmod(k_jobs);

  const double mma = static_cast<double>(steps * slots) * wgmma_clocks(n) / .92;
  // Producer warps go round: loads, then stores, some 500 instructions of one warp a scheduler and a memory latency.
  auto produce = [](bool copied, const WgradOperand& from, int64_t channels, int64_t boxes) {
    const WgradSharing sharing(from.vector, static_cast<int>(channels / 8));
    const int64_t lanes = ceil_div(int64_t{from.box_rows} * from.row_units.divisor, sharing.lane_units);
    const int64_t count = lanes * (sharing.spread ? 1 : channels / 8);
    return copied ? 0. : 4400. * static_cast<double>(boxes * ceil_div(count, kWgradStagingWarps * sharing.batch));
  };
  const double warps = produce(out.x_copied, out.x, config.channels, most_parts) +
                       produce(out.y_copied, out.y, kFilters, grouping.m_blocks);
  // L2 gives a multiprocessor some 22 bytes a clock; a copy costs about 100 clocks whatever its size.
  const double load = static_cast<double>(most_parts * out.x_box_bytes + grouping.m_blocks * out.y_box_bytes) / 22. +
                      static_cast<double>(100 * (most_parts + grouping.m_blocks));
  const double tile_clocks = std::max({mma, load, warps}) + 60;
  const double x_bytes = 2. * static_cast<double>(p.x.n * p.x.c * p.x.h * p.x.w * p.groups);
  const double y_bytes = 2. * static_cast<double>(p.y.n * p.y.c * p.y.h * p.y.w * p.groups);
  const double dram = (x_bytes + y_bytes) / (4.1e6 / kClockMhz);
  const auto sums = static_cast<double>(job_bytes);
  double best = std::numeric_limits<double>::max();
  for (int64_t cluster = 1; cluster <= kMaxWgradCluster; cluster *= 2) {
    // A cluster lives in one of the chip's groups of multiprocessors, some of which have few to spare.
    const int64_t sms = cluster <= 2 ? device.sm_count : device.sm_count * 10 / 11;
    for (int64_t waves = 1; waves <= 8; ++waves) {
      const int64_t splits = std::min(waves * sms / jobs, tiles) / cluster * cluster;
      if (splits < 1) continue;
      const int64_t partials = splits / cluster, workspace = partials == 1 ? 0 : partials * jobs * job_bytes;
      if (workspace > kMaxWorkspaceBytes) break;
      const auto rounds = static_cast<double>(ceil_div(splits * jobs, sms));
      const auto peers = static_cast<double>(cluster);
      const double add = sums / 64 + (cluster == 1 ? 0. : 600 + sums * (peers - 1) / peers / 20) + sums / peers / 12;
      const double fill = static_cast<double>(stage_bytes) / 14.;
      const double block = static_cast<double>(ceil_div(tiles, splits)) * tile_clocks + fill + 4000 + add;
      const double reduce = partials == 1 ? 1500. : 4500 + static_cast<double>(workspace) / 2500;
      const double clocks = std::max(rounds * block, dram) + reduce;
      if (clocks >= best) continue;
      best = clocks;
      out.splits = static_cast<int32_t>(splits), out.partials = static_cast<int32_t>(partials);
      out.cluster = FastDivmod(cluster);
      plan.grid = splits * jobs;
      plan.workspace_bytes = workspace;
    }
  }
  if (best == std::numeric_limits<double>::max()) {  // more jobs than 8 waves
    out.splits = out.partials = 1, out.cluster = FastDivmod(1);
    plan.grid = jobs, plan.workspace_bytes = 0;
    best = static_cast<double>(ceil_div(jobs, device.sm_count)) *
           (static_cast<double>(tiles) * tile_clocks + 2500 + sums / 10);
  }
  plan.cost_us = best / kClockMhz;
  return true;
}

std::vector<TileShape> tile_shapes(const Problem& p) {
  std::vector<TileShape> shapes;
  const int64_t most = 16 * kMaxWgradSteps;
  for (int64_t q : {8, 16, 24, 32, 40, 48, 56, 64, 128, 256}) {
    if (q >= p.y.w + 16 && q > 16) continue;
    for (int64_t rows : {1, 2, 4, 6, 7, 8, 10, 12, 14, 16, 32}) {
      if (q * rows > most || q * rows < 32 || (rows > p.y.h + 1 && rows > 2)) continue;
      shapes.push_back({false, 1, rows, q});
    }
  }
  if (p.y.w <= 250) {
    int64_t last = 0;
    for (int64_t cuts = 1; cuts <= p.y.h; ++cuts) {
      const int64_t rows = ceil_div(p.y.h, cuts);
      if (rows == last || rows * p.y.w > most) continue;
      if (last != 0 && rows * p.y.w < 64) break;
      shapes.push_back({true, 1, rows, 0});
      last = rows;
    }
    for (int64_t images = 2; images <= std::min<int64_t>(p.y.n, 16) && images * p.y.h * p.y.w <= most; ++images) {
      shapes.push_back({true, images, p.y.h, 0});
    }
  }
  return shapes;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const WgradConfig& config) {
  return out << config.channels << "x" << config.blocks << " units " << config.units << "x" << config.warpgroups
             << (config.tma ? " tma" : " warps");
}

std::ostream& operator<<(std::ostream& out, const WgradPlan& plan) {
  const WgradParams& p = plan.params;
  return out << plan.config << " m " << p.m_blocks << " c " << p.c_blocks_per_job << " tile " << p.tile_n << "x"
             << p.tile_p << "x" << p.tile_q << " steps " << 2 * p.step_pairs << " stage " << p.stages << "x"
             << p.stage_bytes << " parts " << p.tap_group[0].part_end << " units " << p.tap_group[0].unit_end
             << " groups " << p.tap_groups.divisor << " jobs " << p.jobs.divisor << " splits " << p.splits << "/"
             << p.cluster.divisor << " tiles " << p.tiles << " model " << plan.cost_us << " us";
}

const std::vector<WgradConfig>& wgrad_configs() {
  static const std::vector<WgradConfig> configs = {
#define WGRAD_CONFIG(channels, blocks, units, warpgroups, staging) \
  {channels, blocks, units, warpgroups, WgradStaging::staging == WgradStaging::kTma},
#include "fastconv/launch/wgrad_sm90.def"
#undef WGRAD_CONFIG
  };
  return configs;
}

std::string wgrad_why_not(const ConvProblem& p, const DeviceSpec& device) {
  if (!device.is_cuda || device.arch != 90) return "needs compute capability 9.0";
  if (p.dtype != DType::kFloat16 && p.dtype != DType::kBFloat16) return "needs float16 or bfloat16";
  if (p.pass != Pass::kWgrad) return "computes the weight gradient";
  for (int64_t size : {p.n, p.c, p.h, p.w, p.k, p.p(), p.q()}) {
    if (size > kInt32Max || size == 0) return "a size exceeds 31 bits or is zero";
  }
  if (p.stride.h > 8 || p.stride.w > 8) return "stride exceeds 8";
  if (wgrad_plans(p, device).empty()) return "no tile of it fits shared memory";
  return "";
}

std::vector<WgradPlan> wgrad_plans(const ConvProblem& problem, const DeviceSpec& device) {
  const Problem p = normalise(problem);
  std::vector<WgradPlan> plans;
  const std::vector<TileShape> shapes = tile_shapes(p);
  const int widest = p.x.c > 32 ? 64 : p.x.c > 16 ? 32 : 16;
  const Strides& w = problem.w_strides;
  auto even = [](int64_t size, int64_t stride) { return size == 1 || stride % 2 == 0; };
  const bool pairs = w.c == 1 && p.x.c % 2 == 0 && problem.w_align >= 4 && even(problem.k, w.n) &&
                     even(problem.r, w.h) && even(problem.s, w.w);
  const bool tma = copyable(p.x, p.groups) && copyable(p.y, p.groups);
  Grouping grouping;
  for (const WgradConfig& config : wgrad_configs()) {
    if (config.channels != widest || config.tma != tma) continue;
    const int64_t slots = int64_t{config.units} * config.warpgroups;
    for (Split split : {Split::kNone, Split::kRows, Split::kTaps}) {
      if (p.taps == 1 && split != Split::kTaps) continue;
      for (int64_t m_blocks = 1; m_blocks <= std::min(slots, ceil_div(p.y.c, kFilters)); ++m_blocks) {
        if (slots % m_blocks != 0 || !make_grouping(p, config, split, m_blocks, grouping)) continue;
        std::vector<std::vector<Part>> parts;
        for (const auto& group : grouping.groups) parts.push_back(parts_of(group, split));
        for (const TileShape& shape : shapes) {
          WgradPlan plan{};
          if (!make_plan(p, device, config, grouping, parts, shape, plan)) continue;
          WgradParams& out = plan.params;
          out.w_k = w.n, out.w_c = w.c, out.w_r = w.h, out.w_s = w.w, out.w_group = problem.k_per_group() * w.n;
          out.w_pairs = pairs;
          plans.push_back(plan);
        }
      }
    }
  }
  std::stable_sort(plans.begin(), plans.end(),
                   [](const WgradPlan& a, const WgradPlan& b) { return a.cost_us < b.cost_us; });
  return plans;
}

}  // namespace fastconv
