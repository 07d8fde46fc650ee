#include "fastconv/families/depthwise/any_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "fastconv/core/integers.h"
#include "fastconv/families/depthwise/cost.h"
#include "fastconv/planner/sides.h"

namespace fastconv {
namespace {

using namespace cost::any;

constexpr int64_t kMostStep = 1 << 16;  // of strides, dilations and taps: coordinates then stay within 32 bits
// Products of a slice that one thread adds up for a sum of the weight gradient, if images are enough: with the shorter
// chains that it puts aside, this bounds rounding errors.
constexpr int64_t kMostProducts = 64 * kDepthwiseAnyChain;
// Of a group, whose products an input gradient adds to one sum; of more, cuDNN and other kernels lose less.
constexpr int64_t kMostFilters = 15;
constexpr int64_t kThreadsPerSm = 512;        // that the registers leave room for
constexpr int32_t kBank = kDepthwiseAnyRead;  // floats: accesses of eight threads lie in different ones

// The tensor that windows slide over, what they are multiplied by, and the one that is written.
struct Operands {
  Side source, taps, target;
};
Operands operands_of(const ConvProblem& a) {
  Side x = input_side(a), y = output_side(a);
  x.c = a.c, y.c = a.k;
  const Side filter{1, a.k, a.r, a.s, {0, a.w_strides.n, a.w_strides.h, a.w_strides.w}, a.w_align};
  switch (a.pass) {
    case Pass::kFprop: return {x, filter, y};
    case Pass::kDgrad: return {y, filter, x};
    case Pass::kWgrad: return {x, y, filter};
  }
  return {};
}

// Elements of neighbouring channels lie closer than those of neighbouring columns.
bool channels_inner(const Strides& strides, int64_t channels) { return channels > 1 && strides.c < strides.w; }

// The weight gradient's targets are taps, and its taps are the outputs: stride and dilation change places.
Axis any_axis(Pass pass, int64_t in, int64_t out, int64_t taps, int64_t stride, int64_t padding, int64_t dilation) {
  switch (pass) {
    case Pass::kFprop: return make_axis(false, in, out, taps, stride, padding, dilation);
    case Pass::kDgrad: return make_axis(true, out, in, taps, stride, padding, dilation);
    case Pass::kWgrad: return make_axis(false, in, taps, out, dilation, padding, stride);
  }
  return {};
}

DepthwiseAnyAxis dense_axis(const Axis& axis) {
  DepthwiseAnyAxis dense{};
  dense.axis = axis;
  const int64_t step = std::abs(axis.tap_source_step), gcd = std::gcd<int64_t>(axis.source_step, step);
  dense.strands = FastDivmod(std::clamp<int64_t>(step / gcd, 1, std::max(axis.rows, 1)));
  dense.source_step = FastDivmod(step);
  dense.stride = FastDivmod(axis.source_step / gcd);
  return dense;
}
struct Axes {
  DepthwiseAnyAxis h, w;
};
Axes axes_of(const ConvProblem& a) {
  return {dense_axis(any_axis(a.pass, a.h, a.p(), a.r, a.stride.h, a.padding.h, a.dilation.h)),
          dense_axis(any_axis(a.pass, a.w, a.q(), a.s, a.stride.w, a.padding.w, a.dilation.w))};
}
// Of the strand that has most.
int64_t most_targets(const DepthwiseAnyAxis& axis) {
  return ceil_div(axis.axis.rows, static_cast<int64_t>(axis.strands.divisor));
}
int64_t most_taps(const DepthwiseAnyAxis& axis) { return ceil_div(axis.axis.taps, axis.axis.tap_step); }

// Threads that share a run: each has several elements on their way.
int32_t lanes_log2(int64_t length, int64_t each) {
  return std::min(5, static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(ceil_div(length, each) - 1))));
}

// Elements of an access to a row, where those of one tap, or target, and the next one lie side by side. The others of
// the tensor must begin at multiples of it too, and so must the `begins` of what blocks take of a row.
int32_t piece_of(const Side& side, DType dtype, std::initializer_list<int64_t> begins) {
  for (const int32_t piece : {4, 2}) {
    const bool whole = std::ranges::all_of(begins, [&](int64_t begin) { return begin % piece == 0; });
    if (whole && side.stride.w == 1 && side.w % piece == 0 && side.align >= piece * element_size(dtype) &&
        keeps_multiples(side.stride.n, side.n, piece) && keeps_multiples(side.stride.c, side.c, piece) &&
        keeps_multiples(side.stride.h, side.h, piece)) {
      return piece;
    }
  }
  return 1;
}
struct Pieces {
  int32_t source, taps, target;
};
Pieces pieces_of(const ConvProblem& problem, const DepthwiseAnyAxis& w) {
  constexpr int32_t kMostStrands = 16;
  const Operands operands = operands_of(problem);
  const bool unit_stride = w.stride.divisor == 1, one_tile = most_taps(w) <= w.taps;
  const int64_t next_tile = one_tile ? 0 : w.taps;
  Pieces pieces{1, 1, piece_of(operands.target, problem.dtype, {w.tile * w.target_step()})};
  if (unit_stride && w.source_step.divisor == 1 && w.all_strands() <= kMostStrands) {
    int64_t begins = w.tile;
    for (int32_t i = 0; i < w.all_strands(); ++i) begins = std::gcd(begins, w.strand(i).source);
    pieces.source = piece_of(operands.source, problem.dtype, {begins, next_tile});
  }
  // A gradient meets them backwards.
  if (unit_stride && problem.pass != Pass::kDgrad) {
    pieces.taps = piece_of(operands.taps, problem.dtype, {next_tile});
  }
  return pieces;
}

DepthwiseAnyPlanes make_planes(const Side& side, int64_t all_channels, int32_t channels, int32_t images,
                               int32_t classes_h, int32_t slots_h, int32_t classes_w, int32_t slots_w, int32_t piece,
                               int64_t each) {
  DepthwiseAnyPlanes planes{};
  planes.strides = side.stride;
  planes.slots_h = slots_h, planes.slots_w = slots_w, planes.classes_w = classes_w, planes.rows = classes_h * slots_h;
  planes.class_pitch = static_cast<int32_t>(round_up(slots_w, kDepthwiseAnyRead));
  // Rows and planes begin in different banks.
  auto odd = [](int32_t floats) { return floats / kBank % 2 == 0 ? floats + kBank : floats; };
  planes.row_pitch = odd(classes_w * planes.class_pitch);
  planes.plane_pitch = odd(planes.rows * planes.row_pitch);
  planes.channels = channels, planes.images = images;
  planes.channels_inner = images == 1 && channels > 1 && channels_inner(side.stride, all_channels);
  planes.piece = planes.channels_inner ? 1 : piece;
  planes.lanes_log2 = lanes_log2(planes.channels_inner ? channels : ceil_div(slots_w, piece), each);
  auto divisor = [](int32_t d) { return FastDivmod(std::max(d, 1)); };
  planes.by_slots_w = divisor(slots_w), planes.by_slots_h = divisor(slots_h), planes.by_classes_w = divisor(classes_w);
  planes.by_rows = divisor(planes.rows), planes.by_images = divisor(images);
  return planes;
}

int64_t image_groups(const ConvProblem& problem, const DepthwiseAnyTiling& tiling) {
  return ceil_div(problem.n, tiling.images);
}
int32_t shares_of(Pass pass, const DepthwiseAnyTiling& tiling) {
  return tiling.parts * (pass == Pass::kWgrad ? tiling.images : 1);
}
int64_t smem_floats(const ConvProblem& problem, const DepthwiseAnyParams& params) {
  return std::max<int64_t>(
      int64_t{params.tiling.buffers} * params.buffer_pitch,
      params.sum_at + int64_t{shares_of(problem.pass, params.tiling)} * params.target_planes.floats());
}
// Of one slice.
int64_t blocks_of(const ConvProblem& problem, const DepthwiseAnyParams& params) {
  return int64_t{params.h.all_strands()} * params.by_tiles_h.divisor * params.by_tiles_w.divisor *
         params.by_channels.divisor * (problem.pass == Pass::kWgrad ? 1 : image_groups(problem, params.tiling));
}

// Of an operand's elements, those that sectors bring along: neighbours in memory are used by the same block, or are
// not. A run shares half a sector with its neighbours.
double sector_waste(const DepthwiseAnyPlanes& planes, double size) {
  const double together = planes.channels_inner ? planes.channels : planes.strides.w == 1 ? planes.slots_w : 1;
  return std::min(32 / size, std::max(1., 32 / (size * together)) + 16 / (size * together));
}

// Of the rows that threads see, those that are left once rows of padding are left out, which a warp does together: the
// more its threads are of the same rows the better. Only of images that one tile covers: padding is little of larger
// ones.
double rows_left(const DepthwiseAnyConfig& config, const DepthwiseAnyParams& params) {
  constexpr int64_t kMostTiles = 8;  // of taps
  const int64_t tap_tiles = ceil_div(most_taps(params.h), params.tiling.taps_h);
  if (!params.skips_rows || params.by_tiles_h.divisor > 1 || tap_tiles > kMostTiles) return 1;
  const DepthwiseAnyTiling& tiling = params.tiling;
  const int32_t seen = params.part_rows + config.rows - 1;
  // Threads of the same rows follow each other: the first slot of the n-th such threads.
  const int32_t same = tiling.lanes_w * tiling.channels * tiling.images, all = tiling.lanes_h * tiling.parts;
  auto first_slot = [&](int32_t n) { return n % tiling.lanes_h * config.rows + n / tiling.lanes_h * params.part_rows; };
  int32_t left = 0, all_seen = 0;
  for (int32_t tap = 0; tap < most_taps(params.h); tap += tiling.taps_h) {
    const DepthwiseAnySpan span = params.h.source_span(params.h.strand(0), 0, tap);
    const int32_t low = params.h.slots_before(span.low, 0), high = params.h.slots_before(span.high, 0);
    for (int32_t thread = 0; thread < same * all; thread += 32) {
      int32_t first = first_slot(thread / same), last = first;
      for (int32_t n = thread / same; n <= std::min((thread + 31) / same, all - 1); ++n) {
        first = std::min(first, first_slot(n)), last = std::max(last, first_slot(n));
      }
      left += std::max(0, std::min(seen, high - first) - std::max(0, low - last));
      all_seen += seen;
    }
  }
  return static_cast<double>(left) / all_seen;
}

struct Work {
  double clocks;  // of an SM, for one block
  double waits;   // how often it waits for its loads
  double bytes;
};
Work work_of(const DepthwiseAnyConfig& config, const ConvProblem& problem, const DepthwiseAnyParams& params,
             int64_t slices) {
  const auto size = static_cast<double>(element_size(problem.dtype));
  const DepthwiseAnyTiling& tiling = params.tiling;
  const bool wgrad = problem.pass == Pass::kWgrad;
  const auto rounds = static_cast<double>(ceil_div(params.steps, slices));
  const DepthwiseAnyPlanes &source = params.source_planes, &taps = params.tap_planes;
  // Of the accesses to a tensor, `each` instructions, and of what goes before a run.
  auto moved = [](const DepthwiseAnyPlanes& planes, double each) {
    const double run = planes.channels_inner ? planes.channels : planes.slots_w;
    const double elements = double(planes.planes()) * planes.rows * planes.classes_w * planes.slots_w;
    return elements * (each / planes.piece + kRun * (1 << planes.lanes_log2) / run);
  };
  const double threads = double(tiling.lanes_h) * tiling.lanes_w * source.planes() * tiling.parts;
  // Of a row of the source and a class of columns: chunks of taps, and accesses to the source and to the taps.
  int64_t chunks = 0, windows = 0, tap_reads = 0;
  for (int32_t left = params.w.tap_slots(); left > 0; left -= kDepthwiseAnyChunk, ++chunks) {
    const int32_t columns = std::min(left, kDepthwiseAnyChunk);
    windows += ceil_div(config.columns + columns - 1, kDepthwiseAnyRead);
    tap_reads += ceil_div(columns, kDepthwiseAnyRead);
  }
  const double visited = params.h.classes() * (params.part_rows + config.rows - 1.0) * params.w.classes();
  const double sums = config.rows * config.columns;
  const double products =
      double(params.h.classes()) * params.part_rows * sums * params.w.tap_slots() * params.w.classes();
  // Sums that are put aside: read, added, written and cleared.
  const double asides =
      wgrad ? double(chunks) * params.h.classes() * params.w.classes() * ceil_div(params.part_rows, params.run_rows)
            : 0;
  const double row_instructions = double(windows + tap_reads) + double(chunks) * (kChunkRow + kChunkRows * config.rows);
  // Threads side by side in a row read every second access.
  const double conflicts = tiling.lanes_w > 4 ? config.columns / 4 : 1;
  const double multiply =
      std::max((products + visited * row_instructions + kAside * sums * asides) / 128,
               4 * (visited * (double(windows) * conflicts + double(tap_reads)) + sums / 2 * asides) / 32);
  const double outputs =
      double(params.target_planes.planes()) * params.target_planes.rows * params.target_planes.slots_w;
  Work work{};
  const double strands = params.w.all_strands();
  work.clocks =
      strands * rounds *
          (threads * multiply * rows_left(config, params) + (moved(source, kStaged) + moved(taps, kStaged)) / 128) +
      moved(params.target_planes, kStored + 2 * shares_of(problem.pass, tiling)) / 128 + kBlock;
  work.waits = strands * (tiling.buffers > 1 ? 1 : rounds) + 1;
  const double written = wgrad && slices > 1 ? 8 : size * sector_waste(params.target_planes, size);
  // Padding is not read. Strands of columns find their neighbours' sectors in the first-level cache.
  auto read = [&](const DepthwiseAnyPlanes& planes, const Axis& h, const Axis& w, bool is_taps) {
    const double rows = is_taps ? h.taps : h.source_extent, columns = is_taps ? w.taps : w.source_extent;
    return planes.planes() * std::min<double>(planes.rows, rows) *
           std::min<double>(planes.classes_w * planes.slots_w, columns) * size * sector_waste(planes, size);
  };
  work.bytes = rounds * (params.w.strands.divisor * read(source, params.h.axis, params.w.axis, false) +
                         read(taps, params.h.axis, params.w.axis, true)) +
               outputs * written;
  return work;
}

double cost_us(const DepthwiseAnyConfig& config, const ConvProblem& problem, const DeviceSpec& device,
               const DepthwiseAnyParams& params, int64_t slices) {
  constexpr int64_t kFewTaps = 4;
  const Work work = work_of(config, problem, params, slices);
  const auto blocks = static_cast<double>(blocks_of(problem, params) * slices);
  const DepthwiseAnyTiling& tiling = params.tiling;
  const double threads = double(tiling.lanes_h) * tiling.lanes_w * tiling.channels * tiling.images * tiling.parts;
  const int64_t smem = 4 * smem_floats(problem, params) + kReservedSmemBytes;
  const double fit = static_cast<double>((device.smem_optin_bytes + kReservedSmemBytes) / smem);
  const double resident = std::max(1., std::min(fit, std::floor(double(kThreadsPerSm) / std::max(threads, 64.))));
  const double rounds = std::max(1., std::ceil(blocks / device.sm_count));
  // Few threads do not keep the units busy.
  const double idle = std::max(1., kEnoughThreads / (threads * std::min(resident, rounds)));
  const double clocks = cost::depthwise::kInstruction * rounds * work.clocks * idle +
                        std::ceil(rounds / resident) * work.waits * kLatency;
  const double bytes = std::max(compulsory_bytes(problem), blocks * work.bytes / kL2Rate);
  const double unseen = problem.pass == Pass::kWgrad && problem.r * problem.s <= kFewTaps ? kUnseenFewTaps : 1;
  return kLaunchUs * (slices > 1 ? 2 : 1) + unseen * time_us({.clocks = clocks, .bytes = bytes}, device);
}

// Slices of the weight gradient's steps: as many as fill the device, and as keep sums short.
int64_t choose_slices(const ConvProblem& problem, const DepthwiseAnyParams& params, const DeviceSpec& device) {
  if (problem.pass != Pass::kWgrad || params.steps == 0) return 1;
  const int64_t steps = params.steps;
  const int64_t fill = ceil_div(2 * kThreadsPerSm / kDepthwiseAnyThreads * device.sm_count,
                                std::max<int64_t>(1, blocks_of(problem, params)));
  const int64_t products = steps * params.part_rows * params.h.classes() * params.w.taps;  // of a thread
  const int64_t most = std::max<int64_t>(1, kMaxWorkspaceBytes / (4 * std::max<int64_t>(1, params.slice_sums)));
  const int64_t slices =
      std::clamp<int64_t>(std::max(fill, ceil_div(products, kMostProducts)), 1, std::min(steps, most));
  // Rounding slices up to whole steps can leave the last ones empty.
  return ceil_div(steps, ceil_div(steps, slices));
}

// The cheapest tiling that fits; none if plan.kernel is null.
Plan cheapest(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const DepthwiseAnyConfig& config = entry.config.as<DepthwiseAnyConfig>();
  const Axes axes = axes_of(problem);
  const Operands operands = operands_of(problem);
  const bool wgrad = problem.pass == Pass::kWgrad;
  const int64_t channels = target_channels(problem);
  const bool inner = channels_inner(operands.source.stride, channels);
  const int64_t lanes_h = ceil_div(most_targets(axes.h), config.rows);
  const int64_t lanes_w = ceil_div(most_targets(axes.w), config.columns);
  Plan best;
  auto consider_buffers = [&](const DepthwiseAnyTiling& tiling) {
    const int64_t threads = int64_t{tiling.lanes_h} * tiling.lanes_w * tiling.channels * tiling.images * tiling.parts;
    if (threads > kDepthwiseAnyThreads) return;
    // Before anything is counted with 32 bits.
    const auto rows = static_cast<double>(tiling.lanes_h * config.rows * axes.h.stride.divisor) + tiling.taps_h;
    const auto columns = static_cast<double>(tiling.lanes_w * config.columns) + tiling.taps_w;
    if (rows * columns * axes.w.target_step() > 1e6) return;
    const double tap_tiles =
        std::ceil(most_taps(axes.h) / double(tiling.taps_h)) * std::ceil(most_taps(axes.w) / double(tiling.taps_w));
    if (static_cast<double>(problem.n + problem.k_per_group()) * tap_tiles > kMaxExtent) return;
    const DepthwiseAnyParams params = depthwise_any_params(config, problem, tiling, 1);
    const int64_t smem = 4 * smem_floats(problem, params);
    if (smem > device.smem_optin_bytes) return;
    const int64_t slices = choose_slices(problem, params, device);
    const int64_t blocks = blocks_of(problem, params) * slices;
    if (blocks > INT32_MAX) return;
    const double cost = cost_us(config, problem, device, params, slices);
    if (best.kernel != nullptr && cost >= best.cost_us) return;
    best.kernel = &entry;
    best.grid = blocks;
    best.block_threads = static_cast<int32_t>(round_up(std::max<int64_t>(threads, 64), 32));
    best.smem_bytes = static_cast<int32_t>(smem);
    best.split = slices;
    best.workspace_bytes = slices > 1 ? 4 * params.slice_sums * slices : 0;
    best.tiling = tiling;
    best.cost_us = cost;
  };
  auto consider = [&](DepthwiseAnyTiling tiling) {
    consider_buffers(tiling);
    // Elements that are widened on their way are waited for.
    tiling.buffers = 2;
    if (problem.dtype == DType::kFloat32) consider_buffers(tiling);
  };
  auto halves = [](int64_t extent, int64_t most, auto&& f) {
    for (int64_t part = std::max<int64_t>(1, extent);; part = ceil_div(part, 2)) {
      if (part <= most) f(static_cast<int32_t>(part));
      if (part == 1) return;
    }
  };
  auto doubles = [](int64_t extent, int64_t most, auto&& f) {
    for (int64_t count = 1; count <= most; count *= 2) {
      f(static_cast<int32_t>(std::min(count, std::max<int64_t>(extent, 1))));
      if (count >= extent) return;
    }
  };
  constexpr int64_t kMost = kDepthwiseAnyThreads;
  // Whole filters unless they are huge; of dy, rows that threads can share.
  const int64_t taps_h = std::max<int64_t>(1, most_taps(axes.h)), taps_w = std::max<int64_t>(1, most_taps(axes.w));
  const int32_t most_h = wgrad ? 64 : 1024, most_w = wgrad ? 64 : 256;
  // Tiles begin at whole pieces.
  const int32_t tile_taps_w = static_cast<int32_t>(taps_w <= most_w ? taps_w : round_up(even_part(taps_w, most_w), 4));
  halves(even_part(taps_h, most_h), most_h, [&](int32_t tile_taps_h) {
    if (!wgrad && tile_taps_h < std::min<int64_t>(taps_h, 16)) return;
    halves(lanes_w, kMost, [&](int32_t w) {
      halves(lanes_h, kMost / w, [&](int32_t h) {
        doubles(inner ? channels : problem.n, kMost / (w * h), [&](int32_t near) {
          DepthwiseAnyTiling tiling{h, w, inner ? near : 1, inner ? 1 : near, 1, tile_taps_h, tile_taps_w, 1};
          const int64_t left = kMost / (w * h * near);
          if (wgrad) {
            doubles(tile_taps_h, left, [&](int32_t parts) {
              tiling.parts = parts;
              consider(tiling);
            });
          } else if (inner || near < problem.n) {
            consider(tiling);
          } else {
            doubles(channels, left, [&](int32_t more) {
              tiling.channels = more;
              consider(tiling);
            });
          }
        });
      });
    });
  });
  return best;
}

bool fits_int32(const ConvProblem& a) {
  for (const int64_t extent : {a.n, a.c, a.k, a.h + 2 * a.padding.h, a.w + 2 * a.padding.w}) {
    if (extent >= kMaxExtent) return false;
  }
  for (const int64_t step : {a.stride.h, a.stride.w, a.dilation.h, a.dilation.w, a.r, a.s}) {
    if (step > kMostStep) return false;
  }
  return a.r * a.s < kMostStep;
}

}  // namespace

DepthwiseAnyParams depthwise_any_params(const DepthwiseAnyConfig& config, const ConvProblem& problem,
                                        const DepthwiseAnyTiling& tiling, int64_t split) {
  const bool wgrad = problem.pass == Pass::kWgrad, dgrad = problem.pass == Pass::kDgrad;
  const Axes axes = axes_of(problem);
  const Operands operands = operands_of(problem);
  const int64_t channels = target_channels(problem), filters = std::max<int64_t>(1, problem.k_per_group());
  DepthwiseAnyParams params{};
  params.wgrad = wgrad;
  params.h = axes.h, params.w = axes.w;
  params.h.tile = tiling.lanes_h * config.rows, params.w.tile = tiling.lanes_w * config.columns;
  params.h.taps = tiling.taps_h, params.w.taps = tiling.taps_w;
  params.tiling = tiling;
  const DepthwiseAnyAxis &h = params.h, &w = params.w;
  params.channels = static_cast<int32_t>(channels), params.images = static_cast<int32_t>(problem.n);
  params.sources = static_cast<int32_t>(dgrad ? filters : 1);
  params.by_filters = FastDivmod(dgrad ? 1 : filters);
  const Pieces pieces = pieces_of(problem, w);
  constexpr int64_t kStoredEach = 2;
  params.source_planes =
      make_planes(operands.source, channels, tiling.channels, tiling.images, h.classes(), h.source_slots(), w.classes(),
                  w.source_slots(), pieces.source, kDepthwiseAnyBatch);
  params.tap_planes =
      make_planes(operands.taps, wgrad ? channels : 1, tiling.channels, wgrad ? tiling.images : 1, h.classes(),
                  h.tap_slots(), w.classes(), w.tap_slots(), pieces.taps, kDepthwiseAnyBatch);
  params.target_planes = make_planes(operands.target, wgrad ? 1 : channels, tiling.channels, wgrad ? 1 : tiling.images,
                                     1, h.tile, 1, w.tile * w.target_step(), pieces.target, kStoredEach);
  params.tap_at = params.source_planes.floats();
  // And what a thread reads in vain after its last row.
  params.buffer_pitch = params.tap_at + params.tap_planes.floats() + 2 * kDepthwiseAnyChunk;
  params.sum_at = wgrad || w.all_strands() > 1 ? tiling.buffers * params.buffer_pitch : 0;
  params.part_rows = static_cast<int32_t>(ceil_div(h.tap_slots(), tiling.parts));
  constexpr int32_t kRunRows = kDepthwiseAnyChain / kDepthwiseAnyChunk;
  params.run_rows = wgrad && params.part_rows > kRunRows ? kRunRows : h.source_slots();
  auto tiles = [](int64_t extent, int64_t tile) { return FastDivmod(std::max<int64_t>(1, ceil_div(extent, tile))); };
  params.by_tap_tiles_w = tiles(most_taps(w), w.taps), params.by_tap_tiles_h = tiles(most_taps(h), h.taps);
  params.steps = static_cast<int32_t>((wgrad ? image_groups(problem, tiling) : params.sources) *
                                      params.by_tap_tiles_w.divisor * params.by_tap_tiles_h.divisor);
  params.slice_steps = static_cast<int32_t>(ceil_div(params.steps, split));
  params.slice_sums = channels * problem.r * problem.s;
  // Rows of padding that all taps see are few unless there are many taps.
  params.skips_rows = h.tap_slots() >= 8;
  params.by_strands_h = FastDivmod(h.all_strands());
  params.by_tiles_w = tiles(most_targets(w), w.tile), params.by_tiles_h = tiles(most_targets(h), h.tile);
  params.by_channels = tiles(channels, tiling.channels);
  params.by_lanes_w = FastDivmod(tiling.lanes_w), params.by_lanes_h = FastDivmod(tiling.lanes_h);
  params.by_planes = FastDivmod(tiling.channels * tiling.images);
  return params;
}

namespace {

const char* why_not(const ConvProblem& problem) {
  if (problem.c_per_group() != 1) return "is for groups of one input channel";
  if (problem.pass == Pass::kDgrad && problem.dtype == DType::kFloat32 && problem.precision == Precision::kIeee &&
      problem.k_per_group() > kMostFilters) {
    return "rounds sums over so many filters less well than cuDNN";
  }
  if (!fits_int32(problem)) return "counts with 32 bits: extents stay below 2^29, strides, dilations and taps 2^16";
  return nullptr;
}

}  // namespace

Offer depthwise_any_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(problem)) return reason;
  Plan plan = cheapest(entry, problem, device);
  if (plan.kernel == nullptr) return "has no tile that fits shared memory, in as many blocks as a grid has";
  return plan;
}

}  // namespace fastconv
