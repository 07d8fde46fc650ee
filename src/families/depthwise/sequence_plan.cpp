#include "fastconv/families/depthwise/sequence_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "fastconv/core/integers.h"
#include "fastconv/families/depthwise/cost.h"
#include "fastconv/planner/sides.h"

namespace fastconv {
namespace {

using namespace cost::sequence;

constexpr int64_t kLeastSegment = 256, kMostSegment = 8192;
constexpr int64_t kMostFloatSegment = 4096;  // times lanes that share positions
constexpr int64_t kMostSlices = 4096;
constexpr int64_t kOtherCacheBytes = 28 << 10, kCacheLine = 128;  // the former: beside all shared memory

// Whether filters are columns.
bool down(const ConvProblem& a) { return a.r > 1; }

struct Geometry {
  int64_t taps;
  int64_t padding;  // as windows see it; the input gradient's have the last tap first
  int64_t dilation, stride;
  int64_t rows;  // sequences of a channel's image
};
Geometry geometry(const ConvProblem& a) {
  const Side to = target_side(a);
  Geometry g = down(a) ? Geometry{a.r, a.padding.h, a.dilation.h, a.stride.h, to.w}
                       : Geometry{a.s, a.padding.w, a.dilation.w, a.stride.w, to.h};
  if (a.pass == Pass::kDgrad) g.padding = g.dilation * (g.taps - 1) - g.padding;
  return g;
}

SequenceTensor tensor_of(const Side& side, const ConvProblem& a, int32_t most) {
  const bool columns = down(a);
  const Strides& s = side.stride;
  SequenceTensor tensor{};
  tensor.image = used_stride(s.n, side.n), tensor.channel = s.c;
  tensor.row = columns ? used_stride(s.w, side.w) : used_stride(s.h, side.h);
  tensor.step = columns ? s.h : s.w;
  tensor.length = static_cast<int32_t>(columns ? side.h : side.w);
  tensor.spread = 1;
  const int64_t channels = side.c * a.groups;
  const bool adjacent = is_step(tensor.step, tensor.length, 1);
  tensor.inner = !adjacent && s.c == 1 && channels > 1;
  const auto fits = [&](int64_t piece) {
    if (side.align < piece * element_size(a.dtype) || tensor.image % piece != 0 || tensor.row % piece != 0)
      return false;
    if (tensor.inner) return channels % piece == 0 && tensor.step % piece == 0;
    return used_stride(s.c, channels) % piece == 0 && tensor.length % piece == 0;
  };
  tensor.piece = most;
  while (tensor.piece > 1 && !fits(tensor.piece)) tensor.piece /= 2;
  if (!adjacent && !tensor.inner) tensor.piece = 0;
  if (tensor.inner && tensor.piece < most) tensor.piece = 0;
  return tensor;
}

struct Tensors {
  SequenceTensor from, to;
};
Tensors tensors_of(const DepthwiseSequenceConfig& config, const ConvProblem& a) {
  Tensors tensors{tensor_of(source_side(a), a, config.piece()), tensor_of(target_side(a), a, config.piece())};
  (a.pass == Pass::kDgrad ? tensors.from : tensors.to).spread = static_cast<int32_t>(geometry(a).stride);
  return tensors;
}

// Segments begin at whole pieces, of what a stride spreads too, and with the first strand.
int64_t segment_step(const DepthwiseSequenceConfig& config, const Geometry& g) {
  return std::lcm<int64_t>(config.piece() * g.stride, config.gaps ? 1 : g.dilation);
}

DepthwiseSequenceParams make_params(const DepthwiseSequenceConfig& config, const ConvProblem& a,
                                    const DepthwiseSequenceTiling& tiling) {
  const Geometry g = geometry(a);
  const auto [from, to] = tensors_of(config, a);
  DepthwiseSequenceParams p{};
  p.from = from, p.to = to;
  p.filter_strides = a.w_strides;
  p.taps = static_cast<int32_t>(g.taps), p.padding = static_cast<int32_t>(g.padding);
  p.channels = static_cast<int32_t>(target_channels(a));
  p.rows = tiling.rows, p.segment = tiling.segment;
  p.chunks_log2 = std::bit_width(static_cast<uint32_t>(tiling.rows / config.piece())) - 1;
  const bool strands = g.dilation > 1 && !config.gaps;
  // Pieces begin at multiples of their size, of the tensor and of the row.
  if (!from.inner && from.piece > 1 && from.spread == 1) {
    p.skipped = static_cast<int32_t>((-g.padding % from.piece + from.piece) % from.piece);
  }
  p.lead = strands ? 0 : p.skipped;
  p.dilation = FastDivmod(strands ? g.dilation : 1), p.stride = FastDivmod(g.stride);
  p.reach = static_cast<int32_t>(g.dilation), p.gap = config.gaps ? p.reach : 1;
  p.count = static_cast<int32_t>(tiling.segment / g.dilation);
  // An odd number of words, so that neighbouring strands begin in other banks.
  const int64_t strand = p.count + g.taps - 1, word = 4 / element_size(a.dtype);
  p.strand = static_cast<int32_t>(strands ? round_up(strand, 2 * word) + word : INT32_MAX / 2);
  p.by_strand = FastDivmod(p.strand);
  p.targets = static_cast<int32_t>(strands ? (g.dilation - 1) * p.strand + p.count : tiling.segment);
  p.extent = static_cast<int32_t>(
      round_up(round_up(int64_t{p.targets}, config.tile()) + config.window(p.taps) + (p.taps - 1) * (p.gap - 1),
               8 * config.piece()));
  p.pitch = config.place(p.extent);
  // Where channels are spread over rows, these begin in other banks.
  if (from.inner && !config.weights()) p.pitch += config.piece();
  p.words = !strands && to.piece > 1 && to.spread == 1;
  p.taps_pitch = static_cast<int32_t>(config.tensor() ? 16 * config.steps + kSequenceBefore
                                                      : round_up(g.taps + config.piece() - 1, config.piece()));
  p.pixels = from.inner || to.inner;
  p.buffers = p.pixels ? 1 : 2;
  p.target_at = p.buffers * p.rows * p.pitch;
  p.lag_groups_log2 = config.lag_groups_log2(p.taps + p.lead);
  const int64_t segments = std::max<int64_t>(1, ceil_div(to.extent(), tiling.segment));
  p.by_segments = FastDivmod(segments);
  p.by_rows = FastDivmod(std::max<int64_t>(1, g.rows));
  p.by_channels = FastDivmod(std::max<int64_t>(1, ceil_div(target_channels(a), tiling.rows)));
  p.units = static_cast<int32_t>(a.n * g.rows * segments);
  p.slice_units = static_cast<int32_t>(ceil_div(int64_t{p.units}, tiling.slices));
  return p;
}

int64_t smem_bytes(const DepthwiseSequenceConfig& config, const DepthwiseSequenceParams& p) {
  const int64_t rows = int64_t{p.buffers} * p.rows * p.pitch;
  if (!config.weights()) return config.bytes * (rows + int64_t{p.rows} * p.taps_pitch);
  return std::max(config.bytes * 2 * rows, int64_t{4} * config.sums() * p.rows);
}

// Instructions of a warp, for a segment of a channel.
double instructions(const DepthwiseSequenceConfig& config, const DepthwiseSequenceParams& p) {
  const double elements = p.extent / 32.;
  const auto moved = [&](const SequenceTensor& tensor) {
    const bool scattered = p.dilation.divisor > 1 || tensor.spread > 1;
    const double piece = tensor.piece * config.bytes < 4 && !scattered ? kShifted : kPiece / tensor.piece;
    const double each = (tensor.inner ? kPixel : piece) + (scattered ? kStrand : 0);
    return elements * (each / tensor.spread + (tensor.spread > 1 ? kPiece / config.piece() : 0));
  };
  const double tiles = double(round_up(int64_t{p.targets}, config.tile())) / config.tile();
  double product = kTile + kProduct * config.steps;
  if (!config.tensor()) {
    const double taps = config.weights() ? double(kSequenceLags << p.lag_groups_log2) : p.taps + p.lead;
    product = kTile + (config.gaps ? kGapTap * p.taps : kMultiply * taps * config.tile() / 32);
  }
  return moved(p.from) + (config.tensor() && p.words && !p.pixels ? 0 : moved(p.to)) + tiles * product + kSegment;
}

double cost_us(const DepthwiseSequenceConfig& config, const ConvProblem& a, const DepthwiseSequenceParams& p,
               int64_t slices, const DeviceSpec& device) {
  const double all = std::max(1., double(p.by_channels.divisor) * double(slices) / device.sm_count);  // of an SM
  const int64_t fit = std::max<int64_t>(1, resident_blocks(smem_bytes(config, p), device, config.blocks()));
  const double at_once = std::min(double(fit), std::ceil(all));
  // A warp waits for a segment, and for what its products wait for. Others do their work meanwhile.
  const double work = p.rows * instructions(config, p), own = work / (config.threads / 32);
  const double lone = own * (config.tensor() ? kLone : kLoneFloats);
  // Pixels: rounds of loads that a block waits for, and lines of the first-level cache that loads on their way take.
  const double tensors = (p.from.inner ? 1 : 0) + (config.weights() && p.to.inner ? 1 : 0);
  const double rounds = tensors * std::ceil(double(p.extent) * p.rows / config.piece() / (4. * config.threads));
  const double cache = device.smem_optin_bytes + kOtherCacheBytes - at_once * double(smem_bytes(config, p));
  const double lines = p.pixels ? at_once * tensors * p.extent * kLineClocks * kCacheLine / cache : 0;
  const double alone = p.pixels ? kPixelsClocks + kRoundClocks * rounds + lone : std::max(kSegmentClocks, lone);
  const double segment = std::max({alone, at_once * work / kIssued, lines});
  const double again = 1 + kSpanBytes * (p.span() / double(p.segment) - 1);  // what two segments read
  const Workload load{.clocks = std::ceil(all / at_once) * (kBlockClocks + p.slice_units * segment),
                      .bytes = kMemoryTimes * again * compulsory_bytes(a),
                      .shown = kShown,
                      .us = config.weights() && slices > 1 ? slices_us(slices, kSumUs, device) : 0};
  return kLaunchUs + time_us(load, device);
}

const char* why_not(const DepthwiseSequenceConfig& config, const ConvProblem& a) {
  if (a.c_per_group() != 1 || a.k_per_group() != 1) return "is for groups of one input channel and one filter";
  if (a.r > 1 && a.s > 1) return "takes filters of one row, or one column";
  const Pair padding = a.padding;
  if (down(a) ? a.stride.w != 1 || padding.w != 0 : a.stride.h != 1 || padding.h != 0) {
    return "takes each sequence by itself";
  }
  const Geometry g = geometry(a);
  if (g.stride != 1 && g.dilation != 1) return "takes a stride or a dilation, not both";
  if (config.gaps && (g.dilation == 1 || g.dilation % config.piece() != 0 || g.padding % config.piece() != 0)) {
    return "is for dilations and padding of whole pieces of 16 bytes";
  }
  if (g.taps > config.most_taps()) return "is compiled for fewer taps";
  // The next smaller kernel takes them.
  if (config.steps > (config.weights() ? 4 : 2) && g.taps <= config.most_taps() / 4) return "is compiled for more taps";
  for (const int64_t extent : {a.n, a.c, a.h + 2 * a.padding.h, a.w + 2 * a.padding.w, g.dilation * g.taps}) {
    if (extent >= kMaxExtent) return "counts with 32 bits: extents stay below 2^29";
  }
  const auto [from, to] = tensors_of(config, a);
  if (from.piece == 0 || to.piece == 0) {
    return "reads sequences, or channels in pieces of 16 bytes, that lie side by side";
  }
  // Pixels' addresses within a sequence are counted with 32 bits.
  for (const SequenceTensor& tensor : {from, to}) {
    if (tensor.inner && double(tensor.step) * tensor.length > INT32_MAX)
      return "counts with 32 bits: pixels lie too far apart";
  }
  return nullptr;
}

}  // namespace

Offer depthwise_sequence_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const auto& config = entry.config.as<DepthwiseSequenceConfig>();
  if (const char* reason = why_not(config, problem)) return reason;
  const Geometry g = geometry(problem);
  const Tensors tensors = tensors_of(config, problem);
  const int64_t step = segment_step(config, g), length = std::max<int64_t>(1, tensors.to.extent());
  const bool inner = tensors.from.inner || tensors.to.inner;
  Plan best;
  const auto consider = [&](int64_t rows, int64_t segment) {
    const double targets = double(segment) + (g.dilation > 1 ? double(g.dilation) * double(g.taps + 3) : 0);
    if (targets * double(rows) * config.bytes > device.smem_optin_bytes) return;  // nor does it fit 32 bits
    // One chain of additions of float32, but for a segment that cannot be shorter.
    const int64_t groups_of_lags = ceil_div(g.taps + config.piece() - 1, int64_t{kSequenceLags});
    if (config.weights() && !config.tensor() && !config.gaps && segment > step &&
        segment * groups_of_lags > kMostFloatSegment)
      return;
    const int64_t units = std::max<int64_t>(1, problem.n * g.rows * ceil_div(length, segment));
    const int64_t groups = ceil_div(problem.c, rows);
    if (double(units) * double(groups) > INT32_MAX) return;
    for (int64_t wanted = 1; wanted <= units; wanted *= 2) {
      // Rounding a slice's segments up can leave the last ones empty.
      const int64_t slices = ceil_div(units, ceil_div(units, wanted));
      if (config.weights() && slices > kMostSlices) break;
      const DepthwiseSequenceTiling tiling{static_cast<int32_t>(rows), static_cast<int32_t>(segment),
                                           static_cast<int32_t>(slices)};
      const DepthwiseSequenceParams params = make_params(config, problem, tiling);
      const int64_t smem = smem_bytes(config, params);
      if (smem > device.smem_optin_bytes) return;
      const double cost = cost_us(config, problem, params, slices, device);
      if (best.kernel != nullptr && cost >= best.cost_us) continue;
      best.kernel = &entry;
      best.grid = groups * slices;
      best.block_threads = config.threads;
      best.smem_bytes = static_cast<int32_t>(smem);
      best.split = config.weights() ? slices : 1;
      best.workspace_bytes = best.split > 1 ? 4 * slices * problem.k * g.taps : 0;
      best.tiling = tiling;
      best.cost_us = cost;
    }
  };
  // Of pixels, no less than what memory brings at once.
  const int64_t least_rows = inner && !config.weights() ? 16 : config.threads / 32;
  const int64_t most_rows = inner && !config.weights() ? 32 : least_rows;
  for (int64_t rows = least_rows; rows <= most_rows; rows *= 2) {
    for (int64_t parts = 1;; parts *= 2) {
      const int64_t segment = round_up(ceil_div(length, parts), step);
      if (segment <= std::max(kMostSegment, step)) consider(rows, segment);
      if (segment <= std::max(kLeastSegment, step)) break;
    }
  }
  if (best.kernel == nullptr) return "has no room for a segment";
  return best;
}

DepthwiseSequenceParams depthwise_sequence_params(const Plan& plan, const ConvProblem& problem) {
  return make_params(plan.kernel->config.as<DepthwiseSequenceConfig>(), problem,
                     plan.tiling.as<DepthwiseSequenceTiling>());
}

}  // namespace fastconv
