#include "fastconv/planner/bias_grad.h"

#include <algorithm>
#include <bit>

#include "fastconv/core/integers.h"
#include "fastconv/planner/sides.h"

namespace fastconv {
namespace {

constexpr int64_t kBlocksPerSm = 16;
constexpr int64_t kLeastUnits = 4;   // of a thread, unless there are fewer
constexpr int64_t kMostUnits = 256;  // of a thread, which bounds the rounding errors of its sums

}  // namespace

BiasGradPlan plan_bias_grad(const ConvProblem& problem, const DeviceSpec& device) {
  const Side y = output_side(problem);
  const int64_t vector = kBiasUnitBytes / element_size(problem.dtype), k = problem.k;
  const bool whole_images = y.h == 1 || y.stride.h == y.w * y.stride.w;
  BiasGradPlan plan{};
  BiasGradParams& params = plan.params;
  params.channels = k;
  params.rows_per_image = whole_images ? 1 : y.h;
  params.length = whole_images ? y.h * y.w : y.w;
  params.stride_n = y.stride.n, params.stride_c = y.stride.c, params.stride_row = y.stride.h;
  params.stride = y.w == 1 && whole_images ? y.stride.h : y.stride.w;
  plan.across = k % vector == 0 && channel_vectors(y, problem, vector);
  plan.along = !plan.across && params.stride == 1 && params.length % vector == 0 && y.align >= kBiasUnitBytes &&
               keeps_multiples(y.stride.n, y.n, vector) && keeps_multiples(y.stride.c, k, vector) &&
               keeps_multiples(y.stride.h, params.rows_per_image, vector);
  params.channels_beside = k > 1 && (plan.across || y.stride.c < params.stride);
  if (plan.along) params.length /= vector, params.stride = vector;
  params.units = y.n * params.rows_per_image * params.length;

  auto power = [](int64_t count) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))); };
  const int64_t runs = plan.across ? k / vector : k;
  const int64_t most_c =
      params.channels_beside ? 32 : kBiasThreads / std::clamp<int64_t>(power(params.units), 32, kBiasThreads);
  params.lanes_c = static_cast<int32_t>(std::min(power(runs), most_c));
  plan.channel_blocks = ceil_div(runs, params.lanes_c);
  const int64_t lanes_p = kBiasThreads / params.lanes_c;
  const int64_t fill = std::min(ceil_div(kBlocksPerSm * device.sm_count, plan.channel_blocks),
                                ceil_div(params.units, kLeastUnits * lanes_p));
  const int64_t slices = std::max({int64_t{1}, fill, ceil_div(params.units, kMostUnits * lanes_p)});
  params.slice_units = std::max<int64_t>(1, ceil_div(params.units, slices));
  params.slices = std::max<int64_t>(1, ceil_div(params.units, params.slice_units));
  plan.workspace_bytes = params.slices * k * (problem.dtype == DType::kFloat64 ? 8 : 4);
  return plan;
}

}  // namespace fastconv
