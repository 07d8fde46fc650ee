#include "fastconv/planner/halo_sm90.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <ostream>

namespace fastconv {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int kMaxStages = 64;  // what the barrier area holds, both rings
constexpr int64_t kEpilogueSmem = 2 * 8192, kBarrierSmem = 16 * kMaxStages, kAlignment = 1024;
constexpr int kBlock = 64;  // pixels of an M-block

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// One of the two tensors as the engine sees it; c is a group's channels.
struct Side {
  int64_t n, c, h, w;
  Strides stride;
  int32_t align;
};

// Taps along one dimension that read inputs in_step * output + d + i * in_step * step, i < count.
struct Axis {
  int64_t d, count, step, tap0, dtap;
};

// What is computed, freed of its pass.
struct Problem {
  Side in, out;
  Pair in_step, out_step;
  int64_t groups;
  std::vector<std::vector<Axis>> rows, cols;  // per output phase along h and along w
};

std::vector<Axis> fprop_axis(int64_t taps, int64_t pad, int64_t dilation, int64_t stride) {
  const int64_t common = std::gcd(dilation, stride), period = stride / common;
  std::vector<Axis> axes;
  for (int64_t r = 0; r < std::min(period, taps); ++r) {
    axes.push_back({r * dilation - pad, ceil_div(taps - r, period), dilation / common, r, period});
  }
  return axes;
}

// Output row stride * i + offset of dx receives dy row i + (offset + pad - r * dilation) / stride where that is whole.
std::vector<Axis> dgrad_axis(int64_t taps, int64_t pad, int64_t dilation, int64_t stride, int64_t offset) {
  const int64_t common = std::gcd(dilation, stride), period = stride / common;
  for (int64_t r = 0; r < std::min(period, taps); ++r) {
    if ((offset + pad - r * dilation) % stride != 0) continue;
    const int64_t count = ceil_div(taps - r, period), last = r + (count - 1) * period;
    return {{(offset + pad - last * dilation) / stride, count, dilation / common, last, -period}};
  }
  return {};
}

bool is_linear(const Side& side) { return side.h == 1 || side.stride.h == side.w * side.stride.w; }

Problem normalise(const ConvProblem& p) {
  const Side x{p.n, p.c_per_group(), p.h, p.w, p.x_strides, p.x_align};
  const Side y{p.n, p.k_per_group(), p.p(), p.q(), p.y_strides, p.y_align};
  Problem out;
  out.groups = p.groups;
  if (p.pass == Pass::kFprop) {
    out.in = x, out.out = y;
    out.in_step = p.stride, out.out_step = {1, 1};
    out.rows = {fprop_axis(p.r, p.padding.h, p.dilation.h, p.stride.h)};
    out.cols = {fprop_axis(p.s, p.padding.w, p.dilation.w, p.stride.w)};
  } else {
    out.in = y, out.out = x;
    out.in_step = {1, 1}, out.out_step = p.stride;
    for (int64_t i = 0; i < std::min(p.stride.h, p.h); ++i) {
      out.rows.push_back(dgrad_axis(p.r, p.padding.h, p.dilation.h, p.stride.h, i));
    }
    for (int64_t i = 0; i < std::min(p.stride.w, p.w); ++i) {
      out.cols.push_back(dgrad_axis(p.s, p.padding.w, p.dilation.w, p.stride.w, i));
    }
  }
  const bool pointwise =
      p.r == 1 && p.s == 1 && p.stride.h == 1 && p.stride.w == 1 && p.padding.h == 0 && p.padding.w == 0;
  if (pointwise && is_linear(out.in) && is_linear(out.out) && out.in.h * out.in.w < kInt32Max) {
    for (Side* side : {&out.in, &out.out}) side->w *= side->h, side->h = 1;
    auto images_linear = [](const Side& side) { return side.n == 1 || side.stride.n == side.w * side.stride.w; };
    if (images_linear(out.in) && images_linear(out.out) && out.in.n * out.in.w < kInt32Max) {
      for (Side* side : {&out.in, &out.out}) side->w *= side->n, side->n = 1;
    }
  }
  return out;
}

// Strides that a dimension of one element never uses need not be multiples of anything.
bool strides_divisible(const Side& side, bool with_c, int64_t by) {
  return (side.n == 1 || side.stride.n % by == 0) && (side.h == 1 || side.stride.h % by == 0) &&
         (side.w == 1 || side.stride.w % by == 0) && (!with_c || side.c == 1 || side.stride.c % by == 0);
}

bool tma_can_stage(const Problem& p) {
  const Side& in = p.in;
  const bool positive =
      (in.n == 1 || in.stride.n > 0) && (in.h == 1 || in.stride.h > 0) && (in.w == 1 || in.stride.w > 0);
  return positive && in.stride.c == 1 && in.align >= 16 &&
         strides_divisible(Side{in.n, 1, in.h, in.w, in.stride, 0}, false, 8) && (p.groups == 1 || in.c % 8 == 0) &&
         p.in_step.h <= 8 && p.in_step.w <= 8;
}

uint64_t stride_bytes(int64_t size, int64_t stride) { return static_cast<uint64_t>(size == 1 ? 16 : stride * 2); }

// A filter with contiguous channels needs no packing.
bool filter_fits_tma(const ConvProblem& p) {
  const Strides& w = p.w_strides;
  auto whole = [](int64_t size, int64_t stride) { return size == 1 || (stride > 0 && stride % 8 == 0); };
  return w.c == 1 && p.w_align >= 16 && whole(p.k, w.n) && whole(p.r, w.h) && whole(p.s, w.w);
}

HaloStaging staging_for(const Problem& p) {
  const Side& in = p.in;
  // Runs of pixels that never straddle the end of a row, aligned.
  auto runs_of = [&](int64_t pixels) {
    return in.stride.w == 1 && p.in_step.w == 1 && in.w % pixels == 0 && in.align >= pixels * 2 &&
           strides_divisible(Side{in.n, in.c * p.groups, in.h, 1, in.stride, 0}, true, pixels);
  };
  return tma_can_stage(p) ? HaloStaging::kTma
         : runs_of(8)     ? HaloStaging::kRuns
         : runs_of(2)     ? HaloStaging::kPairs
                          : HaloStaging::kPixels;
}

enum class Split { kNone, kRows, kTaps };

// Fills phases and groups; false if the tables are too short.
bool fill_taps(const Problem& p, Split split, HaloParams& out, int64_t& extent_h, int64_t& extent_w) {
  int groups = 0, steps = 0;
  out.phase_count = 0;
  extent_h = extent_w = 0;
  if (p.rows.size() * p.cols.size() > kMaxPhases) return false;
  for (size_t h = 0; h < p.rows.size(); ++h) {
    for (size_t w = 0; w < p.cols.size(); ++w) {
      OutputPhase& phase = out.phase[out.phase_count++];
      phase.h = static_cast<int32_t>(h), phase.w = static_cast<int32_t>(w);
      phase.p = static_cast<int32_t>(ceil_div(p.out.h - phase.h, p.out_step.h));
      phase.q = static_cast<int32_t>(ceil_div(p.out.w - phase.w, p.out_step.w));
      phase.group_begin = groups, phase.taps = 0, phase.first_step = steps;
      for (const Axis& row : p.rows[h]) {
        for (const Axis& col : p.cols[w]) {
          const int64_t row_parts = split == Split::kNone ? 1 : row.count,
                        col_parts = split == Split::kTaps ? col.count : 1;
          for (int64_t i = 0; i < row_parts; ++i) {
            for (int64_t j = 0; j < col_parts; ++j) {
              if (groups == kMaxTapGroups) return false;
              TapGroup& group = out.group[groups++];
              group.rows = static_cast<int32_t>(row.count / row_parts),
              group.cols = static_cast<int32_t>(col.count / col_parts);
              group.dh = static_cast<int32_t>(row.d + i * row.step * p.in_step.h);
              group.dw = static_cast<int32_t>(col.d + j * col.step * p.in_step.w);
              group.row_step = static_cast<int32_t>(row.step), group.col_step = static_cast<int32_t>(col.step);
              group.r0 = static_cast<int32_t>(row.tap0 + i * row.dtap),
              group.s0 = static_cast<int32_t>(col.tap0 + j * col.dtap);
              group.dr = static_cast<int32_t>(row.dtap), group.ds = static_cast<int32_t>(col.dtap);
              phase.taps += group.rows * group.cols;
              extent_h = std::max(extent_h, (group.rows - 1) * row.step);
              extent_w = std::max(extent_w, (group.cols - 1) * col.step);
            }
          }
        }
      }
      phase.group_end = groups;
      steps += phase.taps * out.c_blocks;
    }
  }
  out.steps_per_filter_tile = steps;
  return true;
}

// Positions a row (or image) must have so that a shift by `extent` off its end meets padding: its own, or the zeros
// that the next row starts with.
int64_t linear_size(int64_t outputs, int64_t inputs, int64_t in_step, int64_t extent, int64_t d) {
  if (d >= 0) return outputs + extent;
  const int64_t lead = ceil_div(-d, in_step), inputs_end = ceil_div(inputs - d, in_step);
  return std::min(outputs + extent, std::max(outputs + extent - lead, inputs_end));
}

struct TileShape {
  int32_t p, q, block_w_log2;
};

struct Candidate {
  HaloConfig config;
  Split split;
  bool linear, turns;
  TileShape shape;
};

bool make_plan(const Problem& p, const ConvProblem& problem, const DeviceSpec& device, const Candidate& candidate,
               HaloPlan& plan) {
  const HaloConfig& config = plan.config = candidate.config;
  HaloParams& out = plan.params;
  std::memset(static_cast<void*>(&out), 0, sizeof(out));
  const Side& in = p.in;
  const int64_t pixel_bytes = config.channels * 2;

  out.in_n = in.stride.n, out.in_c = in.stride.c, out.in_h = in.stride.h, out.in_w = in.stride.w;
  out.out_n = p.out.stride.n, out.out_k = p.out.stride.c;
  out.out_phase_h = p.out.stride.h, out.out_phase_w = p.out.stride.w;
  out.out_h = p.out.stride.h * p.out_step.h, out.out_w = p.out.stride.w * p.out_step.w;
  out.n = static_cast<int32_t>(in.n), out.c = static_cast<int32_t>(in.c), out.k = static_cast<int32_t>(p.out.c);
  out.height = static_cast<int32_t>(in.h), out.width = static_cast<int32_t>(in.w);
  out.in_step_h = static_cast<int32_t>(p.in_step.h), out.in_step_w = static_cast<int32_t>(p.in_step.w);
  out.c_blocks = static_cast<int32_t>(ceil_div(in.c, config.channels));

  int64_t extent_h, extent_w;
  if (!fill_taps(p, candidate.split, out, extent_h, extent_w)) return false;
  const int64_t rows = ceil_div(p.out.h, p.out_step.h), cols = ceil_div(p.out.w, p.out_step.w);  // of the largest phase

  out.linear = candidate.linear;
  out.warpgroups_per_tile = candidate.turns ? 1 : 2;
  out.tile_pixels = kBlock * config.m_blocks * out.warpgroups_per_tile;
  int64_t tiles;  // of one phase of one group, one filter tile
  int64_t linear_h = 1, linear_w = 1;
  if (candidate.linear) {
    linear_h = rows, linear_w = cols;
    for (int i = 0; i < out.phase[out.phase_count - 1].group_end; ++i) {
      const TapGroup& group = out.group[i];
      linear_h = std::max(linear_h, linear_size(rows, in.h, p.in_step.h, (group.rows - 1) * group.row_step, group.dh));
      linear_w = std::max(linear_w, linear_size(cols, in.w, p.in_step.w, (group.cols - 1) * group.col_step, group.dw));
    }
    linear_w = round_up(linear_w, 128 / pixel_bytes);  // rows of the halo start at multiples of 128 bytes
    const int64_t positions = ((in.n - 1) * linear_h + rows - 1) * linear_w + cols;
    if (positions + out.tile_pixels > kInt32Max) return false;
    tiles = ceil_div(positions, out.tile_pixels);
    out.halo_pitch = static_cast<int32_t>(linear_w);
    out.halo_rows =
        static_cast<int32_t>((linear_w - 1 + out.tile_pixels - 1 + extent_h * linear_w + extent_w) / linear_w + 1);
    out.loads = out.halo_rows, out.load_rows = 1;
    out.group_pitch = static_cast<int32_t>(8 * pixel_bytes);
    out.tiles_q = out.tiles_pq = FastDivmod(1);
    out.tiles_npq = FastDivmod(tiles);
  } else {
    out.tile_p = candidate.shape.p, out.tile_q = candidate.shape.q, out.block_w_log2 = candidate.shape.block_w_log2;
    for (out.blocks_q_log2 = 0; out.tile_q >> (out.block_w_log2 + out.blocks_q_log2) > 1;) ++out.blocks_q_log2;
    const int64_t tiles_p = ceil_div(rows, out.tile_p), tiles_q = ceil_div(cols, out.tile_q);
    tiles = in.n * tiles_p * tiles_q;
    if (tiles > kInt32Max) return false;
    out.halo_pitch = static_cast<int32_t>(out.tile_q + extent_w),
    out.halo_rows = static_cast<int32_t>(out.tile_p + extent_h);
    out.loads = 1, out.load_rows = out.halo_rows;
    out.group_pitch = static_cast<int32_t>((out.block_w_log2 == 3 ? out.halo_pitch : 8) * pixel_bytes);
    out.tiles_q = FastDivmod(tiles_q), out.tiles_pq = FastDivmod(tiles_p * tiles_q), out.tiles_npq = FastDivmod(tiles);
  }
  out.linear_w = FastDivmod(linear_w), out.linear_h = FastDivmod(linear_h);
  for (int i = 0; i < out.phase[out.phase_count - 1].group_end; ++i) {
    out.group[i].row_step *= static_cast<int32_t>(out.halo_pitch * pixel_bytes);
    out.group[i].col_step *= static_cast<int32_t>(pixel_bytes);
  }
  const int64_t k_tiles = ceil_div(out.k, config.block_k);
  out.k_tiles = FastDivmod(k_tiles), out.phases = FastDivmod(out.phase_count);
  if (tiles * k_tiles * out.phase_count * p.groups > kInt32Max) return false;
  out.tiles = static_cast<int32_t>(tiles * k_tiles * out.phase_count * p.groups);

  const int64_t unit = staging_pixels(config.staging);
  out.stage_row_units = FastDivmod(unit == 1 ? out.halo_pitch : (out.halo_pitch + unit - 2) / unit + 1);

  if (config.staging == HaloStaging::kTma) {
    HaloTensorMap& map = plan.in_map;
    const int64_t box_w = (out.halo_pitch - 1) * p.in_step.w + 1, box_h = (out.load_rows - 1) * p.in_step.h + 1;
    if (box_w > 256 || box_h > 256) return false;
    map = {{static_cast<uint64_t>(in.c), static_cast<uint64_t>(p.groups), static_cast<uint64_t>(in.w),
            static_cast<uint64_t>(in.h), static_cast<uint64_t>(in.n)},
           {stride_bytes(p.groups, in.c), stride_bytes(in.w, in.stride.w), stride_bytes(in.h, in.stride.h),
            stride_bytes(in.n, in.stride.n)},
           {static_cast<uint32_t>(config.channels), 1, static_cast<uint32_t>(box_w), static_cast<uint32_t>(box_h), 1},
           {1, 1, static_cast<uint32_t>(p.in_step.w), static_cast<uint32_t>(p.in_step.h), 1}};
  }

  const bool n_major = config.filter == FilterTile::kNMajor;
  out.filter_direct = filter_fits_tma(problem) && (n_major || problem.pass == Pass::kFprop);
  if (out.filter_direct) {
    const Strides& w = problem.w_strides;
    const int64_t kg = problem.k_per_group();
    plan.filter_map = {{static_cast<uint64_t>(problem.c_per_group()), static_cast<uint64_t>(problem.s),
                        static_cast<uint64_t>(problem.r), static_cast<uint64_t>(kg), static_cast<uint64_t>(p.groups)},
                       {stride_bytes(problem.s, w.w), stride_bytes(problem.r, w.h), stride_bytes(kg, w.n),
                        stride_bytes(p.groups, kg * w.n)},
                       {static_cast<uint32_t>(n_major ? 64 : config.channels), 1, 1,
                        static_cast<uint32_t>(n_major ? config.channels : config.block_k), 1},
                       {1, 1, 1, 1, 1}};
  }

  const int64_t step_bytes = config.block_k * pixel_bytes;
  const int64_t halo_bytes = int64_t{out.halo_rows} * out.halo_pitch * pixel_bytes;
  out.a_stage_bytes = static_cast<int32_t>(round_up(halo_bytes, kAlignment));
  const int64_t room = device.smem_optin_bytes - kAlignment - kEpilogueSmem - kBarrierSmem;
  const int64_t all_steps = out.steps_per_filter_tile;
  out.filter_resident = k_tiles == 1 && p.groups == 1 && all_steps + 8 <= kMaxStages && all_steps > 0 &&
                        all_steps * step_bytes + 2 * out.a_stage_bytes <= room;
  if (out.filter_resident) {
    out.b_stages = static_cast<int32_t>(all_steps);
    out.a_stages = static_cast<int32_t>(std::min<int64_t>(4, (room - all_steps * step_bytes) / out.a_stage_bytes));
  } else {
    // Enough filter stages to cover the latency of L2 come first, a third halo stage after that.
    const int64_t want = std::max<int64_t>(4, ceil_div(49152, step_bytes));
    out.a_stages = static_cast<int32_t>(std::clamp<int64_t>((room - want * step_bytes) / out.a_stage_bytes, 2, 4));
    out.b_stages =
        static_cast<int32_t>(std::min<int64_t>(24, (room - int64_t{out.a_stages} * out.a_stage_bytes) / step_bytes));
    if (out.b_stages < 3) return false;
  }
  if (candidate.turns && !out.filter_resident && config.block_k > 64) return false;  // filters from L2 twice as often
  plan.smem_bytes = static_cast<int32_t>(kAlignment + kEpilogueSmem + kBarrierSmem +
                                         int64_t{out.a_stages} * out.a_stage_bytes + out.b_stages * step_bytes);
  plan.packed_filter_bytes = out.filter_direct ? 0 : p.groups * k_tiles * all_steps * step_bytes;
  plan.grid = std::min<int64_t>(out.tiles, device.sm_count);

  const Side& dst = p.out;
  if (dst.stride.c == 1 && dst.align >= 16 && dst.c % 8 == 0 &&
      strides_divisible(Side{dst.n, 1, dst.h, dst.w, dst.stride, 0}, false, 8)) {
    out.store = StoreMode::kChannels;
  } else if (dst.stride.w == 1) {
    out.store = StoreMode::kPixels;
    out.pixel_vector = 1;
    if (!out.linear && out.out_w == 1) {
      const Side planes{dst.n, dst.c * p.groups, dst.h, 1, dst.stride, 0};
      if (dst.align >= 16 && strides_divisible(planes, true, 8)) {
        out.pixel_vector = 8;
      } else if (dst.align >= 4 && strides_divisible(planes, true, 2)) {
        out.pixel_vector = 2;
      }
    }
  } else {
    out.store = StoreMode::kElements;
  }

  // Cost: clocks of an average tile, times tiles of the busiest SM. Rates measured on an H200.
  const double phases = out.phase_count;
  const double steps = static_cast<double>(all_steps) / phases;
  const double halos = out.phase[out.phase_count - 1].group_end / phases * out.c_blocks;
  const double wgmmas = steps * (config.channels / 16) * config.m_blocks * out.warpgroups_per_tile;
  const double halo_load = halos * static_cast<double>(halo_bytes);
  const double load_bytes = halo_load + (out.filter_resident ? 0. : steps * static_cast<double>(step_bytes));
  const double out_bytes = 2. * out.tile_pixels * config.block_k;
  const double mma = wgmmas * config.block_k / 2. / .95;
  const double smem = (wgmmas * (64 + config.block_k) * 32 + load_bytes + 2 * out_bytes) / 128;
  constexpr double kHaloBytesPerClock[] = {40, 5.5, 3.5, 2.5};  // by staging
  const double staged =
      config.staging == HaloStaging::kTma  // whole runs, though the halo has only parts of some
          ? halo_load
          : halos * out.halo_rows * out.stage_row_units.divisor * static_cast<double>(unit * pixel_bytes);
  const double load = std::max(load_bytes / 40, staged / kHaloBytesPerClock[static_cast<int>(config.staging)]);
  double store_bytes_per_clock = 40;
  if (out.store == StoreMode::kPixels)
    store_bytes_per_clock = out.pixel_vector == 8 ? 30 : out.pixel_vector == 2 ? 16 : 8;
  if (out.store == StoreMode::kPixels && !out.linear && out.block_w_log2 == 3)
    store_bytes_per_clock /= 1.5;  // short runs
  if (out.store == StoreMode::kElements) store_bytes_per_clock = 5;
  const double epilogue = out_bytes / store_bytes_per_clock + 300;
  const double body = std::max({mma, smem, load});
  const double tile = candidate.turns ? std::max(body + 100, (body + epilogue + 500) / 2) : body + epilogue;
  const double waves = static_cast<double>(ceil_div(out.tiles, device.sm_count));
  // What the model does not see, measured: short rings, linear tiles and long runs of pixels each lose a little;
  // staging warps lose more where they cannot run ahead.
  const double rough = config.staging == HaloStaging::kTma
                           ? 1 + .02 * (out.a_stages == 2) +
                                 .02 * (!out.filter_resident && out.b_stages * step_bytes < 65537) + .01 * out.linear +
                                 .01 * (!out.linear && out.block_w_log2 == 6)
                           : 1 + .06 * (4 - out.a_stages);
  plan.cost_us = (waves * tile * rough + 6000 + (candidate.turns ? epilogue : 0)) / 1755.;
  return true;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const HaloConfig& config) {
  static constexpr const char* kStaging[] = {"tma", "runs", "pairs", "pixels"};
  return out << config.block_k << "x" << config.m_blocks << "x" << config.channels
             << kStaging[static_cast<int>(config.staging)] << (config.filter == FilterTile::kNMajor ? "n" : "");
}

std::ostream& operator<<(std::ostream& out, const HaloPlan& plan) {
  const HaloParams& p = plan.params;
  out << plan.config << (p.warpgroups_per_tile == 1 ? " turns " : " ");
  if (p.linear) {
    out << "linear " << p.linear_h.divisor << "x" << p.linear_w.divisor;
  } else {
    out << p.tile_p << "x" << p.tile_q << "/" << (1 << p.block_w_log2);
  }
  return out << " halo " << p.halo_rows << "x" << p.halo_pitch << " A" << p.a_stages << " B" << p.b_stages
             << (p.filter_resident ? "r" : "") << (p.filter_direct ? "d" : "") << " groups "
             << p.phase[p.phase_count - 1].group_end << " phases " << p.phase_count << " tiles " << p.tiles << " store "
             << static_cast<int>(p.store) << "/" << p.pixel_vector << " model " << plan.cost_us << " us";
}

const std::vector<HaloConfig>& halo_configs() {
  static const std::vector<HaloConfig> configs = {
#define HALO_CONFIG(block_k, m_blocks, channels, staging, filter) \
  {block_k, m_blocks, channels, HaloStaging::staging, FilterTile::filter},
  // clang-format off
#include "fastconv/launch/halo_sm90.def"
  // clang-format on
#undef HALO_CONFIG
  };
  return configs;
}

std::string halo_why_not(const ConvProblem& p, const DeviceSpec& device) {
  if (!device.is_cuda || device.arch != 90) return "needs compute capability 9.0";
  if (p.dtype != DType::kFloat16 && p.dtype != DType::kBFloat16) return "needs float16 or bfloat16";
  if (p.pass == Pass::kWgrad) return "computes forward and input gradient";
  if (p.c_per_group() < 16 && p.k_per_group() < 16) return "needs 16 channels a group";
  for (int64_t size : {p.n, p.c, p.h, p.w, p.k, p.p(), p.q()}) {
    if (size > kInt32Max) return "a size exceeds 31 bits";
  }
  if (halo_plans(p, device).empty()) return "no tile of it fits shared memory";
  return "";
}

std::vector<HaloPlan> halo_plans(const ConvProblem& problem, const DeviceSpec& device) {
  const Problem p = normalise(problem);
  std::vector<HaloPlan> plans;
  const HaloStaging staging = staging_for(p);
  const bool n_major = staging == HaloStaging::kTma && p.out.c > 32 && problem.pass == Pass::kDgrad && p.in.c > 16 &&
                       filter_fits_tma(problem);
  const int64_t c = p.in.c;
  const int widest = c > 32 ? 64 : c > 16 ? 32 : 16;
  auto consider = [&](const Candidate& candidate) {
    HaloPlan plan{};
    if (make_plan(p, problem, device, candidate, plan)) plans.push_back(plan);
  };
  for (const HaloConfig& config : halo_configs()) {
    if (config.staging != staging || (config.filter == FilterTile::kNMajor) != n_major) continue;
    if (config.channels > widest || config.channels * 2 < widest) continue;
    if (config.block_k >= 2 * std::max<int64_t>(p.out.c, 17)) continue;
    for (Split split : {Split::kNone, Split::kRows, Split::kTaps}) {
      for (bool turns : {false, true}) {
        consider({config, split, true, turns, {}});
        const int blocks = config.m_blocks * (turns ? 1 : 2);
        for (int across = 1; across <= blocks; across *= 2) {
          if (blocks % across != 0) continue;
          consider({config, split, false, turns, {8 * (blocks / across), 8 * across, 3}});
          consider({config, split, false, turns, {blocks / across, 64 * across, 6}});
        }
      }
    }
  }
  std::stable_sort(plans.begin(), plans.end(),
                   [](const HaloPlan& a, const HaloPlan& b) { return a.cost_us < b.cost_us; });
  return plans;
}

}  // namespace fastconv
