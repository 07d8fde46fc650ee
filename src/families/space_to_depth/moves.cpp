#include "fastconv/families/space_to_depth/moves.h"

#include <algorithm>
#include <utility>

#include "fastconv/core/integers.h"
#include "fastconv/families/space_to_depth/cost.h"

namespace fastconv {
namespace {

// Elements of a patch that lie side by side in image and workspace, and all those of the image that they are part of.
struct Runs {
  int64_t run, of_image;
};
Runs runs_of(const PatchGrid& grid) {
  const PatchIndex &middle = grid.indices[1], &inner = grid.indices[2];
  if (inner.image != 1 || !inner.dense()) return {1, 1};
  if (inner.is_column) return {inner.size, grid.image.w};
  if (inner.is_row) return {inner.size, grid.image.h};
  const bool of_columns = middle.is_column && middle.image == inner.size && middle.dense();
  return of_columns ? Runs{inner.size * middle.size, inner.size * grid.image.w} : Runs{inner.size, inner.size};
}

int32_t vector_of(const PatchGrid& grid) {
  const auto [run, of_image] = runs_of(grid);
  const Side& image = grid.image;
  const PatchIndices& indices = grid.indices;
  for (int64_t vector = kPatchVectorBytes / grid.element_bytes; vector > 1; vector /= 2) {
    auto starts = [vector](const PatchIndex& index) { return keeps_multiples(index.image, index.size, vector); };
    // Of the indices that a run spans, the outer one counts in whole vectors together with the inner one alone.
    const bool spans = run > indices[2].size;
    if (run % vector == 0 && of_image % vector == 0 && image.align >= vector * grid.element_bytes &&
        starts(indices[0]) && (spans || starts(indices[1])) && keeps_multiples(image.stride.n, image.n, vector) &&
        keeps_multiples(grid.size.h * image.stride.h, grid.moved.h, vector) &&
        keeps_multiples(grid.size.w * image.stride.w, grid.moved.w, vector) &&
        grid.before.h * image.stride.h % vector == 0 && grid.before.w * image.stride.w % vector == 0) {
      return static_cast<int32_t>(vector);
    }
  }
  return 1;
}

int64_t elements_of(const PatchGrid& grid) {
  return grid.indices[0].size * grid.indices[1].size * grid.indices[2].size;
}

}  // namespace

PatchIndices in_order(PatchIndices indices) {
  std::stable_sort(indices.begin(), indices.end(), [](const PatchIndex& a, const PatchIndex& b) {
    return std::pair(a.size > 1, -a.order) < std::pair(b.size > 1, -b.order);
  });
  return indices;
}

Patches make_patches(const PatchGrid& grid) {
  const auto& [image, element_bytes, indices, size, before, moved, whole, to] = grid;
  Patches out{};
  out.image_n = image.stride.n, out.image_p = size.h * image.stride.h, out.image_q = size.w * image.stride.w;
  out.image_first = -(before.h * image.stride.h + before.w * image.stride.w);
  out.patches_n = to.n, out.patches_pixel = to.w, out.patches_channel = to.c;
  int64_t patch = 1;
  for (int i = 2; i >= 0; --i) {
    const PatchIndex& index = indices[i];
    out.levels[i] = {index.image, index.is_row,           index.is_column,
                     patch,       FastDivmod(index.step), static_cast<int32_t>(index.taps)};
    patch *= index.taps;
  }
  out.middle = FastDivmod(indices[1].size), out.inner = FastDivmod(indices[2].size);
  out.rows = FastDivmod(moved.h), out.columns = FastDivmod(moved.w);
  out.q = static_cast<int32_t>(whole.w);
  out.whole_h = static_cast<int32_t>(whole.h * size.h - before.h);
  out.whole_w = static_cast<int32_t>(whole.w * size.w - before.w);
  out.h = static_cast<int32_t>(image.h), out.w = static_cast<int32_t>(image.w);
  out.r = static_cast<int32_t>(size.h), out.s = static_cast<int32_t>(size.w);
  out.first_h = static_cast<int32_t>(-before.h), out.first_w = static_cast<int32_t>(-before.w);
  out.vector = vector_of(grid);
  out.chunks = static_cast<int32_t>(elements_of(grid) / out.vector);
  out.pixels = static_cast<int32_t>(image.n * moved.h * moved.w);
  const int64_t chunk_blocks = ceil_div(out.chunks, kPatchChunks);
  out.chunk_blocks = FastDivmod(chunk_blocks);
  out.units = static_cast<int32_t>(chunk_blocks * ceil_div(out.pixels, kPatchPixels));
  return out;
}

int64_t patch_pitch(int64_t elements, int64_t element_bytes) {
  return round_up(elements, kPatchVectorBytes / element_bytes);
}

Strides patch_rows(Pair pixels, int64_t pitch) { return {pixels.h * pixels.w * pitch, 1, pixels.w * pitch, pitch}; }

bool patches_fit_int32(const PatchGrid& grid) {
  double elements = 1;
  for (const PatchIndex& index : grid.indices) elements *= static_cast<double>(index.size);
  const double patches =
      static_cast<double>(grid.image.n) * static_cast<double>(grid.moved.h) * static_cast<double>(grid.moved.w);
  const double units = (patches / kPatchPixels + 1) * (elements / kPatchChunks + 1);
  const double most = std::max({patches, elements, units, static_cast<double>(grid.image.h + grid.size.h),
                                static_cast<double>(grid.image.w + grid.size.w)});
  return most < static_cast<double>(kMaxExtent);
}

// Every patch is read once and written once, or instructions take longer.
double move_us(const Patches& patches, int64_t element_bytes, const DeviceSpec& device) {
  using namespace cost::moves;
  const double elements = static_cast<double>(patches.pixels) * patches.chunks * patches.vector;
  const double bytes =
      2 * elements * static_cast<double>(element_bytes) * (patches.levels[2].stride == 1 ? 1 : kScattered);
  const double instructions = static_cast<double>(patches.units) * kPatchChunks * kPatchPixels * kMove;
  return time_us({.clocks = kInstruction * instructions / (128. * device.sm_count), .bytes = bytes, .us = kLaunchUs},
                 device);
}

}  // namespace fastconv
