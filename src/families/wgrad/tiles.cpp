#include "fastconv/families/wgrad/tiles.h"

#include "fastconv/core/integers.h"
#include "fastconv/tile/copies.h"
#include "fastconv/tile/float_lead.h"

namespace fastconv::wgrad {
namespace {

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

// Floats of a filter in one of the copies of dy as it lies.
int64_t floats_pitch(const Work& work, const WgradTiling& tiling, bool whole_rows) {
  const int64_t floats = (whole_rows ? (tiling.tile_p - 1) * work.y.w : 0) + tiling.tile_q + kMaxFloatLead;
  return round_up(floats - 8, 16) + 8;
}

}  // namespace

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

Pair offset_of(const Work& work, const Part& part) {
  const Run &row = work.h.run[part.first.h_run], &col = work.w.run[part.first.w_run];
  return {row.d + part.first.i * row.step * work.stride.h, col.d + part.first.j * col.step * work.stride.w};
}

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

bool copies_whole_rows(const Work& work, const WgradTiling& tiling) {
  return tiling.tile_q >= work.y.w && floats_pitch(work, tiling, true) <= kMaxBox;
}

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
  tile.copies = 1;
  if (work.floats) {
    const bool whole_rows = copies_whole_rows(work, tiling);
    tile.copies = whole_rows ? 1 : tiling.tile_p, tile.y_pitch = floats_pitch(work, tiling, whole_rows);
    tile.y_box_bytes = tile.copies * kFilters * tile.y_pitch * 4;
    tile.y_block_bytes = round_up(tile.y_box_bytes, kAlignment);
  }
  tile.stage_part_bytes = reach.most_parts * tile.x_part_bytes;
  tile.stage_bytes = work.stage_parts() * tile.stage_part_bytes + tiling.m_blocks * tile.y_block_bytes;
  tile.stages = std::min<int64_t>(kMaxWgradStages,
                                  (smem_bytes - kAlignment - kBarrierBytes - stream_bytes(tiling)) / tile.stage_bytes);
  tile.count = ceil_div(work.y.n, n) * ceil_div(work.y.h, tiling.tile_p) *
               (tiling.linear ? 1 : ceil_div(work.y.w + lead, tiling.tile_q));
  return tile.stages >= 2;
}

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
      const int64_t last =
          (work.stage_parts() - 1) * tile.stage_part_bytes + line.start + (config.blocks - 1) * line.step;
      if (last + tile.used * config.channels * 2 > tile.stage_bytes) return false;
    }
  }
  return true;
}

WgradOperand x_operand(const Work& work, const WgradTiling& tiling, const Tile& tile) {
  return operand(work.x, work.groups, tile.x_pitch, tile.x_rows, tiling.tile_n, work.stride);
}
WgradOperand y_operand(const Work& work, const WgradTiling& tiling, const Tile& tile) {
  return operand(work.y, work.groups, tile.y_pitch, tile.y_rows, tiling.tile_n, kUnitStep);
}

}  // namespace fastconv::wgrad
