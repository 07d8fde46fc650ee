#include "fastconv/planner/wgrad_family.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>

#include "fastconv/core/integers.h"
#include "fastconv/planner/copies.h"
#include "fastconv/planner/fold.h"
#include "fastconv/planner/reorder.h"
#include "fastconv/planner/sides.h"

namespace fastconv {
namespace {

constexpr int64_t kMaxStride = 8;             // of the copy engine
constexpr int64_t kMaxTaps = kMaxWgradUnits;  // one a unit fits every configuration's tables
constexpr int64_t kAlignment = 1024;
constexpr int64_t kFilters = 64;  // a block of M
constexpr int64_t kYRowBytes = kFilters * 2;

int32_t i32(int64_t v) { return static_cast<int32_t>(v); }

struct Axis {
  int runs = 0;
  Run run[kMaxStride];

  int64_t most() const { return run[0].count; }  // taps of a run
};

Axis make_axis(int64_t taps, int64_t pad, int64_t dilation, int64_t stride) {
  Axis axis;
  axis.runs = static_cast<int>(std::min(tap_period(dilation, stride), taps));
  for (int64_t r = 0; r < axis.runs; ++r) axis.run[r] = forward_run(r, taps, pad, dilation, stride);
  return axis;
}

struct Work {
  Side x, y;  // as the products meet them
  bool reorder_x = false, reorder_y = false;
  FoldedRows fold{};        // of x, if it has pixels
  Side x_planes, y_planes;  // as they are in memory
  Pair stride;
  int64_t groups;
  bool pointwise;
  Axis h, w;
};

// Rows of pixels in shared memory are 32, 64 or 128 bytes long: an image without gaps is cut into such rows.
void fold_rows(Side& x, Side& y) {
  for (const Side* side : {&x, &y}) {
    if (side->stride.w != 1 || (side->h != 1 && side->stride.h != side->w)) return;
  }
  const int64_t pixels = x.h * x.w;
  for (int64_t row = 64; row >= 16; row /= 2) {
    if (pixels % row != 0) continue;
    for (Side* side : {&x, &y}) side->h = pixels / row, side->w = side->stride.h = row;
    return;
  }
}

// Whether the copy engine brings all of an operand.
struct Copied {
  bool x, y;
};

bool copyable(const Side& side, int64_t groups) {
  return (side.c * groups == 1 || side.stride.c == 1) && side.align >= 16 && copies(side.n, side.stride.n) &&
         copies(side.h, side.stride.h) && copies(side.w, side.stride.w) && (groups == 1 || side.c % 8 == 0);
}

Work make_work(const ConvProblem& p, const WgradConfig& config, bool fold) {
  Work work;
  work.x = work.x_planes = input_side(p), work.y = work.y_planes = output_side(p);
  auto reorders = [&](bool has_pixel_rows, const Side& side) {
    const bool copied = config.staging != WgradStaging::kWarps && !has_pixel_rows;
    return copied && !copyable(side, p.groups) && reorderable(side, p.groups);
  };
  work.reorder_x = !fold && reorders(x_has_pixel_rows(config.staging), work.x);
  work.reorder_y = reorders(y_has_pixel_rows(config.staging), work.y);
  if (work.reorder_x) work.x = reordered(work.x, p.groups);
  if (work.reorder_y) work.y = reordered(work.y, p.groups);
  work.groups = p.groups;
  if (fold) {
    work.fold = make_folded_rows(p);
    const FoldedAxis &h = work.fold.fold.h, &w = work.fold.fold.w;
    work.x = folded_rows(work.fold, p.n);
    work.stride = kUnitStep;
    work.h = make_axis(folded_taps(h), folded_padding(h, p.padding.h), 1, 1);
    work.w = make_axis(folded_taps(w), folded_padding(w, p.padding.w), 1, 1);
    work.pointwise = false;
    return work;
  }
  work.stride = p.stride;
  work.h = make_axis(p.r, p.padding.h, p.dilation.h, p.stride.h);
  work.w = make_axis(p.s, p.padding.w, p.dilation.w, p.stride.w);
  work.pointwise = is_pointwise(p);
  if (!work.pointwise) return work;
  x_has_pixel_rows(config.staging) ? fold_rows(work.x, work.y) : flatten(work.x, work.y);
  return work;
}

bool pixels_copyable(const Side& side, int64_t groups) {
  return (side.w == 1 || side.stride.w == 1) && side.align >= 16 && copies(side.n, side.stride.n) &&
         copies(side.h, side.stride.h) && copies(side.c * groups, side.stride.c);
}

// How dy's rows of pixels lie to addresses that the copy engine takes.
struct RowPhases {
  int64_t rows, filters;
  int64_t lead;  // of the columns of the maps, the most
};
RowPhases row_phases_of_y(const Side& y) {
  RowPhases out{row_phases(y), address_phases(y.c, y.stride.c), 0};
  int64_t row = 0, filter = 0;
  for (int64_t i = 0; i < out.rows; ++i) row = std::max(row, i * y.stride.h % 8);
  for (int64_t i = 0; i < out.filters; ++i) filter = std::max(filter, i * y.stride.c % 8);
  out.lead = row + filter;
  return out;
}
bool rows_copyable(const Side& y, int64_t groups) {
  if (y.stride.w != 1 || y.align < 16 || y.stride.h <= 0 || y.stride.c <= 0) return false;
  const RowPhases phases = row_phases_of_y(y);
  return phases.rows * phases.filters <= kMaxTensorMaps && y.h >= phases.rows && y.c >= phases.filters &&
         copies(y.n, y.stride.n) && copies(y.h, y.stride.h * phases.rows) && copies(y.c, y.stride.c * phases.filters) &&
         copies(groups, y.c * y.stride.c);
}
// Columns that tiles begin before the image.
int64_t lead_of(const Work& work, WgradStaging staging) {
  return staging == WgradStaging::kTmaRows ? row_phases_of_y(work.y).lead : 0;
}
// Blocks of filters; each is of one phase.
int64_t filter_blocks(const Work& work, WgradStaging staging) {
  const int64_t phases = staging == WgradStaging::kTmaRows ? row_phases_of_y(work.y).filters : 1;
  return phases * ceil_div(ceil_div(work.y.c, phases), kFilters);
}

Copied copied_operands(const Work& work, WgradStaging staging) {
  return {x_has_pixel_rows(staging) || copyable(work.x, work.groups),
          y_has_pixel_rows(staging) || copyable(work.y, work.groups)};
}

struct Tap {
  int8_t h_run, w_run, i, j, c_block;
};

// One instruction's blocks: taps of one box at equal distances or, where each has its own, whole boxes in a row.
struct Unit {
  int count;
  Tap tap[kMaxWgradBlocks];
};

// The units of a job's taps, cut into tap groups of `room` units each.
struct Units {
  int count = 0, room = 0, c_blocks = 0;  // c_blocks of channels a job
  Unit unit[kMaxWgradUnits];
  bool fits = true;

  void add(const Unit& one) {
    if (count == kMaxWgradUnits) fits = false;
    if (fits) unit[count++] = one;
  }
  int groups() const { return (count + room - 1) / room; }
  int end(int group) const { return std::min(count, (group + 1) * room); }
};

// Lines of up to `blocks` taps through a rows x cols grid that begins in row0, with as few lines as possible.
void cut_into_lines(int h_run, int w_run, int row0, int rows, int cols, int blocks, Units& units) {
  auto line = [&](int i, int j, int di, int dj, int count) {
    Unit unit{count, {}};
    for (int b = 0; b < count; ++b) {
      unit.tap[b] = {static_cast<int8_t>(h_run), static_cast<int8_t>(w_run), static_cast<int8_t>(row0 + i + b * di),
                     static_cast<int8_t>(j + b * dj), 0};
    }
    units.add(unit);
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

// Calls f(h run, w run, rows, columns) for each grid of taps that may share boxes.
template <typename F>
void for_each_grid(const Work& work, F f) {
  for (int a = 0; a < work.h.runs; ++a) {
    for (int b = 0; b < work.w.runs; ++b) {
      f(a, b, static_cast<int>(work.h.run[a].count), static_cast<int>(work.w.run[b].count));
    }
  }
}

void make_units(const Work& work, const WgradConfig& config, BoxTaps box_taps, int m_blocks, Units& units) {
  units.count = 0, units.fits = true;
  units.room = config.slots() / m_blocks;
  const int c_blocks = static_cast<int>(ceil_div(work.x.c, config.channels));

  if (box_taps == BoxTaps::kOne) {
    int taps = 0;
    for_each_grid(work, [&](int, int, int rows, int cols) { taps += rows * cols; });
    units.c_blocks = std::clamp(units.room * config.blocks / taps, 1, c_blocks);
    Unit unit{0, {}};
    for (int c = 0; c < units.c_blocks; ++c) {
      for_each_grid(work, [&](int a, int b, int rows, int cols) {
        for (int tap = 0; tap < rows * cols; ++tap) {
          unit.tap[unit.count++] = {static_cast<int8_t>(a), static_cast<int8_t>(b), static_cast<int8_t>(tap / cols),
                                    static_cast<int8_t>(tap % cols), static_cast<int8_t>(c)};
          if (unit.count == config.blocks) units.add(unit), unit.count = 0;
        }
      });
    }
    if (unit.count > 0) units.add(unit);
    return;
  }
  for_each_grid(work, [&](int a, int b, int rows, int cols) {
    const int parts = box_taps == BoxTaps::kRow ? rows : 1;
    for (int i = 0; i < parts; ++i) cut_into_lines(a, b, i, rows / parts, cols, config.blocks, units);
  });
  if (work.h.runs == 1) {  // neighbours in the filter read neighbouring rows: a group of them needs a smaller box
    for (int i = 1; i < units.count; ++i) {
      auto above = [](const Unit& a, const Unit& b) { return a.tap[0].i < b.tap[0].i; };
      std::rotate(std::upper_bound(units.unit, units.unit + i, units.unit[i], above), units.unit + i,
                  units.unit + i + 1);
    }
  }
  const int once = units.count;
  units.c_blocks = std::clamp(units.room / std::max(once, 1), 1, c_blocks);
  for (int c = 1; c < units.c_blocks; ++c) {
    for (int i = 0; i < once; ++i) {
      Unit unit = units.unit[i];
      for (Tap& tap : unit.tap) tap.c_block = static_cast<int8_t>(c);
      units.add(unit);
    }
  }
}

// A box of x and the taps it serves: (i, j) from the first to the last.
struct Part {
  Tap first, last;

  bool serves(const Tap& tap, BoxTaps box_taps) const {
    return first.h_run == tap.h_run && first.w_run == tap.w_run && first.c_block == tap.c_block &&
           (box_taps == BoxTaps::kAll || first.i == tap.i) && (box_taps != BoxTaps::kOne || first.j == tap.j);
  }
};

// The boxes that a tap group needs.
struct Parts {
  int count = 0;
  Part part[kMaxWgradParts];

  int find(const Tap& tap, BoxTaps box_taps) const {
    int i = 0;
    while (i < count && !part[i].serves(tap, box_taps)) ++i;
    return i;
  }
};

void make_parts(const Units& units, int group, BoxTaps box_taps, Parts& parts) {
  parts.count = 0;
  for (int u = group * units.room; u < units.end(group); ++u) {
    for (int b = 0; b < units.unit[u].count; ++b) {
      const Tap& tap = units.unit[u].tap[b];
      const int at = parts.find(tap, box_taps);
      if (at == parts.count) parts.part[parts.count++] = {tap, tap};
      Part& part = parts.part[at];
      part.first.i = std::min(part.first.i, tap.i), part.first.j = std::min(part.first.j, tap.j);
      part.last.i = std::max(part.last.i, tap.i), part.last.j = std::max(part.last.j, tap.j);
    }
  }
}

// Input of the part's first pixel, less stride times the tile's first output.
Pair offset_of(const Work& work, const Part& part) {
  const Run &row = work.h.run[part.first.h_run], &col = work.w.run[part.first.w_run];
  return {row.d + part.first.i * row.step * work.stride.h, col.d + part.first.j * col.step * work.stride.w};
}

// Positions a row (or image) must have so that a shift by `extent` off its end meets padding: its own, or the zeros
// that the next row starts with.
int64_t linear_size(int64_t outputs, int64_t inputs, int64_t stride, int64_t extent, int64_t d) {
  if (d >= 0) return outputs + extent;
  const int64_t lead = ceil_div(-d, stride), inputs_end = ceil_div(inputs - d, stride);
  return std::min(outputs + extent, std::max(outputs + extent - lead, inputs_end));
}

// Of all parts of all tap groups.
struct Reach {
  int64_t most_parts = 0, all_parts = 0;
  int64_t extent_h = 0, extent_w = 0;  // positions beyond the outputs
  int64_t linear_h, linear_w;
};

Reach reach_of(const Work& work, const Units& units, BoxTaps box_taps) {
  Reach reach{.linear_h = work.y.h, .linear_w = work.y.w};
  Parts parts;
  for (int g = 0; g < units.groups(); ++g) {
    make_parts(units, g, box_taps, parts);
    reach.most_parts = std::max<int64_t>(reach.most_parts, parts.count), reach.all_parts += parts.count;
    for (int i = 0; i < parts.count; ++i) {
      const Part& part = parts.part[i];
      const int64_t h = (part.last.i - part.first.i) * work.h.run[part.first.h_run].step;
      const int64_t w = (part.last.j - part.first.j) * work.w.run[part.first.w_run].step;
      const Pair d = offset_of(work, part);
      reach.extent_h = std::max(reach.extent_h, h), reach.extent_w = std::max(reach.extent_w, w);
      reach.linear_h = std::max(reach.linear_h, linear_size(work.y.h, work.x.h, work.stride.h, h, d.h));
      reach.linear_w = std::max(reach.linear_w, linear_size(work.y.w, work.x.w, work.stride.w, w, d.w));
    }
  }
  return reach;
}

// A tile in shared memory and in the image. Pixels, unless named bytes.
struct Tile {
  int64_t x_rows, x_pitch, y_rows, y_pitch;  // rows of one image
  int64_t steps;                             // of 16 pixels
  int64_t used;                              // positions that a step may read, from where it starts
  int64_t x_box_bytes, x_part_bytes, y_box_bytes, y_block_bytes, stage_bytes;
  int64_t stages, count;
};

// Full, empty, and one of dy's rows.
constexpr int64_t kBarrierBytes = 24 * kMaxWgradStages;

// False if it does not fit.
bool make_tile(const Work& work, const WgradConfig& config, const Reach& reach, const WgradTiling& tiling,
               int64_t smem_bytes, Tile& tile) {
  const int64_t row_bytes = config.channels * 2, n = tiling.tile_n;
  const bool whole_images = n > 1;
  const int64_t lead = lead_of(work, config.staging);
  tile.x_pitch = tiling.linear ? reach.linear_w : tiling.tile_q + lead + reach.extent_w;
  tile.y_pitch = tiling.linear ? reach.linear_w : tiling.tile_q;
  tile.y_rows = whole_images ? reach.linear_h : tiling.tile_p;
  tile.x_rows = whole_images ? reach.linear_h : tiling.tile_p + reach.extent_h;
  if (config.staging == WgradStaging::kTmaRows && tiling.tile_p % row_phases(work.y) != 0) return false;
  if ((tile.x_pitch - 1) * work.stride.w >= kMaxBox || (tile.x_rows - 1) * work.stride.h >= kMaxBox) return false;
  const int64_t x_boxes = n * tile.x_rows * tile.x_pitch, y_boxes = n * tile.y_rows * tile.y_pitch;
  int64_t x_positions = x_boxes, y_positions = y_boxes;
  if (tiling.linear) {
    const int64_t last = ((n - 1) * tile.y_rows + tiling.tile_p - 1) * tile.y_pitch + work.y.w;
    tile.used = round_up(last, 32);  // steps come in pairs
    tile.steps = tile.used / 16;
    x_positions = std::max(x_boxes, tile.used + reach.extent_h * tile.x_pitch + reach.extent_w);
    y_positions = std::max(y_boxes, tile.used);
  } else {
    tile.used = (tiling.tile_p - 1) * tile.x_pitch + lead + tiling.tile_q;
    tile.steps = int64_t{tiling.tile_p} * tiling.tile_q / 16;
  }
  if (tile.steps > kMaxWgradSteps) return false;
  tile.x_box_bytes = x_boxes * row_bytes, tile.x_part_bytes = round_up(x_positions * row_bytes, kAlignment);
  tile.y_box_bytes = y_boxes * kYRowBytes, tile.y_block_bytes = round_up(y_positions * kYRowBytes, kAlignment);
  tile.stage_bytes = reach.most_parts * tile.x_part_bytes + tiling.m_blocks * tile.y_block_bytes;
  tile.stages = std::min<int64_t>(kMaxWgradStages, (smem_bytes - kAlignment - kBarrierBytes) / tile.stage_bytes);
  tile.count = ceil_div(work.y.n, n) * ceil_div(work.y.h, tiling.tile_p) *
               (tiling.linear ? 1 : ceil_div(work.y.w + lead, tiling.tile_q));
  return tile.stages >= 2;
}

// Where a unit's blocks lie in a stage, bytes: block b at start + b * step.
struct Line {
  int64_t start, step;
};
Line line_of(const Work& work, const WgradConfig& config, BoxTaps box_taps, const Parts& parts, const Tile& tile,
             const Unit& unit) {
  auto offset = [&](const Tap& tap) {
    const int at = parts.find(tap, box_taps);
    const Tap& first = parts.part[at].first;
    const int64_t shift =
        (tap.i - first.i) * work.h.run[tap.h_run].step * tile.x_pitch + (tap.j - first.j) * work.w.run[tap.w_run].step;
    return at * tile.x_part_bytes + shift * config.channels * 2;
  };
  const int64_t start = offset(unit.tap[0]);
  return {start, unit.count > 1 ? offset(unit.tap[1]) - start : 0};
}

// Blocks without a tap are computed all the same: what they read must lie in the stage.
bool spare_blocks_stay_inside(const Work& work, const WgradConfig& config, BoxTaps box_taps, const Units& units,
                              const Tile& tile) {
  Parts parts;
  for (int g = 0; g < units.groups(); ++g) {
    bool made = false;
    for (int u = g * units.room; u < units.end(g); ++u) {
      if (units.unit[u].count == config.blocks) continue;
      if (!made) make_parts(units, g, box_taps, parts);
      made = true;
      const Line line = line_of(work, config, box_taps, parts, tile, units.unit[u]);
      const int64_t last = line.start + (config.blocks - 1) * line.step;
      if (last + tile.used * config.channels * 2 > tile.stage_bytes) return false;
    }
  }
  return true;
}

WgradOperand operand(const Side& side, int64_t groups, int64_t pitch, int64_t rows, int64_t images, Pair step) {
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
  out.box_h = FastDivmod(rows), out.box_rows = i32(images * rows), out.pitch = i32(pitch);
  out.row_units = FastDivmod((pitch + 2 * out.vector - 2) / out.vector);
  return out;
}

TensorMapSpec tensor_map(const Side& side, int64_t groups, bool pixel_rows, int64_t channels, int64_t pitch,
                         int64_t rows, int64_t images, Pair step) {
  auto u64 = [](int64_t v) { return static_cast<uint64_t>(v); };
  auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  if (pixel_rows) {
    return {{u64(side.w), u64(side.c), u64(groups), u64(side.h), u64(side.n)},
            {stride_bytes(side.c * groups, side.stride.c), stride_bytes(groups, side.c * side.stride.c),
             stride_bytes(side.h, side.stride.h), stride_bytes(side.n, side.stride.n)},
            {u32(pitch), u32(channels), 1, u32((rows - 1) * step.h + 1), u32(images)},
            {1, 1, 1, u32(step.h), 1},
            i32(pitch * 2)};
  }
  return {{u64(side.c), u64(groups), u64(side.w), u64(side.h), u64(side.n)},
          {stride_bytes(groups, side.c), stride_bytes(side.w, side.stride.w), stride_bytes(side.h, side.stride.h),
           stride_bytes(side.n, side.stride.n)},
          {u32(channels), 1, u32((pitch - 1) * step.w + 1), u32((rows - 1) * step.h + 1), u32(images)},
          {1, 1, u32(step.w), u32(step.h), 1},
          i32(channels * 2)};
}

// WgradRows and its maps.
void make_row_maps(const Work& work, const WgradTiling& tiling, WgradLaunch& launch) {
  const Side& y = work.y;
  const RowPhases phases = row_phases_of_y(y);
  WgradRows& rows = launch.params.rows;
  rows.row_log2 = std::countr_zero(static_cast<uint64_t>(phases.rows));
  rows.filter_log2 = std::countr_zero(static_cast<uint64_t>(phases.filters));
  rows.shifted = phases.lead > 0;
  for (int64_t filter = 0; filter < phases.filters; ++filter) {
    for (int64_t row = 0; row < phases.rows; ++row) {
      const int64_t shift = row * y.stride.h % 8 + filter * y.stride.c % 8;
      Side side = y;
      side.w += shift;
      side.c = ceil_div(y.c - filter, phases.filters), side.stride.c *= phases.filters;
      side.h = ceil_div(y.h - row, phases.rows), side.stride.h *= phases.rows;
      TensorMapSpec& map = launch.y_map[launch.y_maps];
      map = tensor_map(side, 1, true, kFilters, tiling.tile_q, tiling.tile_p / phases.rows, 1, {1, 1});
      map.size[2] = static_cast<uint64_t>(work.groups), map.stride[1] = stride_bytes(work.groups, y.c * y.stride.c);
      map.offset = row * y.stride.h + filter * y.stride.c - shift;
      rows.shift[launch.y_maps++] = i32(shift);
    }
  }
}

WgradOperand x_operand(const Work& work, const WgradTiling& tiling, const Tile& tile) {
  return operand(work.x, work.groups, tile.x_pitch, tile.x_rows, tiling.tile_n, work.stride);
}
WgradOperand y_operand(const Work& work, const WgradTiling& tiling, const Tile& tile) {
  return operand(work.y, work.groups, tile.y_pitch, tile.y_rows, tiling.tile_n, kUnitStep);
}

// The model's constants: clocks and bytes, fitted to 10,790 timed plans of 46 problems on an H200 (docs/perf-log.md),
// 3% from the best plan on average. Rates are those that the formulas below need, not the hardware's.
constexpr double kClocksPerUs = 1755;
constexpr double kMmaEfficiency = .91;
constexpr double kCopyBytes = 70, kCopyClocks = 125;  // a clock; of one copy, whatever its size
constexpr double kCopyLatency = 1600, kTileClocks = 40;
constexpr double kDramBytes = 2711, kOverlap = .35;  // of the shorter of arithmetic and device memory, what shows
constexpr double kSumsToSmem = 21, kSumsOut = 26;    // bytes a clock
constexpr double kLaunchClocks = 13300, kReduceClocks = 2900;
// Producer warps go round: loads, then stores, some 500 instructions of one warp a scheduler and a memory latency.
constexpr double kStagingRoundClocks = 4400;

double staging_clocks(const WgradOperand& from, int channels, int64_t boxes) {
  const WgradSharing sharing(from.vector, channels / 8);
  const int64_t lanes = ceil_div(int64_t{from.box_rows} * from.row_units.divisor, sharing.lane_units);
  const int64_t count = lanes * (sharing.spread ? 1 : channels / 8);
  return kStagingRoundClocks * static_cast<double>(boxes * ceil_div(count, kWgradStagingWarps * sharing.batch));
}

double tile_clocks(const Work& work, const WgradConfig& config, const Reach& reach, const WgradTiling& tiling,
                   const Tile& tile, Copied copied) {
  // A wgmma m64 x n x k16 takes n / 2 clocks, or what reading its operands at 128 bytes a clock takes.
  const double wgmma = std::max(config.n() / 2., (64 + config.n()) / 4.);
  const double mma = static_cast<double>(tile.steps * config.slots()) * wgmma / kMmaEfficiency;
  const double bytes = static_cast<double>(reach.most_parts * tile.x_box_bytes + tiling.m_blocks * tile.y_box_bytes);
  const double copies = static_cast<double>(reach.most_parts + tiling.m_blocks);
  double load = bytes / kCopyBytes + kCopyClocks * copies;
  // The copy engine takes as long for a short row of pixels as for one of 128 bytes, and longer where each lies in
  // another page of memory, or neighbours have maps of their own.
  if (config.staging == WgradStaging::kTmaRows) {
    constexpr int64_t kPageBytes = 2 << 20;
    const double row_clocks = work.y.stride.c * 2 >= kPageBytes / 2 || row_phases(work.y) > 1 ? 13 : 5;
    const auto rows = static_cast<double>(tiling.m_blocks * kFilters * tiling.tile_p);
    load += std::max(0., rows * row_clocks - static_cast<double>(tiling.m_blocks * tile.y_box_bytes) / kCopyBytes);
  }
  if (!copied.x) load += staging_clocks(x_operand(work, tiling, tile), config.channels, reach.most_parts);
  if (!copied.y) load += staging_clocks(y_operand(work, tiling, tile), kFilters, tiling.m_blocks);
  return std::max({mma, load, (mma + load + kCopyLatency) / static_cast<double>(tile.stages)}) + kTileClocks;
}

// The workspace: operands as rows of pixels, then partial sums.
struct Workspace {
  int64_t x, y;  // bytes

  int64_t y_offset() const { return x; }
  int64_t bytes() const { return x + y; }
};
Workspace workspace_of(const Work& work) {
  const int64_t folded = round_up(int64_t{work.fold.pixels} * work.fold.row * 2, 128);
  return {work.reorder_x ? reordered_bytes(work.x_planes, work.groups) : folded,
          work.reorder_y ? reordered_bytes(work.y_planes, work.groups) : 0};
}

// Every Hopper GPU runs as many clusters of two as it has pairs of multiprocessors.
constexpr int64_t kMaxCooperativeCluster = 2;

// How a job's pixels are shared out.
struct Sharing {
  double clocks = std::numeric_limits<double>::max();
  int64_t splits = 1, cluster = 1;
};

// `room`: bytes for the sums of several clusters.
Sharing share_pixels(const WgradConfig& config, const DeviceSpec& device, int64_t jobs, int64_t tiles,
                     double tile_clocks, double dram_clocks, int64_t max_cluster, int64_t room) {
  Sharing best;
  const double sums = config.job_bytes();
  auto consider = [&](int64_t splits, int64_t cluster, int64_t sms) {
    const int64_t partials = splits / cluster;
    if (partials > 1 && partials * jobs * config.job_bytes() > room) return;
    const double block = static_cast<double>(ceil_div(tiles, splits)) * tile_clocks + sums / kSumsToSmem +
                         sums / static_cast<double>(cluster) / kSumsOut;
    const double work = static_cast<double>(ceil_div(splits * jobs, sms)) * block;
    const double clocks = std::max(work, dram_clocks) + kOverlap * std::min(work, dram_clocks) + kLaunchClocks +
                          (partials > 1 ? kReduceClocks : 0);
    if (clocks < best.clocks) best = {clocks, splits, cluster};
  };
  consider(1, 1, device.sm_count);
  for (int64_t cluster = 1; cluster <= max_cluster; cluster *= 2) {
    // A cluster lives in one of the chip's groups of multiprocessors, some of which have few to spare.
    const int64_t sms = cluster <= 2 ? device.sm_count : device.sm_count * 10 / 11;
    for (int64_t waves = 1; waves <= 2; ++waves) {
      const int64_t most = std::max(room / (jobs * config.job_bytes()) * cluster, cluster);
      const int64_t splits = std::min({waves * sms / jobs, tiles, most}) / cluster * cluster;
      if (splits > 0) consider(splits, cluster, sms);
    }
  }
  return best;
}

constexpr WgradTiling shape(bool linear, int64_t n, int64_t rows, int64_t cols) {
  return {{}, linear, 1, 1, static_cast<int16_t>(n), static_cast<int16_t>(rows), static_cast<int16_t>(cols), false};
}

// The smallest, which every configuration has room for.
constexpr WgradTiling kLastResort = shape(false, 1, 4, 8);
WgradTiling last_pixel_rows(const Work& work) { return shape(false, 1, std::max<int64_t>(4, row_phases(work.y)), 16); }

// Calls f(tiling) for the shapes that were the fastest, or nearly, on some problem.
template <typename F>
void for_each_shape(const Work& work, WgradStaging staging, F f) {
  const int64_t p = work.y.h, q = work.y.w, most = 16 * kMaxWgradSteps;
  if (x_has_pixel_rows(staging)) {
    const int64_t cols = q > 32 ? 64 : q > 16 ? 32 : 16;
    for (int64_t rows = 64 / cols; rows * cols <= 256; rows *= 2) f(shape(false, 1, rows, cols));
    return;
  }
  const bool y_rows = y_has_pixel_rows(staging);  // of 32 to 128 bytes
  for (int64_t cols = y_rows ? 16 : 8; cols <= (y_rows ? 64 : 256); cols *= 2) {
    if (cols >= 2 * q && cols > 16) break;
    for (int64_t pixels = 64; pixels <= 256; pixels *= 2) {
      const int64_t rows = pixels / cols;
      if (rows == 0 || (rows >= 2 * p && rows > 2) || (cols > 64 && rows > 1)) continue;
      if (cols == 8 && rows < 2) continue;
      f(shape(false, 1, rows, cols));
    }
  }
  if (q > kMaxBox || y_rows) return;
  for (int64_t rows = std::min(p, most / q); rows > 0; rows = rows * 3 / 4) {
    rows = ceil_div(p, ceil_div(p, rows));  // no more than as many tiles need
    f(shape(true, 1, rows, q));
    if (rows * q < 128) break;
  }
  for (int64_t images = 2; images <= std::min<int64_t>(work.y.n, 4) && images * p * q <= most; ++images) {
    f(shape(true, images, p, q));
  }
}

int64_t job_count(const Work& work, const WgradConfig& config, const Units& units, int m_blocks) {
  const int64_t c_jobs = ceil_div(ceil_div(work.x.c, config.channels), units.c_blocks);
  const int64_t k_jobs = ceil_div(filter_blocks(work, config.staging), m_blocks);
  return units.groups() * c_jobs * k_jobs * work.groups;
}

// How the sums reach dW, if no other block has any of the same.
struct Store {
  WgradStore mode = WgradStore::kQuads;
  int32_t pitch = 0;

  int64_t bytes() const { return kWgradStoreRows * int64_t{pitch}; }
};

Store store_of(const ConvProblem& problem, const WgradConfig& config, const Units& units, int64_t partials, bool fold) {
  const Strides& w = problem.w_strides;
  const int64_t c = problem.c_per_group(), taps = problem.r * problem.s;
  if (fold) return {};
  auto whole = [](int64_t size, int64_t stride) { return size == 1 || stride % 8 == 0; };
  constexpr int64_t kFewPartials = 8;
  if (partials > kFewPartials || c % 8 != 0 || problem.w_align < 16 || !whole(problem.k, w.n)) return {};
  if (partials == 1 && w.c == 1 && whole(problem.r, w.h) && whole(problem.s, w.w)) {
    return {WgradStore::kChannels, wgrad_store_pitch(units.room * config.n())};
  }
  const bool taps_inside = (problem.s == 1 || w.w == 1) && (problem.r == 1 || w.h == problem.s) && w.c == taps;
  if (!taps_inside || units.groups() > 1) return {};
  return {WgradStore::kTaps, wgrad_store_pitch(units.c_blocks * config.channels * i32(taps))};
}

int64_t smem_of(const WgradConfig& config, const Tile& tile, const Store& store, bool reorders) {
  const int64_t reordering = reorders ? config.threads() / 32 * kReorderBytes : 0;
  return kAlignment + kBarrierBytes +
         std::max({tile.stages * tile.stage_bytes, config.job_bytes() + store.bytes(), reordering});
}

constexpr const char* kNoRoom = "finds no tile that fits shared memory and the workspace";

Plan plan_as(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device, bool fold) {
  const WgradConfig& config = entry.wgrad;
  const Work work = make_work(problem, config, fold);
  const Copied copied = copied_operands(work, config.staging);
  const double dram_clocks = compulsory_bytes(problem) / kDramBytes;
  const bool reorders = work.reorder_x || work.reorder_y || fold;
  constexpr double kBothUs = 3;  // that two reorderings share
  const Workspace workspace = workspace_of(work);
  const int64_t room = max_workspace_bytes(problem) - workspace.bytes();
  Plan plan;
  if (room < 0) return plan;
  plan.cost_us = std::numeric_limits<double>::max();
  Units units;
  for (const BoxTaps box_taps : {BoxTaps::kAll, BoxTaps::kRow, BoxTaps::kOne}) {
    // Those that come to the same.
    if (box_taps == BoxTaps::kAll && work.h.most() * work.w.most() == 1) continue;
    if (box_taps == BoxTaps::kRow && (work.h.most() == 1 || work.w.most() == 1)) continue;

    for (int m_blocks = 1; m_blocks <= (work.pointwise ? 4 : 2); ++m_blocks) {
      if (config.slots() % m_blocks != 0 || m_blocks > filter_blocks(work, config.staging)) continue;
      make_units(work, config, box_taps, m_blocks, units);
      if (!units.fits || units.groups() > kMaxWgradTapGroups) continue;
      const Reach reach = reach_of(work, units, box_taps);
      if (reach.all_parts > kMaxWgradParts) continue;
      const int64_t jobs = job_count(work, config, units, m_blocks);
      const auto about_splits = static_cast<double>(std::max<int64_t>(1, device.sm_count / jobs));
      // The best tile first, by the arithmetic of a block; then the ways to share out its pixels.
      double least = std::numeric_limits<double>::max(), clocks_of_best = 0;
      WgradTiling tiling{};
      Tile tile{};
      auto consider = [&](WgradTiling shape) {
        shape.box_taps = box_taps, shape.fold = fold, shape.m_blocks = static_cast<int8_t>(m_blocks);
        Tile one;
        if (!make_tile(work, config, reach, shape, device.smem_optin_bytes, one)) return;
        const double clocks = tile_clocks(work, config, reach, shape, one, copied);
        const double block = std::ceil(static_cast<double>(one.count) / about_splits) * clocks;
        if (block >= least || !spare_blocks_stay_inside(work, config, box_taps, units, one)) return;
        least = block, clocks_of_best = clocks, tiling = shape, tile = one;
      };
      for_each_shape(work, config.staging, consider);
      if (tile.count == 0) consider(y_has_pixel_rows(config.staging) ? last_pixel_rows(work) : kLastResort);
      if (tile.count == 0) continue;
      const Sharing sharing = share_pixels(config, device, jobs, tile.count, clocks_of_best, dram_clocks,
                                           reorders ? kMaxCooperativeCluster : kMaxWgradCluster, room);
      const double share = std::min(1., static_cast<double>(sharing.splits * jobs) / device.sm_count);
      const double cost_us =
          sharing.clocks / kClocksPerUs + (work.reorder_x ? reorder_us(work.x_planes, work.groups, share) : 0) +
          (work.reorder_y ? reorder_us(work.y_planes, work.groups, share) : 0) +
          (fold ? reorder_us(work.x, work.groups, share) : 0) - kBothUs * (work.reorder_x && work.reorder_y);
      if (cost_us >= plan.cost_us) continue;
      tiling.cluster = static_cast<int8_t>(sharing.cluster);
      const int64_t partials = sharing.splits / sharing.cluster;
      plan.wgrad = tiling;
      plan.split = sharing.splits;
      plan.grid = sharing.splits * jobs;
      if (reorders) plan.first_grid = std::min(plan.grid, device.sm_count / sharing.cluster * sharing.cluster);
      const Store store = partials == 1 ? store_of(problem, config, units, partials, fold) : Store{};
      plan.smem_bytes = i32(smem_of(config, tile, store, reorders));
      plan.workspace_bytes = workspace.bytes() + (partials > 1 ? partials * jobs * config.job_bytes() : 0);
      plan.cost_us = cost_us;
    }
  }
  plan.kernel = &entry;
  plan.block_threads = config.threads();
  return plan;
}

bool stages_channels(const WgradConfig& config, int64_t c) {
  return config.channels == (c > 32 ? 64 : c > 16 ? 32 : 16);
}

// Whatever becomes of x.
const char* problem_why_not(const KernelEntry& entry, const ConvProblem& a, const DeviceSpec& device) {
  if (device.arch != 90) return "needs compute capability 9.0";
  if ((entry.dtypes & dtype_bit(a.dtype)) == 0) return "is not compiled for this dtype";
  if (a.n * a.c_per_group() == 0 || a.k == 0) return "has no pixels to sum, or no filter";
  for (const int64_t extent : {a.n, a.c, a.k, a.h + 2 * a.padding.h, a.w + 2 * a.padding.w}) {
    if (extent >= kMaxExtent) return "counts with 32 bits: extents stay below 2^29";
  }
  // Of the smallest tile and the smallest job.
  const double tiles = static_cast<double>(a.n) * static_cast<double>(ceil_div(a.p(), 4) * ceil_div(a.q(), 8));
  const double jobs =
      static_cast<double>(a.r * a.s * a.groups) *
      static_cast<double>(ceil_div(a.c_per_group(), entry.wgrad.channels) * ceil_div(a.k_per_group(), kFilters));
  if (tiles > INT32_MAX || jobs > INT32_MAX / 2) return "would need more blocks than a grid has";
  return nullptr;
}

const char* why_not_as_it_is(const KernelEntry& entry, const ConvProblem& a, const DeviceSpec& device) {
  const WgradConfig& config = entry.wgrad;
  const int64_t c = a.c_per_group();
  if (!stages_channels(config, c)) return "stages another number of channels at a time";
  if (a.stride.h > kMaxStride || a.stride.w > kMaxStride) return "takes strides up to 8";
  if (a.r * a.s > kMaxTaps) return "takes filters of up to 64 taps";
  const Work work = make_work(a, config, false);
  if (x_has_pixel_rows(config.staging)) {
    const bool fits = work.pointwise && pixels_copyable(work.x, a.groups) && pixels_copyable(work.y, a.groups);
    return fits ? nullptr : "copies rows of pixels: needs a 1x1 filter and NCHW planes of whole units of 16 bytes";
  }
  if (config.staging == WgradStaging::kTmaRows) {
    if (!copyable(work.x, a.groups) || work.pointwise || !rows_copyable(work.y, a.groups)) {
      return "copies channels of x and rows of dy's pixels: needs x in channels_last or planes without gaps, dy in "
             "NCHW, images of whole units of 16 bytes, no 1x1 filter";
    }
    return plan_as(entry, a, device, false).grid > 0 ? nullptr : kNoRoom;
  }
  const bool copied = copyable(work.x, a.groups) && copyable(work.y, a.groups);
  if (config.staging == WgradStaging::kTma && !copied) {
    return "copies boxes of channels: needs channels_last operands, aligned to 16 bytes as all their strides are, or "
           "planes without gaps";
  }
  if (work.reorder_x || work.reorder_y) {
    return plan_as(entry, a, device, false).grid > 0 ? nullptr : kNoRoom;
  }
  if (config.staging == WgradStaging::kWarps && copied) return "is for operands that the copy engine cannot read";
  return nullptr;
}

// Whether the kernel can have x with its strides folded into channels.
bool folds(const KernelEntry& entry, const ConvProblem& a, const DeviceSpec& device) {
  const WgradConfig& config = entry.wgrad;
  const bool copies_channels = config.staging == WgradStaging::kTma || config.staging == WgradStaging::kTmaRows;
  if (!copies_channels || fold_why_not(a) != nullptr || !stages_channels(config, a.c * a.stride.h * a.stride.w)) {
    return false;
  }
  const Side y = output_side(a);
  const bool stages_y =
      config.staging == WgradStaging::kTmaRows ? rows_copyable(y, 1) : copyable(y, 1) || reorderable(y, 1);
  return stages_y &&
         static_cast<double>(a.n) * static_cast<double>(a.h + a.stride.h) * static_cast<double>(a.w + a.stride.w) <
             kMaxExtent &&
         ceil_div(a.r, a.stride.h) * ceil_div(a.s, a.stride.w) <= kMaxTaps && plan_as(entry, a, device, true).grid > 0;
}

}  // namespace

const char* wgrad_why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const char* why = problem_why_not(entry, problem, device);
  if (why != nullptr || folds(entry, problem, device)) return why;
  return why_not_as_it_is(entry, problem, device);
}

Plan wgrad_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  Plan plan;
  if (why_not_as_it_is(entry, problem, device) == nullptr) plan = plan_as(entry, problem, device, false);
  if (!folds(entry, problem, device)) return plan;
  const Plan folded = plan_as(entry, problem, device, true);
  return plan.grid == 0 || folded.cost_us < plan.cost_us ? folded : plan;
}

WgradLaunch wgrad_launch(const Plan& plan, const ConvProblem& problem) {
  const WgradConfig& config = plan.kernel->wgrad;
  const WgradTiling& tiling = plan.wgrad;
  const bool x_pixel_rows = x_has_pixel_rows(config.staging), y_pixel_rows = y_has_pixel_rows(config.staging);
  const Work work = make_work(problem, config, tiling.fold);
  Units units;
  make_units(work, config, tiling.box_taps, tiling.m_blocks, units);
  const Reach reach = reach_of(work, units, tiling.box_taps);
  Tile tile;
  make_tile(work, config, reach, tiling, plan.smem_bytes, tile);

  WgradLaunch launch{};
  WgradParams& out = launch.params;
  const Workspace workspace = workspace_of(work);
  launch.y_offset = workspace.y_offset(), launch.partial_offset = workspace.bytes();
  if (work.reorder_x) out.x_order = make_reorder(work.x_planes, work.groups);
  if (work.reorder_y) out.y_order = make_reorder(work.y_planes, work.groups);
  out.x_fold = work.fold;
  const int64_t row_bytes = config.channels * 2;
  const Copied copied = copied_operands(work, config.staging);
  out.x_copied = copied.x, out.y_copied = copied.y;
  out.x = x_operand(work, tiling, tile), out.y = y_operand(work, tiling, tile);
  const int64_t lead = lead_of(work, config.staging);
  if (copied.x) {
    launch.x_map = tensor_map(work.x, work.groups, x_pixel_rows, config.channels, tile.x_pitch, tile.x_rows,
                              tiling.tile_n, work.stride);
  }
  if (config.staging == WgradStaging::kTmaRows) {
    make_row_maps(work, tiling, launch);
  } else if (copied.y) {
    launch.y_map[launch.y_maps++] =
        tensor_map(work.y, work.groups, y_pixel_rows, kFilters, tile.y_pitch, tile.y_rows, tiling.tile_n, kUnitStep);
  }

  const int64_t c_jobs = ceil_div(ceil_div(work.x.c, config.channels), units.c_blocks);
  const int64_t k_jobs = ceil_div(filter_blocks(work, config.staging), tiling.m_blocks);
  out.tap_groups = FastDivmod(units.groups()), out.c_jobs = FastDivmod(c_jobs), out.k_jobs = FastDivmod(k_jobs);
  out.jobs = FastDivmod(units.groups() * c_jobs * k_jobs * work.groups);
  out.cluster = FastDivmod(tiling.cluster);
  out.splits = i32(plan.split), out.partials = i32(plan.split / tiling.cluster);
  out.tiles = i32(tile.count);
  out.tiles_q = FastDivmod(tiling.linear ? 1 : ceil_div(work.y.w + lead, tiling.tile_q));
  out.tiles_p = FastDivmod(ceil_div(work.y.h, tiling.tile_p));
  out.tile_n = tiling.tile_n, out.tile_p = tiling.tile_p, out.tile_q = tiling.tile_q;
  out.stride_h = i32(work.stride.h), out.stride_w = i32(work.stride.w);
  out.m_blocks = tiling.m_blocks, out.units_per_m_block = units.room, out.c_blocks_per_job = units.c_blocks;
  out.stages = i32(tile.stages), out.stage_bytes = i32(tile.stage_bytes);
  out.data_bytes = i32(plan.smem_bytes - kAlignment - kBarrierBytes);
  out.x_part_bytes = i32(tile.x_part_bytes), out.x_box_bytes = i32(tile.x_box_bytes);
  out.y_block_bytes = i32(tile.y_block_bytes), out.y_box_bytes = i32(tile.y_box_bytes);
  out.y_offset = i32(reach.most_parts * tile.x_part_bytes);
  out.x_group_pitch = i32(8 * row_bytes), out.y_group_pitch = i32(8 * kYRowBytes);

  // A step is 16 pixels of a row, or 8 each of two. Where rows of the tile are of pixels, a row of the image is one of
  // them for each channel.
  const bool wide = tiling.linear || tiling.tile_q % 16 == 0;
  if (!wide) out.x_group_pitch = i32(tile.x_pitch * row_bytes), out.y_group_pitch = i32(tile.y_pitch * kYRowBytes);
  if (x_pixel_rows) out.x_group_pitch = 8 * 2 * tiling.tile_q;
  if (y_pixel_rows) out.y_group_pitch = 8 * 2 * tiling.tile_q;
  const int64_t rows = tiling.linear ? 1 : tiling.tile_p, cols = tiling.linear ? 16 * tile.steps : tiling.tile_q;
  int steps = 0;
  for (int64_t i = 0; i < rows; i += wide ? 1 : 2) {
    for (int64_t j = 0; j < cols; j += wide ? 16 : 8) {
      const int64_t left = lead - out.rows.shift[i & ((1 << out.rows.row_log2) - 1)];  // as far as the row's pixels go
      const int64_t x = i * tile.x_pitch * row_bytes + (left + j) * (x_pixel_rows ? 2 : row_bytes);
      const int64_t y =
          out.rows.place(i32(i), i32(rows)) * tile.y_pitch * kYRowBytes + j * (y_pixel_rows ? 2 : kYRowBytes);
      out.step[steps++] = {static_cast<uint16_t>(x / 16), static_cast<uint16_t>(y / 16)};
    }
  }
  out.step_pairs = steps / 2;

  int part_count = 0;
  Parts parts;
  for (int g = 0; g < units.groups(); ++g) {
    make_parts(units, g, tiling.box_taps, parts);
    WgradTapGroup& group = out.tap_group[g];
    group.part_begin = static_cast<int16_t>(part_count), group.unit_begin = static_cast<int16_t>(g * units.room);
    for (int i = 0; i < parts.count; ++i) {
      const Pair d = offset_of(work, parts.part[i]);
      out.part[part_count++] = {i32(d.h), i32(d.w - lead * work.stride.w), parts.part[i].first.c_block};
    }
    for (int u = g * units.room; u < units.end(g); ++u) {
      const Unit& unit = units.unit[u];
      const Line line = line_of(work, config, tiling.box_taps, parts, tile, unit);
      WgradUnit& to = out.unit[u];
      to.start = static_cast<uint16_t>(line.start / 16), to.step = static_cast<uint16_t>(line.step / 16);
      for (int b = 0; b < kMaxWgradBlocks; ++b) {
        to.c_block[b] = -1;
        if (b >= unit.count) continue;
        const Tap& tap = unit.tap[b];
        const Run &row = work.h.run[tap.h_run], &col = work.w.run[tap.w_run];
        to.r[b] = static_cast<int16_t>(row.tap0 + tap.i * row.dtap);
        to.s[b] = static_cast<int16_t>(col.tap0 + tap.j * col.dtap);
        to.c_block[b] = tap.c_block;
      }
    }
    group.part_end = static_cast<int16_t>(part_count), group.unit_end = static_cast<int16_t>(units.end(g));
  }

  const Strides& w = problem.w_strides;
  auto even = [](int64_t size, int64_t stride) { return size == 1 || stride % 2 == 0; };
  out.c = i32(work.x.c), out.k = i32(work.y.c);
  out.w_k = w.n, out.w_c = w.c, out.w_r = w.h, out.w_s = w.w, out.w_group = problem.k_per_group() * w.n;
  const Store store = store_of(problem, config, units, out.partials, tiling.fold);
  out.store = store.mode, out.store_pitch = store.pitch;
  out.taps = i32(problem.r * problem.s), out.filter_w = i32(problem.s);
  out.w_pairs = !tiling.fold && w.c == 1 && work.x.c % 2 == 0 && problem.w_align >= 4 && even(problem.k, w.n) &&
                even(problem.r, w.h) && even(problem.s, w.w);
  return launch;
}

}  // namespace fastconv
