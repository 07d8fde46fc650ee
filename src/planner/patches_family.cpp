#include "fastconv/planner/patches_family.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "fastconv/core/integers.h"
#include "fastconv/planner/cost_model.h"

namespace fastconv {
namespace {

constexpr int64_t kVectorBytes = 16, kWorkspaceAlign = 256;

// One dimension of the filter.
struct Level {
  int64_t size, filter, image;  // strides of either
  bool is_row, is_column;
};
using Levels = std::array<Level, 3>;

// Outermost first, as the filter has them. Those of one element come first: they are nowhere.
Levels levels_of(const ConvProblem& p) {
  Levels levels{{{p.c, p.w_strides.c, p.x_strides.c, false, false},
                 {p.r, p.w_strides.h, p.x_strides.h, true, false},
                 {p.s, p.w_strides.w, p.x_strides.w, false, true}}};
  std::stable_sort(levels.begin(), levels.end(), [](const Level& a, const Level& b) {
    return std::pair(a.size > 1, -a.filter) < std::pair(b.size > 1, -b.filter);
  });
  return levels;
}

// Whether one stride leads through all of a filter's elements.
bool one_stride(const Levels& levels) {
  for (size_t i = 1; i < levels.size(); ++i) {
    if (levels[i - 1].size > 1 && levels[i - 1].filter != levels[i].size * levels[i].filter) return false;
  }
  return true;
}

bool is_patches(const ConvProblem& p) {
  auto along = [](int64_t taps, int64_t stride, int64_t padding, int64_t dilation) {
    return taps == stride && padding == 0 && (taps == 1 || dilation == 1);
  };
  return p.r * p.s > 1 && along(p.r, p.stride.h, p.padding.h, p.dilation.h) &&
         along(p.s, p.stride.w, p.padding.w, p.dilation.w);
}

// Elements of a patch that lie side by side in image and filter, and all those of the image that they are part of.
struct Runs {
  int64_t run, of_image;
};
Runs runs_of(const Levels& levels, const ConvProblem& p) {
  const Level &middle = levels[1], &inner = levels[2];
  if (inner.image != 1) return {1, 1};
  if (inner.is_column) return {inner.size, p.w};
  if (inner.is_row) return {inner.size, p.h};
  const bool of_columns = middle.is_column && middle.image == inner.size;
  return of_columns ? Runs{inner.size * middle.size, inner.size * p.w} : Runs{inner.size, inner.size};
}

int32_t vector_of(const Levels& levels, const ConvProblem& p) {
  const auto [run, of_image] = runs_of(levels, p);
  const int64_t size = element_size(p.dtype), patch_rows = ceil_div(p.h, p.r), patch_columns = ceil_div(p.w, p.s);
  for (int64_t vector = kVectorBytes / size; vector > 1; vector /= 2) {
    auto starts = [vector](const Level& level) { return keeps_multiples(level.image, level.size, vector); };
    // Of the levels that a run spans, the outer one counts in whole vectors together with the inner one alone.
    const bool spans = run > levels[2].size;
    if (run % vector == 0 && of_image % vector == 0 && p.x_align >= vector * size && starts(levels[0]) &&
        (spans || starts(levels[1])) && keeps_multiples(p.x_strides.n, p.n, vector) &&
        keeps_multiples(p.r * p.x_strides.h, patch_rows, vector) &&
        keeps_multiples(p.s * p.x_strides.w, patch_columns, vector)) {
      return static_cast<int32_t>(vector);
    }
  }
  return 1;
}

// Elements from one row of the workspace to the next, of a patch or of a plane: the copy engine wants multiples of 16
// bytes.
int64_t pitch(const PatchesConfig& config, const ConvProblem& p) {
  const int64_t row = config.layout == PatchLayout::kRows ? p.c * p.r * p.s : p.p() * p.q();
  return round_up(row, kVectorBytes / element_size(p.dtype));
}

Strides patches_strides(const PatchesConfig& config, const ConvProblem& p) {
  const int64_t row = pitch(config, p);
  return config.layout == PatchLayout::kRows ? Strides{p.p() * p.q() * row, 1, p.q() * row, row}
                                             : Strides{p.c * p.r * p.s * row, row, p.q(), 1};
}

ConvProblem inner_problem(const PatchesConfig& config, const ConvProblem& problem) {
  const int64_t filter_stride = levels_of(problem)[2].filter;
  ConvProblem inner = problem;
  inner.c = problem.c * problem.r * problem.s, inner.h = problem.p(), inner.w = problem.q();
  inner.r = inner.s = 1;
  inner.stride = inner.dilation = {1, 1};
  inner.x_strides = patches_strides(config, problem), inner.x_align = 128;
  inner.w_strides = {problem.w_strides.n, filter_stride, filter_stride, filter_stride};
  return inner;
}

// None where nothing runs it. Its workspace has a limit of its own: patches are as large as the input, and large inputs
// are where other kernels would take longest.
std::optional<InnerPlan> inner_plan(const PatchesConfig& config, const ConvProblem& problem, const DeviceSpec& device) {
  const ConvProblem inner = inner_problem(config, problem);
  const Plan plan = make_plan(inner, device).plan;
  if (plan.kernel == nullptr) return std::nullopt;
  return InnerPlan{inner, plan};
}

// Every patch is read once and written once, or instructions take longer: about so many a vector, counted in the
// compiled code.
double copy_us(const ConvProblem& problem, const Patches& patches, const DeviceSpec& device) {
  constexpr double kMoveInstructions = 100, kLanes = 128;
  constexpr double kScattered = 2;  // a guess: neighbours in the workspace that are none in the image
  const double vectors = static_cast<double>(patches.pixels) * patches.chunks;
  const double bytes = 2 * vectors * patches.vector * static_cast<double>(element_size(problem.dtype)) *
                       (patches.levels[2].stride == 1 ? 1 : kScattered);
  return kLaunchUs +
         std::max(bytes / kBytesPerUsPerSm, vectors * kMoveInstructions / (kLanes * kCyclesPerUs)) / device.sm_count;
}

}  // namespace

Patches make_patches(const PatchesConfig& config, const ConvProblem& p) {
  const Levels levels = levels_of(p);
  const Strides to = patches_strides(config, p);
  const bool all_of_image = p.pass == Pass::kDgrad;  // what no filter meets has a gradient too: zero
  const int64_t rows = all_of_image ? ceil_div(p.h, p.r) : p.p(), columns = all_of_image ? ceil_div(p.w, p.s) : p.q();
  Patches out{};
  out.image_n = p.x_strides.n, out.image_p = p.r * p.x_strides.h, out.image_q = p.s * p.x_strides.w;
  out.patches_n = to.n, out.patches_pixel = to.w, out.patches_channel = to.c;
  for (size_t i = 0; i < levels.size(); ++i) {
    out.levels[i] = {levels[i].image, levels[i].is_row, levels[i].is_column};
  }
  out.middle = FastDivmod(levels[1].size), out.inner = FastDivmod(levels[2].size);
  out.rows = FastDivmod(rows), out.columns = FastDivmod(columns);
  out.q = static_cast<int32_t>(p.q());
  out.whole_h = static_cast<int32_t>(p.p() * p.r), out.whole_w = static_cast<int32_t>(p.q() * p.s);
  out.h = static_cast<int32_t>(p.h), out.w = static_cast<int32_t>(p.w);
  out.r = static_cast<int32_t>(p.r), out.s = static_cast<int32_t>(p.s);
  out.vector = vector_of(levels, p);
  out.chunks = static_cast<int32_t>(p.c * p.r * p.s / out.vector);
  out.pixels = static_cast<int32_t>(p.n * rows * columns);
  const int64_t chunk_blocks = ceil_div(out.chunks, kPatchChunks);
  out.chunk_blocks = FastDivmod(chunk_blocks);
  out.units = static_cast<int32_t>(chunk_blocks * ceil_div(out.pixels, kPatchPixels));
  return out;
}

int64_t patches_bytes(const PatchesConfig& config, const ConvProblem& problem) {
  return round_up(problem.n * patches_strides(config, problem).n * element_size(problem.dtype), kWorkspaceAlign);
}

const char* patches_why_not(const KernelEntry& entry, const ConvProblem& p, const DeviceSpec& device) {
  if (!is_patches(p)) return "needs a filter as large as its stride, of several taps, without padding or dilation";
  if (p.groups != 1) return "takes one group alone";
  if (p.n == 0 || p.c == 0) return "has nothing to rearrange";
  if (!one_stride(levels_of(p))) return "needs filters without gaps between their taps";
  const auto fits = [](double count) { return count < static_cast<double>(kMaxExtent); };
  const double patches =
      static_cast<double>(p.n) * static_cast<double>(ceil_div(p.h, p.r)) * static_cast<double>(ceil_div(p.w, p.s));
  const double elements = static_cast<double>(p.c) * static_cast<double>(p.r * p.s);
  const double units = (patches / kPatchPixels + 1) * (elements / kPatchChunks + 1);
  if (!fits(patches) || !fits(elements) || !fits(units) || !fits(static_cast<double>(p.h)) ||
      !fits(static_cast<double>(p.w))) {
    return "counts patches, their elements and what warps move with 32 bits";
  }
  if (!inner_plan(entry.patches, p, device)) return "finds no kernel for the product";
  return nullptr;
}

Plan patches_plan(const KernelEntry& entry, const ConvProblem& problem, const DeviceSpec& device) {
  const Patches patches = make_patches(entry.patches, problem);
  Plan plan;
  plan.kernel = &entry;
  plan.inner = std::make_shared<InnerPlan>(*inner_plan(entry.patches, problem, device));
  plan.block_threads = kPatchThreads;
  plan.grid = ceil_div(patches.units, kPatchThreads / 32);
  plan.workspace_bytes = patches_bytes(entry.patches, problem) + plan.inner->plan.workspace_bytes;
  plan.cost_us = copy_us(problem, patches, device) + plan.inner->plan.cost_us;
  return plan;
}

}  // namespace fastconv
