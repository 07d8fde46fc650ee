#include "fastconv/families/wgrad/plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "fastconv/core/integers.h"
#include "fastconv/families/wgrad/cost.h"
#include "fastconv/planner/scaled.h"
#include "fastconv/tile/copies.h"
#include "fastconv/tile/plan_fold.h"
#include "fastconv/tile/plan_reorder.h"
#include "fastconv/tile/plan_split.h"

namespace fastconv {
namespace {

using namespace wgrad;

// Step pairs, of 32 pixels, between promotions (see Promotion): a loss of 2e-7, of 1.4e-6, and of 2.1e-6 where all
// three products of bf16x3 are added to one sum.
constexpr int32_t kIeeePromotion = 4, kBf16x3Promotion = 32;
constexpr int32_t kFloatsPromotion = 16;

constexpr int64_t kMaxTaps = kMaxWgradUnits;  // one a unit fits every configuration's tables

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

// Every Hopper GPU runs as many clusters of two as it has pairs of SMs.
constexpr int64_t kMaxCooperativeCluster = 2;

constexpr WgradTiling shape(bool linear, int64_t n, int64_t rows, int64_t cols) {
  return {{},    linear, 1, 1, static_cast<int16_t>(n), static_cast<int16_t>(rows), static_cast<int16_t>(cols),
          false, false};
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
  const int64_t most_cols = staging == WgradStaging::kFloats ? 128 : y_rows ? 64 : 256;
  for (int64_t cols = y_rows ? 16 : 8; cols <= most_cols; cols *= 2) {
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
  const int64_t element = element_size(problem.dtype), vector = 16 / element;
  if (fold) return {};
  auto whole = [&](int64_t size, int64_t stride) { return size == 1 || stride % vector == 0; };
  constexpr int64_t kFewPartials = 8;
  if (partials > kFewPartials || c % vector != 0 || problem.w_align < 16 || !whole(problem.k, w.n)) return {};
  if (partials == 1 && w.c == 1 && whole(problem.r, w.h) && whole(problem.s, w.w)) {
    return {WgradStore::kChannels, wgrad_store_pitch(i32(units.room * config.n() * element))};
  }
  const bool taps_inside = (problem.s == 1 || w.w == 1) && (problem.r == 1 || w.h == problem.s) && w.c == taps;
  if (!taps_inside || units.groups() > 1) return {};
  return {WgradStore::kTaps, wgrad_store_pitch(i32(units.c_blocks * config.channels * taps * element))};
}

int64_t smem_of(const WgradConfig& config, const WgradTiling& tiling, const Tile& tile, const Store& store,
                bool prepares) {
  const int64_t preparing = prepares ? config.threads() / 32 * kReorderBytes : 0;
  const int64_t products = std::max(tile.stages * tile.stage_bytes, config.job_bytes() + store.bytes());
  return kAlignment + kBarrierBytes + std::max(round_up(products, kAlignment) + stream_bytes(tiling), preparing);
}

// x in NCHW, without addresses.
Reorder make_x_order(const Work& work, const WgradConfig& config, const WgradTiling& tiling, int64_t grid) {
  Reorder order = make_reorder(work.x_planes, work.groups);
  if (tiling.streams) stream(order, grid, config.threads() / 32);
  return order;
}

// With what streaming takes.
Workspace workspace_of(const Work& work, const WgradConfig& config, const WgradTiling& tiling, int64_t grid) {
  Workspace workspace = workspace_of(work);
  if (tiling.streams) workspace.done = round_up(4 * int64_t{make_x_order(work, config, tiling, grid).rounds}, 128);
  return workspace;
}

// From memory, for the products.
double read_bytes(const Work& work, const ConvProblem& problem) {
  if (work.parts == 0) return compulsory_bytes(problem);
  const Workspace workspace = workspace_of(work);
  const Side& y = work.y_planes;
  const double y_bytes = 4. * static_cast<double>(y.n * y.h * y.w) * static_cast<double>(y.c * work.groups);
  if (work.floats) return static_cast<double>(workspace.x) + y_bytes;
  return static_cast<double>(workspace.x + workspace.y) / work.parts * work.products();
}

constexpr const char* kNoRoom = "finds no tile that fits shared memory and the workspace";

// Without blocks if nothing fits.
Plan plan_as(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device, bool fold, bool streams) {
  const WgradConfig& config = entry.config.as<WgradConfig>();
  const Work work = make_work(problem, config, fold);
  const Copied copied = copied_operands(work, config.staging);
  const bool prepares = work.prepares();
  using namespace cost::wgrad;
  const int64_t most = workspace_room(problem, device, is_scaled(entry)),
                room = most - workspace_of(work).partial_offset();
  const bool can = !streams || (streams_x(config.staging) && work.reorder_x &&
                                can_stream(work.x_planes, work.groups, device.sm_count, config.threads() / 32));
  Plan plan;
  if (room < 0 || !can) return plan;
  plan.cost_us = std::numeric_limits<double>::max();
  Units units;
  for (const BoxTaps box_taps : {BoxTaps::kAll, BoxTaps::kRow, BoxTaps::kOne}) {
    // Those that come to the same.
    if (box_taps == BoxTaps::kAll && work.h.most() * work.w.most() == 1) continue;
    if (box_taps == BoxTaps::kRow && (work.h.most() == 1 || work.w.most() == 1)) continue;

    for (int m_blocks = 1; m_blocks <= (work.pointwise ? 4 : 2); ++m_blocks) {
      if (config.slots() % m_blocks != 0 || m_blocks > filter_blocks(work, config.staging)) continue;
      if (work.floats && config.warpgroups % m_blocks != 0) continue;  // a warpgroup has fragments of one
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
        shape.box_taps = box_taps, shape.fold = fold, shape.streams = streams;
        shape.m_blocks = static_cast<int8_t>(m_blocks);
        Tile one;
        if (!make_tile(work, config, reach, shape, device.smem_optin_bytes, one)) return;
        const double clocks = work.passes() * tile_clocks(work, config, reach, shape, one, copied);
        const double block = std::ceil(static_cast<double>(one.count) / about_splits) * clocks;
        if (block >= least || !spare_blocks_stay_inside(work, config, box_taps, units, one)) return;
        least = block, clocks_of_best = clocks, tiling = shape, tile = one;
      };
      for_each_shape(work, config.staging, consider);
      if (tile.count == 0) consider(y_has_pixel_rows(config.staging) ? last_pixel_rows(work) : kLastResort);
      if (tile.count == 0) continue;
      const Sharing sharing = share_pixels(config, device, jobs, tile.count, clocks_of_best, read_bytes(work, problem),
                                           prepares ? kMaxCooperativeCluster : kMaxWgradCluster, room);
      const int64_t grid = sharing.splits * jobs, partials = sharing.splits / sharing.cluster;
      const int64_t first_grid =
          prepares ? std::min(grid, device.sm_count / sharing.cluster * sharing.cluster) : int64_t{0};
      const double share = std::min(1., static_cast<double>(grid) / device.sm_count);
      double cost_us = sharing.us - kBothUs * (work.parts > 0 && !work.floats);
      if (work.reorder_x) {
        cost_us += streams ? stream_us(work.x_planes, work.groups, first_grid, config.threads() / 32, share, device)
                           : reorder_us(work.x_planes, work.groups, share, device);
      }
      if (work.reorder_y) cost_us += reorder_us(work.y_planes, work.groups, share, device);
      if (work.parts > 0) {
        cost_us += split_us(work.x_planes, work.groups, work.operand, work.parts, share, device);
        if (!work.floats) cost_us += split_us(work.y_planes, work.groups, work.operand, work.parts, share, device);
      }
      if (fold) cost_us += reorder_us(work.x, work.groups, share, device);
      const Store store = partials == 1 ? store_of(problem, config, units, partials, fold) : Store{};
      const bool scattered = store.mode == WgradStore::kQuads && problem.w_strides.c > 1;
      if (partials == 1 && scattered && element_size(problem.dtype) == 2) {
        cost_us += compute_us(static_cast<double>(config.job_bytes() / sharing.cluster) / kScattered, device);
      }
      if (cost_us >= plan.cost_us) continue;
      tiling.cluster = static_cast<int8_t>(sharing.cluster);
      const int64_t workspace_bytes = workspace_of(work, config, tiling, first_grid).partial_offset() +
                                      (partials > 1 ? partials * jobs * config.job_bytes() : 0);
      const int64_t smem_bytes = smem_of(config, tiling, tile, store, prepares);
      if (workspace_bytes > most || smem_bytes > device.smem_optin_bytes) continue;
      plan.tiling = tiling;
      plan.split = sharing.splits;
      plan.grid = grid, plan.first_grid = first_grid;
      plan.smem_bytes = i32(smem_bytes);
      plan.workspace_bytes = workspace_bytes;
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
const char* problem_why_not(const KernelEntry& entry, const ConvProblem& a) {
  for (const int64_t extent : {a.n, a.c, a.k, a.h + 2 * a.padding.h, a.w + 2 * a.padding.w}) {
    if (extent >= kMaxExtent) return "counts with 32 bits: extents stay below 2^29";
  }
  // Of the smallest tile and the smallest job.
  const double tiles = static_cast<double>(a.n) * static_cast<double>(ceil_div(a.p(), 4) * ceil_div(a.q(), 8));
  const double jobs = static_cast<double>(a.r * a.s * a.groups) *
                      static_cast<double>(ceil_div(a.c_per_group(), entry.config.as<WgradConfig>().channels) *
                                          ceil_div(a.k_per_group(), kFilters));
  if (tiles > INT32_MAX || jobs > INT32_MAX / 2) return "would need more blocks than a grid has";
  return nullptr;
}

const char* why_not_as_it_is(const KernelEntry& entry, const ConvProblem& a) {
  const WgradConfig& config = entry.config.as<WgradConfig>();
  const int64_t c = a.c_per_group();
  if (!stages_channels(config, c)) return "stages another number of channels at a time";
  if (a.stride.h > kMaxStride || a.stride.w > kMaxStride) return "takes strides up to 8";
  if (a.r * a.s > kMaxTaps) return "takes filters of up to 64 taps";
  if (a.dtype == DType::kFloat32) {
    const char* why = is_scaled(entry) ? scaled_why_not(entry, a) : nullptr;
    if (why != nullptr) return why;
    const bool floats = config.staging == WgradStaging::kFloats;
    if (floats && !floats_copyable(output_side(a), a.groups)) {
      return "copies dy as it lies: needs NCHW planes without gaps, of whole units of 16 bytes";
    }
    if (!splittable(input_side(a), a.groups) || !(floats || splittable(output_side(a), a.groups))) {
      return "counts with 32 bits what it writes to the workspace";
    }
    return nullptr;
  }
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
    return nullptr;
  }
  const bool copied = copyable(work.x, a.groups) && copyable(work.y, a.groups);
  if (config.staging == WgradStaging::kTma && !copied) {
    return "copies boxes of channels: needs channels_last operands, aligned to 16 bytes as all their strides are, or "
           "planes without gaps";
  }
  if (work.reorder_x || work.reorder_y) return nullptr;
  if (config.staging == WgradStaging::kWarps && copied) return "is for operands that TMA cannot read";
  return nullptr;
}

// Whether the kernel can have x with its strides folded into channels.
bool folds(const KernelEntry& entry, const ConvProblem& a) {
  const WgradConfig& config = entry.config.as<WgradConfig>();
  const bool copies_channels = config.staging == WgradStaging::kTma || config.staging == WgradStaging::kTmaRows;
  if (a.dtype == DType::kFloat32 || !copies_channels || fold_why_not(a) != nullptr ||
      !stages_channels(config, a.c * a.stride.h * a.stride.w)) {
    return false;
  }
  const Side y = output_side(a);
  const bool stages_y =
      config.staging == WgradStaging::kTmaRows ? rows_copyable(y, 1) : copyable(y, 1) || reorderable(y, 1);
  return stages_y &&
         static_cast<double>(a.n) * static_cast<double>(a.h + a.stride.h) * static_cast<double>(a.w + a.stride.w) <
             kMaxExtent &&
         ceil_div(a.r, a.stride.h) * ceil_div(a.s, a.stride.w) <= kMaxTaps;
}

}  // namespace

Offer wgrad_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = problem_why_not(entry, problem)) return reason;
  Plan best;
  auto consider = [&](bool fold, bool streams) {
    Plan plan = plan_as(entry, problem, device, fold, streams);
    if (plan.grid > 0 && (best.grid == 0 || plan.cost_us < best.cost_us)) best = std::move(plan);
  };
  const char* const as_it_is = why_not_as_it_is(entry, problem);
  if (as_it_is == nullptr) {
    for (const bool streams : {false, true}) consider(/*fold=*/false, streams);
  }
  if (folds(entry, problem)) consider(/*fold=*/true, /*streams=*/false);
  if (best.grid == 0) return as_it_is != nullptr ? as_it_is : kNoRoom;
  return measured(std::move(best), problem, device);
}

WgradLaunch wgrad_launch(const Plan& plan, const ConvProblem& problem) {
  const WgradConfig& config = plan.kernel->config.as<WgradConfig>();
  const WgradTiling& tiling = plan.tiling.as<WgradTiling>();
  const bool x_pixel_rows = x_has_pixel_rows(config.staging), y_pixel_rows = y_has_pixel_rows(config.staging);
  const Work work = make_work(problem, config, tiling.fold);
  Units units;
  make_units(work, config, tiling.box_taps, tiling.m_blocks, units);
  const Reach reach = reach_of(work, units, tiling.box_taps);
  Tile tile;
  make_tile(work, config, reach, tiling, plan.smem_bytes, tile);

  WgradLaunch launch{};
  WgradParams& out = launch.params;
  const Workspace workspace = workspace_of(work, config, tiling, plan.first_grid);
  launch.y_offset = workspace.y_offset(), launch.done_offset = workspace.done_offset();
  launch.partial_offset = workspace.partial_offset();
  if (work.reorder_x) {
    out.x_order = make_x_order(work, config, tiling, plan.first_grid);
    launch.x_planes = reorder_boxes(work.x_planes, work.groups);
  }
  if (work.reorder_y) {
    out.y_order = make_reorder(work.y_planes, work.groups);
    launch.y_planes = reorder_boxes(work.y_planes, work.groups);
  }
  if (work.parts > 0) {
    out.x_split = make_split(work.x_planes, work.groups, work.operand, work.parts);
    if (!work.floats) out.y_split = make_split(work.y_planes, work.groups, work.operand, work.parts);
  }
  out.parts = std::max(work.parts, 1), out.products = work.passes(), out.groups = i32(work.groups);
  out.stage_parts = work.stage_parts(), out.stage_part_bytes = i32(tile.stage_part_bytes);
  out.promotion = problem.precision == Precision::kIeee ? kIeeePromotion
                  : work.floats                         ? kFloatsPromotion
                                                        : kBf16x3Promotion;
  out.x_fold = work.fold;
  const int64_t row_bytes = config.channels * 2;
  const Copied copied = copied_operands(work, config.staging);
  out.x_copied = copied.x, out.y_copied = copied.y;
  out.x = x_operand(work, tiling, tile), out.y = y_operand(work, tiling, tile);
  const int64_t lead = lead_of(work, config.staging);
  const int64_t groups = work.groups * out.parts;  // of the maps: the parts of channels are like more groups
  Side x = work.x, y = work.y;
  if (work.parts > 0) x.c = split_channels(x.c, work.operand), y.c = split_channels(y.c, work.operand);
  if (work.floats) {
    out.floats.pitch = i32(tile.y_pitch), out.floats.width = i32(work.y.w);
    const bool whole_rows = copies_whole_rows(work, tiling);
    out.floats.row_pitch = whole_rows ? out.floats.width : kFilters * out.floats.pitch;
    out.floats.copy_pixels = whole_rows ? 0 : out.floats.width;
  }
  if (copied.x) {
    launch.x_map =
        tensor_map(x, groups, x_pixel_rows, config.channels, tile.x_pitch, tile.x_rows, tiling.tile_n, work.stride);
  }
  if (config.staging == WgradStaging::kTmaRows) {
    make_row_maps(work, tiling, launch);
  } else if (work.floats) {
    launch.y_map[launch.y_maps++] = floats_map(work.y, work.groups, tile.y_pitch, kFilters, /*exact=*/true);
  } else if (copied.y) {
    launch.y_map[launch.y_maps++] =
        tensor_map(y, groups, y_pixel_rows, kFilters, tile.y_pitch, tile.y_rows, tiling.tile_n, kUnitStep);
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
  out.m_blocks = tiling.m_blocks, out.units_per_m_block = FastDivmod(units.room);
  out.c_blocks_per_job = units.c_blocks;
  out.stages = i32(tile.stages), out.stage_bytes = i32(tile.stage_bytes);
  out.data_bytes = i32(plan.smem_bytes - kAlignment - kBarrierBytes);
  out.stream_offset = i32(out.data_bytes - stream_bytes(tiling));
  out.x_part_bytes = i32(tile.x_part_bytes), out.x_box_bytes = i32(tile.x_box_bytes);
  out.y_block_bytes = i32(tile.y_block_bytes), out.y_box_bytes = i32(tile.y_box_bytes);
  out.y_offset = out.stage_parts * out.stage_part_bytes;
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
      out.step[steps++] = {static_cast<uint16_t>(x / 16), static_cast<uint16_t>(work.floats ? (i << 8) + j : y / 16)};
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
    group.last_dh = out.part[group.part_begin].dh, group.last_dw = out.part[group.part_begin].dw;
    for (int i = group.part_begin; i < part_count; ++i) {
      group.last_dh = std::max(group.last_dh, out.part[i].dh), group.last_dw = std::max(group.last_dw, out.part[i].dw);
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
  out.w_pairs = !tiling.fold && w.c == 1 && work.x.c % 2 == 0 && problem.w_align >= 2 * element_size(problem.dtype) &&
                even(problem.k, w.n) && even(problem.r, w.h) && even(problem.s, w.w);
  return launch;
}

}  // namespace fastconv
