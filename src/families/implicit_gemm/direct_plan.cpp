#include "fastconv/families/implicit_gemm/direct_plan.h"

#include <algorithm>
#include <numeric>

#include "fastconv/core/integers.h"
#include "fastconv/families/implicit_gemm/cost.h"
#include "fastconv/families/implicit_gemm/tile_config.h"
#include "fastconv/tile/chain_length.h"
#include "fastconv/tile/conv_coords.cuh"
#include "fastconv/tile/cost.h"

namespace fastconv {
namespace {

// A split costs a second kernel and a trip through memory: worth it only for slices of some length.
constexpr int64_t kMinSliceDepth = 256;
// Threads per SM that a split fills: two rounds of what 128 registers a thread leave room for. Not a block
// more: the next round would be nearly empty.
constexpr int64_t kThreadsPerSm = 2 * 512;
constexpr int64_t kMaxSplit = 4096;

struct View {
  const Strides& strides;
  int64_t n, c, h, w;
  int32_t align;
};
View input(const ConvProblem& a) { return {a.x_strides, a.n, a.c, a.h, a.w, a.x_align}; }
View filter(const ConvProblem& a) { return {a.w_strides, a.k, a.c_per_group(), a.r, a.s, a.w_align}; }
View output(const ConvProblem& a) { return {a.y_strides, a.n, a.k, a.p(), a.q(), a.y_align}; }

bool channel_vectors(const View& view, int64_t channels, int64_t elements) {
  return view.strides.c == 1 && channels % elements == 0 && view.align >= 16 &&
         keeps_multiples(view.strides.n, view.n, elements) && keeps_multiples(view.strides.h, view.h, elements) &&
         keeps_multiples(view.strides.w, view.w, elements);
}

// Planes that have no gaps between rows, of whole vectors, each of which begins at a multiple of 16 bytes.
bool pixel_vectors(const View& view, int64_t elements) {
  const bool dense = (view.w == 1 || view.strides.w == 1) && (view.h == 1 || view.strides.h == view.w);
  return dense && view.h * view.w % elements == 0 && view.align >= 16 &&
         keeps_multiples(view.strides.n, view.n, elements) && keeps_multiples(view.strides.c, view.c, elements);
}

bool fits_int32(const ConvProblem& a) {
  const int64_t limit = kMaxExtent;
  for (const int64_t extent : {a.n, a.c, a.k, a.h + 2 * a.padding.h, a.w + 2 * a.padding.w, a.stride.h, a.stride.w,
                               a.dilation.h, a.dilation.w}) {
    if (extent >= limit) return false;
  }
  // The filter spans no more than the padded input (validate()), so its extents and their products with dilation fit.
  const int64_t image = a.pass == Pass::kDgrad ? a.h * a.w : a.p() * a.q();
  const int64_t taps = std::max(a.c_per_group(), a.k_per_group()) * a.r * a.s;
  // In this order: dgrad's extents come from a ConvMap, whose divisors are of 32 bits.
  return image < limit && taps < limit && direct_extents(a).batches < limit;
}

// A slice of pixels is counted in 32 bits.
int64_t least_split(const ConvProblem& problem, const GemmExtents& gemm) {
  return problem.pass == Pass::kWgrad ? std::max<int64_t>(1, ceil_div(gemm.depth, kMaxExtent)) : 1;
}

}  // namespace

GemmExtents direct_extents(const ConvProblem& a) {
  switch (a.pass) {
    case Pass::kFprop: return {a.n * a.p() * a.q(), a.k_per_group(), a.c_per_group() * a.r * a.s, a.groups};
    case Pass::kDgrad: {
      // As make_axis() has it; depth is that of the phase with the most taps.
      const int64_t taps_h = ceil_div(a.r, a.stride.h / std::gcd(a.stride.h, a.dilation.h));
      const int64_t taps_w = ceil_div(a.s, a.stride.w / std::gcd(a.stride.w, a.dilation.w));
      return {a.n * ceil_div(a.h, a.stride.h) * ceil_div(a.w, a.stride.w), a.c_per_group(),
              a.k_per_group() * taps_h * taps_w, a.groups * std::min(a.stride.h, a.h) * std::min(a.stride.w, a.w)};
    }
    case Pass::kWgrad: return {a.c_per_group() * a.r * a.s, a.k_per_group(), a.n * a.p() * a.q(), a.groups};
  }
  return {};
}

int64_t direct_slice_depth(const ConvProblem& problem, int64_t split, int64_t tile_depth) {
  const int64_t steps = std::max<int64_t>(1, ceil_div(direct_extents(problem).depth, tile_depth));
  return ceil_div(steps, split) * tile_depth;
}

bool direct_channels_inner(const ConvProblem& problem) {
  const bool dgrad = problem.pass == Pass::kDgrad;
  const Strides& source = dgrad ? problem.y_strides : problem.x_strides;
  const int64_t channels = dgrad ? problem.k_per_group() : problem.c_per_group();
  return channels > 1 && source.c < source.w;
}

int32_t direct_smem_bytes(const KernelEntry& entry, const ConvProblem& problem, int64_t depth) {
  const bool keeps_sums = depth > chain_length(problem);
  return simt_smem_bytes(entry.tile.m, entry.tile.n, problem.dtype == DType::kFloat64 ? 8 : 4, keeps_sums);
}

int64_t direct_tiles(const KernelEntry& entry, const GemmExtents& gemm) {
  return ceil_div(gemm.m, entry.tile.m) * ceil_div(gemm.n, entry.tile.n) * gemm.batches;
}

int64_t direct_slice_bytes(const ConvProblem& problem, const GemmExtents& gemm) {
  return std::max<int64_t>(1, gemm.m * gemm.n * gemm.batches) * (problem.dtype == DType::kFloat64 ? 8 : 4);
}

const char* direct_gemm_why_not(const KernelEntry& entry, const ConvProblem& problem) {
  const VectorReads reads = entry.config.as<GemmConfig>().reads;
  if (!fits_int32(problem)) return "counts with 32 bits: extents, pixels of an image and taps stay below 2^29";
  const GemmExtents gemm = direct_extents(problem);
  if (direct_tiles(entry, gemm) > INT32_MAX / 2) return "would need more blocks than a grid has";
  const int64_t least = least_split(problem, gemm);
  if (least > 1 && least * direct_slice_bytes(problem, gemm) > kMaxWorkspaceBytes) {
    return "would need too much workspace";
  }
  const int64_t elements = 16 / element_size(problem.dtype);
  if (reads == VectorReads::kFilterVector) {
    const View w = filter(problem);
    const bool dense =
        (w.w == 1 || w.strides.w == 1) && (w.h == 1 || w.strides.h == w.w) && (w.c == 1 || w.strides.c == w.h * w.w);
    if (direct_channels_inner(problem) || !dense || w.align < 16 || w.c * w.h * w.w % elements != 0 ||
        !keeps_multiples(w.strides.n, w.n, elements)) {
      return "reads 16 bytes of the filter at a time: it must be contiguous, aligned, C/groups*R*S in whole reads";
    }
  }
  if (reads == VectorReads::kChannelVector) {
    const int64_t c = problem.c_per_group(), k = problem.k_per_group();
    const bool fits =
        problem.pass == Pass::kFprop
            ? channel_vectors(input(problem), c, elements) && channel_vectors(filter(problem), c, elements)
        : problem.pass == Pass::kDgrad
            ? channel_vectors(output(problem), k, elements) && channel_vectors(filter(problem), c, elements)
            : channel_vectors(input(problem), c, elements) && channel_vectors(output(problem), k, elements);
    // The order of the taps is that of the strides: an image expanded along its columns has its columns closest.
    if (!fits || !direct_channels_inner(problem)) {
      return "reads 16 bytes of channels at a time: needs channels_last operands, aligned, in whole reads";
    }
  }
  if (reads == VectorReads::kPixelVector) {
    // With one tap and no padding a run of pixels is one of x and of dy.
    const bool one_tap = problem.r * problem.s == 1 && problem.stride.h == 1 && problem.stride.w == 1 &&
                         problem.padding.h == 0 && problem.padding.w == 0;
    if (!one_tap || !pixel_vectors(input(problem), elements) || !pixel_vectors(output(problem), elements)) {
      return "reads 16 bytes of pixels at a time: needs one tap, no stride or padding, planes without gaps, aligned";
    }
  }
  return nullptr;
}

int64_t direct_split(const ConvProblem& problem, int64_t wanted, int64_t tile_depth) {
  const GemmExtents gemm = direct_extents(problem);
  int64_t split = std::min({wanted, kMaxWorkspaceBytes / direct_slice_bytes(problem, gemm), kMaxSplit});
  split = std::max({split, least_split(problem, gemm), int64_t{1}});
  // Rounding slices up to whole steps can leave the last ones empty.
  return std::max<int64_t>(1, ceil_div(gemm.depth, direct_slice_depth(problem, split, tile_depth)));
}

Offer plan_direct(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* why = direct_gemm_why_not(entry, problem)) return why;
  const GemmExtents gemm = direct_extents(problem);
  if (direct_smem_bytes(entry, problem, gemm.depth) > device.smem_optin_bytes) return "needs more shared memory";
  const GemmConfig& config = entry.config.as<GemmConfig>();
  const int64_t tiles = direct_tiles(entry, gemm);
  const int64_t partial_bytes = direct_slice_bytes(problem, gemm);
  const int64_t threads = tile_threads(entry.tile.m, entry.tile.n, config.thread_m, config.thread_n);
  const int64_t wanted = kThreadsPerSm / threads * device.sm_count / std::max<int64_t>(1, tiles);
  const int64_t split = direct_split(problem, std::min(wanted, gemm.depth / kMinSliceDepth), kTileDepth);
  const int64_t slice_depth = direct_slice_depth(problem, split, kTileDepth);

  Plan plan;
  plan.kernel = &entry;
  plan.block_threads = static_cast<int32_t>(threads);
  plan.smem_bytes = direct_smem_bytes(entry, problem, slice_depth);
  plan.grid = tiles * split;
  plan.split = split;
  plan.workspace_bytes = split > 1 ? partial_bytes * split : 0;
  const double partial_traffic = split > 1 ? 2.0 * static_cast<double>(plan.workspace_bytes) : 0;
  // One block on an SM waits for its own loads, and a few still do.
  using namespace cost::multiply_adds;
  const double alone = plan.grid <= device.sm_count ? kAlone : plan.grid <= 4 * device.sm_count ? kFew : 1;
  plan.cost_us = alone * tiled_cost_us(entry, problem, device,
                                       {plan.grid, slice_depth / kTileDepth,
                                        compulsory_bytes(problem) + phase_bytes(problem, device) + partial_traffic}) +
                 (split > 1 ? kLaunchUs : 0);
  return plan;
}

}  // namespace fastconv
