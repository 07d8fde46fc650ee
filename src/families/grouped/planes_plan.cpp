#include "fastconv/families/grouped/planes_plan.h"

#include <algorithm>
#include <bit>

#include "fastconv/core/integers.h"
#include "fastconv/families/grouped/cost.h"
#include "fastconv/planner/sides.h"
#include "fastconv/tile/copies.h"

namespace fastconv {
namespace {

using namespace cost::grouped_planes;

// Pixels that one sum of tensor cores adds up, or those of one tile: tensor cores truncate what they add to.
constexpr int64_t kMostPixels = 4096;
int64_t blocks_of(const ConvProblem& a) { return ceil_div(a.q(), kPlanesColumns); }

// In shared memory, from one plane's rows to the next one's: with up to 15 bytes before and after, and 16 bytes further
// in the banks.
int64_t pitch_of(const Side& side, int64_t bytes, int64_t staged_rows) {
  return round_up(std::min(side.h, staged_rows) * side.w * bytes + 30, int64_t{128}) + 16;
}
GroupedPlanesTensor tensor_of(const Side& side, int64_t bytes, int64_t staged_rows) {
  GroupedPlanesTensor tensor{};
  tensor.image_bytes = side.stride.n * bytes, tensor.plane_bytes = side.stride.c * bytes;
  tensor.row_bytes = static_cast<int32_t>(side.w * bytes);
  tensor.rows = static_cast<int32_t>(side.h), tensor.columns = static_cast<int32_t>(side.w);
  tensor.pitch = static_cast<int32_t>(pitch_of(side, bytes, staged_rows));
  return tensor;
}

int64_t seen_rows(const ConvProblem& a, int64_t run_rows) { return planes_seen_rows(run_rows, a.stride.h); }
// Of a block: channels of x, and of dy; squares of 8 by 8 of them that hold a group.
int64_t planes_of(const ConvProblem& a) { return std::max<int64_t>(kPlanes, a.c_per_group()); }
int64_t squares_of(const ConvProblem& a) { return planes_of(a) / kPlanes * (planes_of(a) / kPlanes); }
int64_t warps_of(const ConvProblem& a, int64_t images) { return images * blocks_of(a) * squares_of(a); }
int64_t image_bytes(const ConvProblem& a, int64_t run_rows) {
  const int64_t bytes = element_size(a.dtype);
  return planes_of(a) *
         (pitch_of(input_side(a), bytes, seen_rows(a, run_rows)) + pitch_of(output_side(a), bytes, run_rows));
}

struct Work {
  GroupedPlanesTiling tiling;
  int64_t tiles = 0, slices = 0, smem_bytes = 0;
  double us = 0;
};

// Blocks fill the SMs about once; rows that two runs see are read twice, from L2.
Work work_of(const GroupedPlanesConfig& config, const ConvProblem& a, const DeviceSpec& device,
             const GroupedPlanesTiling& tiling) {
  Work work{tiling};
  const int64_t warps = warps_of(a, tiling.images), chunks = a.c / planes_of(a);
  work.tiles = ceil_div(a.n, tiling.images) * ceil_div(a.p(), tiling.run_rows);
  const int64_t stage = tiling.images * image_bytes(a, tiling.run_rows);
  auto smem_of = [&](int64_t slice_tiles) {
    return kPlanesBarrierBytes + std::max(std::min<int64_t>(slice_tiles, 2) * stage, warps * 32 * kPlanesProducts * 16);
  };
  auto resident_of = [&](int64_t slice_tiles) {
    const int64_t fit = device.smem_optin_bytes / (smem_of(slice_tiles) + kReservedSmemBytes);
    return std::min(fit, config.warps / warps);
  };
  const int64_t together = std::max<int64_t>(1, resident_of(2)) * device.sm_count;
  const int64_t longest = std::max<int64_t>(1, kMostPixels / (int64_t{tiling.run_rows} * kPlanesColumns));
  const int64_t wanted = std::clamp<int64_t>(together / chunks, 1, std::max<int64_t>(1, work.tiles));
  const int64_t slice_tiles = std::clamp<int64_t>(ceil_div(work.tiles, wanted), 1, longest);
  work.slices = std::max<int64_t>(1, ceil_div(work.tiles, slice_tiles));
  work.smem_bytes = smem_of(slice_tiles);
  const int64_t resident = resident_of(slice_tiles);
  if (resident < 1) return work;  // of no time: it does not fit
  const double row = a.dtype == DType::kFloat32 ? kFloatRowClocks : kHalfRowClocks;
  const double blocks = double(chunks) * double(work.slices), at_once = double(resident) * device.sm_count;
  const double busy = std::min(double(resident), std::max(1., blocks / device.sm_count));
  const double tile = tiling.run_rows * std::max(kLeastRowClocks, row * busy * double(warps) / 4) + kTileClocks;
  const double rounds = std::max(1., blocks / at_once);
  const double clocks = (rounds > 1 ? rounds + kLastRound : 1) * (double(slice_tiles) * tile + kBlockClocks);
  const double waits = std::max(1., kEnoughWarps / (busy * double(warps)));
  const double seen = double(seen_rows(a, tiling.run_rows)) / double(tiling.run_rows * a.stride.h);
  const double bytes = compulsory_bytes(a) * (1 + kReadAgain * (seen - 1));
  work.us = time_us({.clocks = clocks, .bytes = waits * bytes}, device);
  return work;
}

int64_t slice_bytes(const ConvProblem& a) { return a.k * a.c_per_group() * a.r * a.s * 4; }

Work cheapest(const GroupedPlanesConfig& config, const ConvProblem& a, const DeviceSpec& device) {
  Work best{};
  const int64_t rows = std::max<int64_t>(1, a.p());
  for (int64_t images = 1; warps_of(a, images) <= kPlanesMostWarps && images <= std::max<int64_t>(1, a.n); ++images) {
    for (int64_t parts = 1; parts <= rows; parts *= 2) {
      const Work work =
          work_of(config, a, device, {static_cast<int32_t>(images), static_cast<int32_t>(ceil_div(rows, parts))});
      if (work.us == 0 || double(work.slices) * double(slice_bytes(a)) > kMaxWorkspaceBytes) continue;
      if (best.us == 0 || work.us < best.us) best = work;
    }
  }
  return best;
}

const char* why_not(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (problem.dtype == DType::kFloat32 && problem.precision != Precision::kTf32) return "rounds operands to TF32";
  const int64_t width = problem.c_per_group();
  if (width != problem.k_per_group() || (width != 2 && width != 4 && width != 8 && width != 16) ||
      problem.c % kPlanes != 0) {
    return "is for groups of 2, 4, 8 or 16 channels and as many filters, 8 channels at a time";
  }
  if (problem.r != kPlanesTaps || problem.s != kPlanesTaps || problem.dilation != kUnitStep) {
    return "is for 3x3 filters without dilation";
  }
  const int32_t stride = entry.config.as<GroupedPlanesConfig>().stride;
  if (problem.stride != Pair{stride, stride}) return "is compiled for another stride";
  if (problem.padding.w != 1) return "is for one column of padding";
  for (const int64_t extent : {problem.n, problem.c, problem.h + 2 * problem.padding.h, problem.w}) {
    if (extent >= kMaxExtent) return "counts with 32 bits: extents stay below 2^29";
  }
  const Side x = input_side(problem), y = output_side(problem);
  if (problem.dtype != DType::kFloat32 && (x.w % 2 != 0 || y.w % 2 != 0))
    return "reads words: needs rows of even length";
  if (!planes_copyable(x, problem.c, problem.dtype) || !planes_copyable(y, problem.k, problem.dtype)) {
    return "copies rows at once: needs planes without gaps, all or each a multiple of 16 bytes";
  }
  if (warps_of(problem, 1) > kPlanesMostWarps) return "has room for fewer columns";
  const Work work = cheapest(entry.config.as<GroupedPlanesConfig>(), problem, device);
  if (work.us == 0) return "has no room for the rows that one of the output's gradient sees, or for the sums";
  if (double(problem.c / planes_of(problem)) * double(work.slices) > INT32_MAX || work.tiles > INT32_MAX) {
    return "would need more blocks than a grid has";
  }
  return nullptr;
}

}  // namespace

Offer grouped_planes_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  if (const char* reason = why_not(entry, problem, device)) return reason;
  const Work work = cheapest(entry.config.as<GroupedPlanesConfig>(), problem, device);
  Plan plan;
  plan.kernel = &entry;
  plan.tiling = work.tiling;
  plan.split = work.slices;
  plan.workspace_bytes = plan.split > 1 ? plan.split * slice_bytes(problem) : 0;
  plan.grid = problem.c / planes_of(problem) * plan.split;
  plan.block_threads = static_cast<int32_t>(32 * warps_of(problem, work.tiling.images));
  plan.smem_bytes = static_cast<int32_t>(work.smem_bytes);
  const double sums = memory_us(2.0 * static_cast<double>(plan.workspace_bytes), device);
  plan.cost_us = kLaunchUs * (plan.split > 1 ? 2 : 1) + kUnseenUs + work.us + sums;
  return plan;
}

GroupedPlanesParams grouped_planes_params(const Plan& plan, const ConvProblem& problem) {
  const GroupedPlanesTiling& tiling = plan.tiling.as<GroupedPlanesTiling>();
  const int64_t bytes = element_size(problem.dtype);
  GroupedPlanesParams params{};
  params.x = tensor_of(input_side(problem), bytes, seen_rows(problem, tiling.run_rows));
  params.y = tensor_of(output_side(problem), bytes, tiling.run_rows);
  params.filter_strides = problem.w_strides;
  params.channels = static_cast<int32_t>(problem.c);
  params.group_log2 = std::countr_zero(static_cast<uint64_t>(problem.c_per_group()));
  params.halves_log2 = std::countr_zero(static_cast<uint64_t>(planes_of(problem) / kPlanes));
  params.padding_h = static_cast<int32_t>(problem.padding.h);
  params.images = static_cast<int32_t>(problem.n);
  params.tile_images = tiling.images, params.run_rows = tiling.run_rows;
  const int64_t runs = ceil_div(problem.p(), tiling.run_rows);
  params.tiles = static_cast<int32_t>(ceil_div(problem.n, tiling.images) * runs);
  params.slice_tiles = static_cast<int32_t>(ceil_div(params.tiles, plan.split));
  params.image_bytes = params.x.staged_bytes(params.planes()) + params.y.staged_bytes(params.planes());
  params.stage_bytes = tiling.images * params.image_bytes;
  params.by_chunks = FastDivmod(problem.c / planes_of(problem));
  params.by_runs = FastDivmod(std::max<int64_t>(1, runs));
  params.by_blocks = FastDivmod(std::max<int64_t>(1, blocks_of(problem)));
  return params;
}

}  // namespace fastconv
